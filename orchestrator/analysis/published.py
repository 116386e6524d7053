"""Published figures that an experiment is shown beside: ``experiments/<name>/reference.yaml``."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from orchestrator.analysis.results import Published
from orchestrator.paths import shipped


def load(experiment: str) -> list[Published]:
    """The sources of an experiment's reference file; empty where it has none.

    Raises ValueError with the file and the key for a file that is not as described.
    """
    path = shipped("experiments") / experiment / "reference.yaml"
    return read(path) if path.is_file() else []


def read(path: Path) -> list[Published]:
    import yaml

    content = yaml.safe_load(path.read_text())
    if not isinstance(content, dict) or set(content) != {"sources"}:
        raise ValueError(f"{path}: must hold the single key 'sources'")
    try:
        return [Published.model_validate(source) for source in content["sources"]]
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
