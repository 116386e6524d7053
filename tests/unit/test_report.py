from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation
from rich.console import Console

from orchestrator import projection, report
from orchestrator.analysis import published
from orchestrator.analysis.facts import ArmFacts
from orchestrator.analysis.results import Summary
from orchestrator.analysis.summary import summarize
from orchestrator.findings.finding import finding
from orchestrator.report import plots, sweep, table
from tests import synthetic

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """Text and addresses of a page; fails on a tag that is not closed in order."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarize(synthetic.records(), synthetic.facts())


@pytest.fixture(scope="module")
def drawn(summary: Summary) -> list[plots.Plot]:
    return plots.draw(summary)


@pytest.fixture(scope="module")
def written(summary: Summary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    report.write(summary, directory)
    return directory


def shown(summary: Summary, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table.render(summary))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_page_needs_nothing_but_itself(written: Path) -> None:
    text = (written / "report.html").read_text()
    page = Page(text)
    assert page.addresses
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.addresses)
    assert not re.search(r"@import|url\(|<script|<link", text)


def test_the_page_holds_result_findings_prompts_and_how_it_was_made(written: Path, summary: Summary) -> None:
    page = Page((written / "report.html").read_text()).text
    assert table.headline(summary) in page
    for row in table.rows(summary):
        assert row.label.strip() in page
        assert all(cell in page for cell in row.cells)
    for prompt in summary.prompts:
        assert prompt.prompt_id in page
    for one in summary.findings:
        assert one.text in page
    assert "--drafter dspine" in page
    assert "plain → dflash2 → dspine → dspine → dflash2 → plain" in page


def test_text_of_a_model_is_text_not_markup(written: Path) -> None:
    text = (written / "report.html").read_text()
    assert "<b>&</b>" not in text  # the synthetic answers hold it
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in text


def test_every_figure_of_the_embedded_engine_carries_its_tag(written: Path, summary: Summary) -> None:
    text = (written / "report.html").read_text()
    sections = [part.partition("</h2>")[0] for part in text.split("<h2>")[1:]]
    with_figures = [part for part in sections if re.match(r"Result|Speedup|Output|Acceptance|Latency|Prompt", part)]
    assert len(with_figures) == 6
    assert all(table.EMBEDDED_TAG in part for part in with_figures)
    assert table.EMBEDDED_TAG in table.markdown(summary)
    assert table.EMBEDDED_TAG in shown(summary)
    other = Page(report.html.render(summary.model_copy(update={"engine": "sglang", "findings": []}), [])).text
    assert table.EMBEDDED_TAG not in other


def test_published_figures_are_set_apart_and_name_their_machine(written: Path, summary: Summary) -> None:
    text = (written / "report.html").read_text()
    own, _, others = text.partition("Published figures of other machines")
    assert "1x GPU of a test" in others
    assert "88 to 227" in others
    assert "88 to 227" not in own
    assert all("150" not in cell for row in table.rows(summary) for cell in row.cells)


def test_plots_are_drawn_for_what_was_measured(drawn: list[plots.Plot]) -> None:
    stems = [plot.stem for plot in drawn]
    assert stems == ["speedup", "throughput", "acceptance_by_position", "latency"]
    loads = (1, 2)
    more = summarize(synthetic.records(concurrencies=loads), synthetic.facts(concurrencies=loads))
    assert [plot.stem for plot in plots.draw(more)][-1] == "by_concurrency"
    plain = (synthetic.ARMS[0],)
    alone = summarize(synthetic.records(plain), synthetic.facts(plain))
    assert [plot.stem for plot in plots.draw(alone)] == ["throughput", "latency"]


def test_plots_are_pictures_and_the_same_data_gives_the_same_picture(drawn: list[plots.Plot], written: Path) -> None:
    files = {file.stem: file.read_bytes() for file in (written / "plots").iterdir()}
    assert files == {plot.stem: plot.png for plot in drawn}
    assert all(png.startswith(b"\x89PNG") for png in files.values())
    encoded = [base64.b64encode(plot.svg).decode() for plot in drawn]
    page = (written / "report.html").read_text()
    assert all(svg in page for svg in encoded)


def test_the_terminal_table_reads_along_a_metric(summary: Summary) -> None:
    text = shown(summary)
    lines = {line.strip().partition("  ")[0]: line for line in text.splitlines()}
    assert re.search(
        r"1 \(baseline\)\s+\d\.\d\d \[\d\.\d\d, \d\.\d\d\]\s+\d\.\d\d \[", lines["speedup over plain [95%]"]
    )
    assert re.search(r"8\s+16$", lines["block size"].rstrip())
    assert re.search(r"7\s+15$", lines["of tokens proposed"].rstrip())
    assert re.search(r"16/16\s+32/32\s+32/32", lines["tokens identical to plain"])
    assert "note: 14 of 32 outputs" in text
    last = " ".join(" ".join(text.split("\n")[-5:]).split())
    assert "Output speed relative to plain: dspine" in last
    assert re.search(r"dspine over dflash2: \d\.\d\dx \[", last)


@pytest.mark.parametrize(("dynamic", "told"), [(True, "5.5 (dynamic)"), (False, "5.5 (mean)")])
def test_a_varying_window_is_shown_as_its_mean_and_says_why_it_varies(
    summary: Summary, dynamic: bool, told: str
) -> None:
    arm = summary.arms[1].model_copy(update={"dynamic_window": dynamic})
    point = arm.points[0]
    assert point.acceptance is not None
    assert table.window(arm, point) == ("≤ 8" if dynamic else "8"), "the server reported no windows"
    windows = point.acceptance.model_copy(update={"window_histogram": [0, 0, 0, 1, 0, 0, 0, 0, 1]})
    assert table.window(arm, point.model_copy(update={"acceptance": windows})) == told


def test_more_arms_than_fit_beside_each_other_are_lines() -> None:
    arms = (synthetic.ARMS[0], *(replace(synthetic.ARMS[1], name=f"block_{b}", block_size=b) for b in (4, 5, 6, 7, 8)))
    text = shown(summarize(synthetic.records(arms), synthetic.facts(arms)), width=80)
    (header,) = [line for line in text.splitlines() if "ms/step" in line]
    assert header.split() == ["speedup", "tok/s", "tau", "proposed", "ms/step", "identical", "peak", "GiB"]
    for arm in arms:
        (line,) = [line for line in text.splitlines() if line.startswith(f"{arm.name} ")]
        assert "…" not in line
    assert "2 more below that" in text


def test_markdown_is_a_table_that_fits_mlflow(summary: Summary) -> None:
    text = table.markdown(summary)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {5}
    assert len(text) <= 8000
    many = summary.model_copy(update={"findings": summary.findings * 200})
    cut = table.markdown(many)
    assert len(cut) <= 8000
    assert cut.endswith("report.html has the whole)")


def test_one_prompt_has_no_interval() -> None:
    run = [record for record in synthetic.records() if record.prompt_id == "short-1"]
    found = summarize(run, synthetic.facts())
    cells = table.rows(found)[0].cells
    assert all("[" not in cell for cell in cells)
    assert "no interval: one prompt" in Page(report.html.render(found, plots.draw(found))).text


def test_an_arm_that_was_not_run_leaves_a_gap_that_is_seen(tmp_path: Path) -> None:
    base = synthetic.facts()
    arms = [*base.arms, ArmFacts("eagle3", "eagle3", missing="no weights for this target")]
    found = summarize(synthetic.records(), replace(base, arms=arms))
    assert table.rows(found)[0].cells[3] == "not run"
    report.write(found, tmp_path)
    assert "eagle3 was not run: no weights for this target" in Page((tmp_path / "report.html").read_text()).text


def test_a_run_that_measured_nothing_still_has_a_report(tmp_path: Path) -> None:
    found = summarize([], replace(synthetic.facts(), status="failed", sessions=[]))
    files = report.write(found, tmp_path)
    assert [file.name for file in files] == ["report.html", "result.md"]
    assert "No plain arm was measured" in Page(files[0].read_text()).text
    assert "No plain arm was measured" in shown(found)


def test_a_fork_is_seen_in_the_table_and_in_the_page(tmp_path: Path) -> None:
    found = summarize(synthetic.forked(synthetic.records(), "dspine", "long-2", 20), synthetic.facts())
    assert "30/32, 2 DIFFERENT" in shown(found)
    text = (report.write(found, tmp_path)[0]).read_text()
    assert 'class="no">30/32, 2 DIFFERENT' in text
    assert 'class="no">NO' in text


@pytest.mark.parametrize("file", sorted(ROOT.glob("experiments/*/reference.yaml")), ids=lambda file: file.parent.name)
def test_reference_files_name_arms_of_their_experiment(file: Path) -> None:
    sources = published.read(file)
    assert sources
    arms = yaml.safe_load((ROOT / "conf" / "experiment" / f"{file.parent.name}.yaml").read_text())["arms"]
    for source in sources:
        assert source.machine
        assert source.setting
        assert set(source.arms) <= set(arms)
    assert published.load(file.parent.name) == sources


def test_every_experiment_has_a_page_that_explains_it() -> None:
    for file in (ROOT / "conf" / "experiment").glob("*.yaml"):
        page = ROOT / "experiments" / file.stem / "README.md"
        assert f"+experiment={file.stem}" in page.read_text()


def test_a_wrong_reference_file_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "reference.yaml"
    file.write_text("sources:\n  - {title: t, machine: m, setting: s, arms: {plain: {tok: {overall: 1}}}}\n")
    with pytest.raises(ValueError, match=r"reference.yaml: arms.plain.tok: Extra inputs"):
        published.read(file)
    file.write_text("arms: {}\n")
    with pytest.raises(ValueError, match="single key 'sources'"):
        published.read(file)
    assert published.load("no_such_experiment") == []


UNFAIR = {"target.dtype": {"plain": "float32", "dspine": "bfloat16"}}


def test_a_refused_comparison_has_no_verdict_anywhere(tmp_path: Path) -> None:
    found = summarize(synthetic.records(), replace(synthetic.facts(), unfair=UNFAIR))
    text = shown(found)
    assert "No verdict: the comparison is refused (unfair_precision)." in text
    assert re.search(r"speedup over plain \[95%\]\s+1 \(baseline\)\s+withheld\s+withheld", text)
    page = (report.write(found, tmp_path)[0]).read_text()
    assert "No verdict: the comparison is refused (unfair_precision)." in page
    assert 'class="big"' not in page.partition("Before you use")[0], "no card with a speedup"
    assert "No verdict" in table.markdown(found) or "withheld" in table.markdown(found)
    assert projection.parent_tags(found)["refused"] == "unfair_precision"
    assert not any(name.startswith("speedup/") for name in projection.parent_metrics(found))
    assert "withheld" in sweep.markdown([found])


def test_a_lossy_arm_is_labelled_everywhere(tmp_path: Path) -> None:
    base = synthetic.facts()
    arms = [*base.arms[:2], replace(base.arms[2], lossy=True)]
    found = summarize(synthetic.records(), replace(base, arms=arms))
    assert "dspine (lossy)" in shown(found).splitlines()[2]
    assert "dspine (lossy)" in table.headline(found)
    assert "| dspine (lossy) |" in table.markdown(found)
    assert "dspine (lossy)" in Page((report.write(found, tmp_path)[0]).read_text()).text
    assert projection.arm_tags(found, found.arms[2])["lossy"] == "true"
    assert "lossy" not in projection.arm_tags(found, found.arms[1])
    assert "dspine (lossy)" in sweep.markdown([found])


def test_what_a_step_cost_stands_beside_tau_wherever_tau_does(summary: Summary, tmp_path: Path) -> None:
    labels = [row.label.strip() for row in table.rows(summary)]
    place = labels.index("acceptance length tau")
    assert labels[place + 1 : place + 6] == [
        "of tokens proposed", "in a verify window of", "per token in the window", "ms per verification step",
        "relative to a plain step",
    ]  # fmt: skip
    header, *lines = [line for line in sweep.markdown([summary]).splitlines() if line.startswith("|")]
    assert " tau | proposed | ms per step |" in header
    assert {line.count("|") for line in (header, *lines)} == {len(header.split("|")) - 1}
    metrics = projection.parent_metrics(summary)
    assert {f"{name}/dspine" for name in ("acceptance_length", "proposed_per_step", "step_ms")} <= set(metrics)
    loads = (1, 4)
    more = summarize(synthetic.records(concurrencies=loads), synthetic.facts(concurrencies=loads))
    for _, curves in projection.arm_curves(more.arms[2]):
        assert {f"by_concurrency/{name}" for name in ("acceptance_length", "proposed_per_step", "step_ms")} <= set(
            curves
        )
    text = report.html.render(more, [])
    assert Page(text).text.count("concurrency 4") >= 3, "a line per arm under each load"


def test_a_sweep_over_load_names_the_crossover() -> None:
    loads = (1, 4)
    found = summarize(synthetic.records(concurrencies=loads), synthetic.facts(concurrencies=loads))
    assert re.search(r"pays up to a concurrency of\s+–\s+> 4\s+> 4", shown(found))
    assert projection.arm_metrics(found.arms[2])["throughput/crossover_concurrency"] is None


def test_drawn_outputs_are_not_said_to_be_unchecked_but_unequal_by_nature(summary: Summary) -> None:
    setting = {**summary.setting, "temperature": 0.7}
    found = summarize(synthetic.records(), replace(synthetic.facts(), temperature=0.7, setting=setting))
    row = next(row for row in table.rows(found) if row.label == "tokens identical to plain")
    assert row.cells == ["drawn", "drawn", "drawn"]


def test_forks_are_listed_with_their_place_and_margin(tmp_path: Path) -> None:
    found = summarize(synthetic.forked(synthetic.records(), "dspine", "long-2", 20), synthetic.facts())
    text = Page(report.html.render(found, [])).text
    section = text.partition("Where outputs fork")[2].partition("Prompt by prompt")[0]
    assert re.search(r"dspine\s*long-2\s*1\s*20", section) and re.search(r"dspine\s*long-2\s*2\s*20", section)
    assert "different" in section


def test_windows_that_vary_are_shown_as_shares(summary: Summary) -> None:
    arm = summary.arms[2]
    point = arm.points[0]
    assert point.acceptance is not None
    varying = point.acceptance.model_copy(update={"window_histogram": [0, 0, 1, 0, 3]})
    changed = arm.model_copy(update={"points": [point.model_copy(update={"acceptance": varying})]})
    many = summary.model_copy(update={"arms": [*summary.arms[:2], changed]})
    text = Page(report.html.render(many, plots.draw(many))).text
    assert re.search(r"Verify windows of dspine.*window\s*2\s*4\s*share of steps\s*25%\s*75%", text, re.S)
    assert "Verify windows of dflash2" not in text


def test_a_sweep_is_one_table_with_a_line_per_comparison_and_arm(summary: Summary) -> None:
    shared = ["+experiment=synthetic", "suite=s"]
    told = [
        finding("unsteady_machine", "w"),
        finding("tau_near_one", "w", "dspine"),
        finding("tau_near_one", "again", "dspine"),
        finding("cut_outputs", "a note"),
    ]
    four = summary.model_copy(update={"config": {"command_line": [*shared, "drafter.block_size=4"]}, "findings": told})
    eight = summary.model_copy(update={"config": {"command_line": [*shared, "drafter.block_size=8"]}, "findings": []})
    assert sweep.points([four, eight]) == ["drafter.block_size=4", "drafter.block_size=8"]
    assert sweep.points([four]) == [four.experiment], "nothing sets it apart"
    title, *lines = sweep.text([four, eight]).splitlines()
    assert title == f"{summary.experiment}: 2 comparisons [{table.EMBEDDED_TAG}]"
    assert [line for line in lines if not line.startswith(" ")] == [
        "drafter.block_size=4", "drafter.block_size=8", sweep.INSIDE,
    ]  # fmt: skip
    header, plain, dflash2, dspine = lines[0], *lines[2:5]
    for name in ("speedup [95%]", "tau", "ms per step", "same tokens", "findings"):
        assert name in header
    assert plain.split()[0] == "plain" and plain.endswith("unsteady_machine"), "a finding of the whole comparison"
    assert dspine.endswith("  tau_near_one") and dflash2.endswith("32/32"), "each name once, and no notes"
    point = summary.arms[2].point
    assert point is not None and point.speedup is not None and point.acceptance is not None
    assert f"{table.ratio(point.speedup)}  {point.acceptance.tau:.2f}" in dspine
    rows = [line for line in sweep.markdown([four, eight]).splitlines() if line.startswith("| drafter")]
    assert [row.split(" | ")[:2] for row in rows] == [
        [f"| drafter.block_size={block}", arm.name] for block in (4, 8) for arm in summary.arms
    ]
    assert sweep.INSIDE in sweep.markdown([four, eight])


def test_a_sweep_s_table_shows_what_was_not_run(summary: Summary) -> None:
    missing = summary.arms[2].model_copy(update={"points": [], "missing": "no weights"})
    text = sweep.text([summary.model_copy(update={"arms": [*summary.arms[:2], missing]})])
    assert re.search(r"^  dspine +not run +–", text, re.M)


def test_the_median_stands_at_its_bar_and_not_at_the_end_of_the_line_to_p90(summary: Summary) -> None:
    figure = plots.latency(summary)
    assert figure is not None
    for axes in figure.axes:
        bars = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
        assert [label.xy[0] for label in axes.texts if isinstance(label, Annotation)] == bars
        assert [label.get_text() for label in axes.texts] == [plots.three_digits(bar) for bar in bars]


@pytest.mark.parametrize(
    ("value", "told"), [(0.04567, "0.0457"), (3.4, "3.40"), (31.57, "31.6"), (128.6, "129"), (1234.5, "1234"), (0, "0")]
)
def test_figures_in_plots_have_three_significant_digits(value: float, told: str) -> None:
    assert plots.three_digits(value) == told


def test_throughput_names_who_published_and_has_three_digits(summary: Summary) -> None:
    figure = plots.throughput(summary)
    assert figure is not None
    own, other = figure.axes
    assert synthetic.PUBLISHED.title in other.get_title(loc="left")
    assert synthetic.PUBLISHED.machine in other.get_title(loc="left")
    speeds = {
        plots.three_digits(arm.point.output_tok_s) for arm in summary.arms if arm.point and arm.point.output_tok_s
    }
    assert speeds <= {label.get_text() for label in own.texts}
    assert "33" in {label.get_text() for label in other.texts}, "no digit that was not published"
    plot = next(plot for plot in plots.draw(summary) if plot.stem == "throughput")
    assert synthetic.PUBLISHED.title in plot.caption
    without = plots.draw(summary.model_copy(update={"published": []}))
    assert "ublished" not in next(plot for plot in without if plot.stem == "throughput").caption


def test_a_speedup_that_may_be_none_is_grey_in_its_card(summary: Summary) -> None:
    arm = summary.arms[1]
    point = arm.point
    assert point is not None and point.speedup is not None
    for low, high, grey in (
        (0.9, 2.3, True),
        (1.0, 2.3, True),
        (1.01, 2.3, False),
        (0.5, 0.9, False),
        (None, None, True),
    ):
        ratio = point.speedup.model_copy(update={"low": low, "high": high})
        changed = arm.model_copy(update={"points": [point.model_copy(update={"speedup": ratio})]})
        found = summary.model_copy(update={"arms": [summary.arms[0], changed], "lead": None})
        assert ('class="big open"' in report.html.render(found, [])) == grey, (low, high)
