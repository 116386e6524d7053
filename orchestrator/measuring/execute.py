"""Runs a plan: what is measured already is taken over, the rest is measured, then everything is shown.

Exit codes: 0; 1 when something was not measured, a request failed, or an error was found (for example a speculative
arm's output that differs from the plain arm's without an excuse); 3 when the comparison is refused (`verdict.py`); 128
+ signal (130, 143) after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from rich.console import Console

from orchestrator.analysis import facts, lossless
from orchestrator.analysis.results import Summary, write_summary
from orchestrator.analysis.verdict import exit_code
from orchestrator.config.masking import mask
from orchestrator.measuring import store
from orchestrator.measuring.interrupt import Interrupt, Interrupted
from orchestrator.measuring.measure import measure, probe
from orchestrator.measuring.progress import Display
from orchestrator.measuring.store import Store
from orchestrator.planning import environment
from orchestrator.planning.hardware import Machine
from orchestrator.planning.plan import Plan, ServerSession, Trial, extended
from orchestrator.planning.stopping import decide
from orchestrator.schema import Experiment
from runners.base import ServerFailure
from runners.choose import make_runner

_HOPELESS = frozenset({"model_fetch", "port_in_use"})
"""Causes that no other arm can escape: the rest of the plan is given up."""


@dataclass
class _Progress:
    """How far a run has come."""

    adopted: int = 0
    measured: int = 0
    failures: list[tuple[str, ServerFailure]] = field(default_factory=list)
    """(arm, why)"""
    interrupted: Interrupted | None = None

    @property
    def status(self) -> facts.Status:
        return "interrupted" if self.interrupted else "failed" if self.failures else "finished"


def run(experiment: Experiment, plan: Plan, directory: Path, nodes: Mapping[str, Machine] | None = None) -> int:
    """Measure what the plan asks for, write everything to ``directory``, show it. Returns the exit code.

    ``nodes``: other machines that serve, by the place that is shown of them.
    """
    console = Console()
    trials = Store(directory, Path(experiment.output) / "index")
    described = environment.describe(nodes)
    _write_setup(experiment, plan, described, directory)
    progress = _Progress()
    todo = _adopt(plan.sessions, trials, progress, experiment.reuse)
    if progress.adopted:
        fixed = experiment.stop.rule == "fixed"  # else more repeats may be wanted
        left = "." if any(todo.values()) or not fixed else ": nothing is left to measure."
        _say(
            console,
            f"{progress.adopted} of {len(plan.trials)} trials are measured already and not measured again{left}"
            " reuse=false measures them anew.",
        )
    with Interrupt() as interrupt, Display(console, _requests(plan.sessions, todo)) as display:
        try:
            _measure_all(plan.sessions, todo, trials, display, interrupt, progress)
            while (longer := _next_round(experiment, plan, directory, described, progress, display)) is not None:
                added, plan = longer.sessions[len(plan.sessions) :], longer
                _write_setup(experiment, plan, described, directory)
                todo = _adopt(added, trials, progress, experiment.reuse)
                display.expect(_requests(added, todo))
                _measure_all(added, todo, trials, display, interrupt, progress)
            _probe_forks(experiment, plan, trials, display, interrupt)
        except Interrupted as stopped:
            progress.interrupted = stopped
        except ServerFailure as failure:  # of a probe: the forks stay unexcused
            _report_failure(failure, "margins", display, progress)
    if progress.interrupted:
        return _stopped(progress, plan, directory, console)
    return _show(experiment, plan, directory, described, progress, console)


def _adopt(
    sessions: Sequence[ServerSession], trials: Store, progress: _Progress, reuse: bool
) -> dict[int, list[Trial]]:
    """Take over what earlier runs measured, unless all is wanted anew; returns what is left, by session."""
    todo: dict[int, list[Trial]] = {}
    for session in sessions:
        todo[session.index] = []
        for trial in session.trials:
            found = trials.find(trial.key) if reuse else None
            if found is None:
                todo[session.index].append(trial)
                continue
            trials.adopt(*found, session.index, session.arm.name)
            progress.adopted += 1
    return todo


def _next_round(
    experiment: Experiment,
    plan: Plan,
    directory: Path,
    described: dict[str, object],
    progress: _Progress,
    display: Display,
) -> Plan | None:
    """The plan with another round of repeats where stop.rule=ci_width asks for one."""
    if experiment.stop.rule == "fixed" or progress.failures:
        return None
    result = _summarize(experiment, plan, directory, described, progress)
    speedups = {arm.name: arm.point.speedup for arm in result.arms if arm.point and arm.point.speedup}
    if not speedups:
        return None
    decision = decide(speedups, plan.repeats, experiment.stop.width, experiment.stop.max_repeats)
    display.note(decision.text)
    return extended(plan) if decision.more else None


def _measure_all(
    sessions: Sequence[ServerSession],
    todo: dict[int, list[Trial]],
    trials: Store,
    display: Display,
    interrupt: Interrupt,
    progress: _Progress,
) -> None:
    given_up: set[str] = set()
    for session in sessions:
        left = todo[session.index]
        if not left or session.arm.name in given_up:
            continue
        try:
            runner = make_runner(session.arm)
            measure(session, left, runner, trials, display, interrupt)
            progress.measured += len(left)
        except ServerFailure as failure:
            _report_failure(failure, session.arm.name, display, progress)
            if failure.cause in _HOPELESS:
                display.note("The other arms would fail in the same way; the run ends here.")
                return
            if not failure.served:
                given_up.add(session.arm.name)  # it would not start the second time either


def _probe_forks(experiment: Experiment, plan: Plan, trials: Store, display: Display, interrupt: Interrupt) -> None:
    """Ask the plain target for its margins where a speculative arm forked and they are not known yet."""
    base = experiment.configs[experiment.baseline]
    session = next((session for session in plan.sessions if session.arm.name == experiment.baseline), None)
    if session is None or base.suite.temperature > 0:
        return
    entries, records = store.load(trials.run)
    limits: dict[str, int] = {}
    for result in lossless.check(records, experiment.baseline).values():
        for fork in result.forks:
            if fork.margin is None and fork.position is not None:
                limits[fork.prompt_id] = max(limits.get(fork.prompt_id, 0), fork.position + 1)
    entry = next((entry for entry in entries if entry.key in {trial.key for trial in session.trials}), None)
    if not limits or entry is None:
        return
    display.note(f"{len(limits)} prompts fork from the plain arm: asking the plain target how close its choice was")
    directory = trials.run / "probe"
    answers = probe(session, limits, make_runner(session.arm), directory, display, interrupt, entry.key)
    trials.extend(entry, answers)


def _requests(sessions: Sequence[ServerSession], todo: dict[int, list[Trial]]) -> int:
    return sum(
        len(session.arm.suite.prompts) + trial.load.warmup_requests
        for session in sessions
        for trial in todo[session.index]
    )


def _report_failure(failure: ServerFailure, place: str, display: Display, progress: _Progress) -> None:
    progress.failures.append((place, failure))
    display.note(f"{place}: {failure}", style="bold red")
    if failure.detail:
        display.note("  it said last:\n" + textwrap.indent(failure.detail, "    "))
    if failure.log:
        display.note(f"  log: {failure.log}")


def _write_setup(experiment: Experiment, plan: Plan, described: dict[str, object], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    config = mask(experiment.model_dump(mode="json"))
    (directory / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    (directory / "environment.json").write_text(json.dumps(mask(described), indent=1) + "\n")
    outline = {
        "key": plan.key,
        "missing": plan.missing,
        "sessions": [
            {
                "index": session.index,
                "arm": session.arm.name,
                "key": session.key,
                "server": mask(session.server),
                "trials": [
                    {"key": one.key, "repeat": one.repeat, "load": one.load.model_dump(), "position": one.position}
                    for one in session.trials
                ],
            }
            for session in plan.sessions
        ],
    }
    (directory / "plan.json").write_text(json.dumps(outline, indent=1) + "\n")


def _stopped(progress: _Progress, plan: Plan, directory: Path, console: Console) -> int:
    assert progress.interrupted is not None
    entries = store.entries(directory)
    _say(
        console,
        f"Stopped by {progress.interrupted}. The server is stopped and every record is kept in {directory}.\n"
        f"{len(entries)} of {len(plan.trials)} trials are finished; the same command measures the others only.",
        style="yellow",
    )
    return 128 + progress.interrupted.signum


def _show(
    experiment: Experiment,
    plan: Plan,
    directory: Path,
    described: dict[str, object],
    progress: _Progress,
    console: Console,
) -> int:
    """Summary, report, MLflow, table. The records are on disk: whatever fails here, the same command shows it again."""
    from orchestrator import report
    from orchestrator.report import deploy, table

    if not store.entries(directory):
        _say(console, f"Nothing was measured. Logs: {directory}", style="bold red")
        return 1
    result = _summarize(experiment, plan, directory, described, progress)
    write_summary(result, directory / "summary.json")
    report.write(result, directory)
    where, logged = _track(result, experiment, directory, console)
    console.print(table.render(result))
    for line in deploy.told(result):
        _say(console, line)
    _say(
        console,
        f"Report:  {directory / 'report.html'}\nRecords: {directory}" + (f"\nBrowse:  {where}" if where else ""),
    )
    return exit_code(result) or int(bool(progress.failures) or not logged)


def _summarize(
    experiment: Experiment, plan: Plan, directory: Path, described: dict[str, object], progress: _Progress
) -> Summary:
    from orchestrator.analysis import summary

    entries, records = store.load(directory)
    measured = {entry.server.arm for entry in entries}
    failed = {arm: str(failure) for arm, failure in progress.failures if arm not in measured}
    plan = replace(plan, missing={**plan.missing, **failed})
    gathered = facts.gather(experiment, plan, entries, progress.status, str(described["machine"]), described)
    return summary.summarize(records, gathered)


def _track(result: Summary, experiment: Experiment, directory: Path, console: Console) -> tuple[str | None, bool]:
    """(how to browse the result, whether all went well): an outage of MLflow costs neither the table nor a record."""
    if experiment.tracking.kind == "none":
        return None, True
    from orchestrator import tracking

    try:
        return tracking.log(result, experiment, directory), True
    except tracking.TrackingFailure as failure:
        _say(console, str(failure), style="bold red")
        return None, False


def _say(console: Console, text: str, style: str | None = None) -> None:
    # As it is: no markup in paths, no line breaks inside them.
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
