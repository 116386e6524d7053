"""MLflow's own pages and the report, seen with a real browser."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from orchestrator import report, tracking
from orchestrator.analysis.results import Summary, write_summary
from orchestrator.analysis.summary import summarize
from tests import synthetic

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
PATIENCE_MS = 120_000  # of a page on a busy machine


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, Path]:
    directory = tmp_path_factory.mktemp("ui") / "run"
    directory.mkdir()
    summary = summarize(synthetic.records(), synthetic.facts())
    write_summary(summary, directory / "summary.json")
    report.write(summary, directory)
    return summary, directory


@contextmanager
def opened(browser: Browser, address: str) -> Iterator[Page]:
    """A page; at the end, nothing went wrong on it and no request left this machine."""
    outside: list[str] = []
    broken: list[str] = []
    context = browser.new_context(viewport={"width": 1700, "height": 1000})
    page = context.new_page()
    own = ("http://127.0.0.1:", "file:///", "blob:", "data:")
    page.on("request", lambda request: outside.append(request.url) if not request.url.startswith(own) else None)
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    yield page
    context.close()
    assert outside == []
    assert broken == []


def test_the_report_opens_from_disk_and_is_whole(browser: Browser, run: tuple[Summary, Path]) -> None:
    summary, directory = run
    with opened(browser, (directory / "report.html").as_uri()) as page:
        expect(page.locator(".headline")).to_contain_text("dspine 2.")
        expect(page.locator(".card")).to_have_count(2)
        expect(page.locator("#result tbody tr.strong").first).to_contain_text("speedup over plain")
        expect(page.locator("#prompts tbody tr")).to_have_count(16)
        loaded = page.locator("figure img").evaluate_all("images => images.map(image => image.naturalWidth)")
        assert len(loaded) == 4
        assert min(loaded) > 300
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide == 0
        answers = page.locator("details", has_text="What was answered")
        expect(answers.locator("pre").first).not_to_be_visible()
        answers.locator("summary").click()
        expect(answers.locator("pre").first).to_contain_text("<b>&</b>")
    with opened(browser, (directory / "report.html").as_uri()) as page:
        page.set_viewport_size({"width": 420, "height": 800})  # tables scroll inside, the page does not
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert summary.arms[2].name == "dspine"


@pytest.fixture(scope="module")
def server(run: tuple[Summary, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(address of `mlflow ui`, how to browse as the run says it), on the store of one comparison."""
    summary, directory = run
    folder = tmp_path_factory.mktemp("store")
    told = tracking.project(summary, f"sqlite:///{folder}/mlflow.db", directory)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes less
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    command = [sys.executable, "-m", "mlflow", "ui", "--port", str(port), "--workers", "1"]
    with (folder / "ui.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            address = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 180
            while not _answers(f"{address}/health"):
                assert process.poll() is None, (folder / "ui.log").read_text()
                assert time.monotonic() < deadline, (folder / "ui.log").read_text()
                time.sleep(0.5)
            yield address, told
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_address_that_a_run_prints_shows_the_arms_side_by_side(
    browser: Browser, server: tuple[str, str], run: tuple[Summary, Path]
) -> None:
    address, told = server
    printed = re.search(r"http://127\.0\.0\.1:5000(/\S+)$", told)
    assert printed
    with opened(browser, address + printed.group(1)) as page:
        rows = page.locator(".ag-center-cols-container .ag-row")
        expect(rows).to_have_count(3, timeout=PATIENCE_MS)
        for column in ("throughput/speedup", "throughput/output_tok_s", "acceptance/length"):
            expect(page.get_by_text(column, exact=True).first).to_be_visible(timeout=PATIENCE_MS)
        point = run[0].arms[2].point
        assert point is not None
        assert point.speedup is not None
        expect(rows.filter(has_text=f"{point.speedup.ratio:.5g}")).to_have_count(1)
        for name in ("plain", "dflash2", "dspine"):
            expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()


def test_the_parents_page_shows_the_table_and_its_report(browser: Browser, server: tuple[str, str]) -> None:
    address, _ = server
    with opened(browser, f"{address}/#/experiments/1/runs?workflowType=machine_learning") as page:
        page.get_by_role("link", name="synthetic · 5f1e7a90").click()
        page.get_by_text("Show more").click()
        expect(page.get_by_role("cell", name="acceptance length tau")).to_be_visible()
        expect(page.get_by_role("cell", name="speedup over plain [95%]")).to_be_visible()
        expect(page.get_by_text("engine=embedded").first).to_be_visible()
        page.get_by_role("tab", name="Artifacts").click()
        page.get_by_text("report.html", exact=True).first.click()
        frame = page.frame_locator("iframe").last
        expect(frame.locator(".headline")).to_contain_text("Output speed relative to plain", timeout=PATIENCE_MS)
        expect(frame.locator(".card")).to_have_count(2)
