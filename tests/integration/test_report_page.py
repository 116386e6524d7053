"""The report in a browser: nothing of a table is cut off at the width of a small screen."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from orchestrator import report
from orchestrator.analysis.summary import summarize
from tests import synthetic

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"


def test_no_table_of_three_arms_is_cut_at_1300_pixels(tmp_path: Path) -> None:
    loads = (1, 4)
    report.write(summarize(synthetic.records(concurrencies=loads), synthetic.facts(concurrencies=loads)), tmp_path)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.goto((tmp_path / "report.html").as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        widths: list[list[int]] = page.evaluate(
            "[...document.querySelectorAll('.scroll')].map(one => [one.scrollWidth, one.clientWidth])"
        )
        browser.close()
    assert len(widths) >= 6
    assert [pair for pair in widths if pair[0] > pair[1]] == []
