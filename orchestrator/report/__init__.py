"""Result table, plots and the self-contained HTML report of one comparison."""

from orchestrator.report.html import write

__all__ = ["write"]
