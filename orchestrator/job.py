"""What one Hydra job does: one comparison; and how jobs are started and what became of them.

Hydra's own way of telling (an exception at the end of a sweep, of the first failed job only; nothing at all from some
launchers) hides failures. Each job writes what became of it into its folder instead, and the command reads that.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from orchestrator.analysis import fairness
from orchestrator.config.compose import CONFIG_NAME, VERSION_BASE, load
from orchestrator.config.masking import mask_command, mask_text
from orchestrator.config.names import ConfigError, nearest
from orchestrator.config.overrides import Override
from orchestrator.paths import conf_dir, write_whole
from orchestrator.planning import identity, image_lock, preflight
from orchestrator.planning.hardware import Machine
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.plan_text import render
from orchestrator.schema import Experiment
from orchestrator.schema.place import Tracking

OUTCOME = "outcome.json"
_SIGNALLED = 128
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_SHOWN = 5
"""Run directories that are named where one is missing."""


def start(arguments: Sequence[str]) -> int:
    """Hands the jobs to Hydra. Returns 0 unless Hydra itself failed or a signal ended the run."""
    import hydra

    program, sys.argv = sys.argv, [sys.argv[0], *arguments]
    try:
        hydra.main(version_base=VERSION_BASE, config_path=str(conf_dir()), config_name=CONFIG_NAME)(task)()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = program
    return 0


def task(_: DictConfig) -> int:
    """One comparison, inside a Hydra job. Returns its exit code; SystemExit ends a whole sweep after a signal."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    settings = HydraConfig.get()
    directory = Path(settings.runtime.output_dir)
    overrides = [str(text) for text in settings.overrides.task]
    # --config-dir is one of Hydra's own overrides; the arms need it as well.
    overrides += [text for text in settings.overrides.hydra if text.startswith("hydra.searchpath=")]
    shown = mask_command(overrides)
    sweep = Path(settings.sweep.dir).name if settings.mode == RunMode.MULTIRUN else None
    if sweep is not None:
        _mask_multirun(Path(settings.sweep.dir))
        print(f"\ncomparison {settings.job.num}: {_told(shown)}", flush=True)
    code, error = _measure(overrides, directory, sweep)
    result = {"code": code, "error": error, "overrides": shown}
    with contextlib.suppress(OSError):  # a full disk, which was told; a sweep counts the comparison as lost
        (directory / OUTCOME).write_text(json.dumps(result, indent=1) + "\n")
    if code >= _SIGNALLED:
        raise SystemExit(code)
    return code


def _mask_multirun(directory: Path) -> None:
    """Hydra writes the overrides of a sweep down before its first job, as they were typed."""
    file = directory / "multirun.yaml"
    with contextlib.suppress(OSError, ValueError):  # not there yet, where jobs are placed elsewhere
        text = file.read_text()
        if (masked := mask_text(text)) != text:
            write_whole(file, masked)


def _measure(overrides: Sequence[str], directory: Path, sweep: str | None) -> tuple[int, str | None]:
    """Exit code, and in a few words what went wrong; a failed comparison must not end the others of a sweep."""
    from orchestrator.analysis.verdict import REFUSED
    from orchestrator.measuring import execute
    from runners.docker import before

    try:
        experiment = load(overrides, sweep)
        refuse(experiment)
        machines = before.settle(experiment.configs.values(), Path(experiment.output))
        code = execute.run(experiment, planned(experiment, machines), directory, machines)
        refused = "measured, and the comparison is refused: see its findings"
        return code, None if code == 0 else refused if code == REFUSED else f"ended with exit code {code}"
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2, str(error)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            told = f"no room left on the disk of {directory}; trials that had ended are kept"
            print(f"error: {told}\n  hint: make room, then the same command measures what is left", file=sys.stderr)
            return 1, told
        traceback.print_exc()
        return 1, f"{type(error).__name__}: {error}"


def outcome(directory: Path, comparisons: int | None) -> int:
    """Exit code of a run in ``directory``, or of a sweep of so many comparisons, which is then told: one table of all,
    also as ``sweep.md``, and what failed."""
    if comparisons is None:
        return int(_read(directory / OUTCOME)["code"])
    files = sorted(directory.glob(f"**/{OUTCOME}"), key=lambda file: _number(file.parent))
    results = [_read(file) for file in files]
    failed = [result for result in results if result["code"] != 0]
    lost = comparisons - len(results)
    told = [f"sweep {directory.name}: {comparisons - lost - len(failed)} of {comparisons} comparisons went well"]
    told += [f"  failed: {_told(result['overrides'])}: {result['error']}" for result in failed]
    if lost:
        told.append(f"  {lost} left no result in {directory}")
    _show_sweep([file.parent for file in files], directory, told)
    return 1 if failed or lost else 0


def _show_sweep(runs: Sequence[Path], directory: Path, told: Sequence[str]) -> None:
    """The table over all comparisons that have a result, on the terminal and in ``sweep.md``, and how they went."""
    from orchestrator.analysis.results import read_summary
    from orchestrator.report import sweep

    summaries = [read_summary(run / "summary.json") for run in runs if (run / "summary.json").is_file()]
    if summaries:
        file = directory / "sweep.md"
        file.write_text("\n".join([sweep.markdown(summaries), "", *(f"- {line.strip()}" for line in told), ""]))
        print(f"\n{sweep.text(summaries)}\nTable:   {file}")
    print("\n" + "\n".join(told))


def log(experiment: Experiment) -> int:
    """Tells MLflow of the run or sweep in ``run_dir``. Raises ConfigError; returns the exit code."""
    if experiment.tracking.kind == "none":
        raise ConfigError("tracking=none", "leaves action=log nothing to log to", hint="tracking=mlflow")
    directory = _run_dir(experiment)
    from orchestrator import tracking

    return _tell_mlflow(tracking.replay, directory, experiment.tracking.uri)


def log_sweep(directory: Path, where: Tracking) -> int:
    """Tells MLflow of a sweep as a whole, after its comparisons; returns the exit code."""
    if where.kind == "none" or not _holds_results(directory):  # what failed was said before
        return 0
    from orchestrator import tracking

    return _tell_mlflow(tracking.log_sweep, directory, where.uri)


def _tell_mlflow(tell: Callable[[Path, str], str], directory: Path, uri: str) -> int:
    from orchestrator.tracking import TrackingFailure

    try:
        print(f"Browse:  {tell(directory, uri)}")
    except TrackingFailure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


def _run_dir(experiment: Experiment) -> Path:
    known = _known_runs(Path(experiment.output))
    given = experiment.run_dir
    if given is None:
        problem = "action=log needs the directory of a run or of a sweep"
    elif not Path(given).is_dir():
        problem = f"there is no folder {given}"
    elif not _holds_results(Path(given)):
        problem = f"{given} holds no summary.json: it is no run that ended, and no sweep of such runs"
    else:
        return Path(given)
    hint = None if known else f"no run has ended under output={experiment.output}"
    raise ConfigError("run_dir", problem, allowed=known[:_SHOWN], nearest=nearest(given or "", known), hint=hint)


def _known_runs(output: Path) -> list[str]:
    """Directories of runs and sweeps that ended, the newest first: their names begin with the time."""
    found = [directory for directory in output.glob("*/*/") if _holds_results(directory)]
    return [str(directory) for directory in sorted(found, key=lambda d: d.name.removeprefix("sweep-"), reverse=True)]


def _holds_results(directory: Path) -> bool:
    return (directory / "summary.json").is_file() or any(directory.glob("*/summary.json"))


def planned(experiment: Experiment, machines: Mapping[str, Machine] | None = None) -> Plan:
    """The plan, without the arms that cannot run where that is allowed. ``machines``: the nodes that were asked."""
    missing = preflight.missing_arms(experiment) if experiment.allow_missing_arms else {}
    images = image_lock.read(Path(experiment.output))
    return make_plan(experiment, identity.gather(experiment.configs.values(), images, machines), missing)


def refuse(experiment: Experiment) -> None:
    """Raises ConfigError for what cannot run here."""
    preflight.check_machine(experiment)
    fairness.refuse(experiment)
    preflight.refuse_missing(experiment, preflight.missing_arms(experiment))


def prepare(experiment: Experiment) -> int:
    """Images and weights in place, or what is missing; returns the exit code."""
    from orchestrator.prepare import prepare as have

    return have(experiment, planned(experiment))


def print_plan(experiment: Experiment) -> None:
    plan = planned(experiment)
    measured = _measured(plan, Path(experiment.output) / "index") if experiment.reuse else ()
    print(render(experiment, plan, preflight.missing_arms(experiment), measured))


def _measured(plan: Plan, index: Path) -> set[str]:
    """Keys of the trials that a run would take over, by the rule of the run itself."""
    from orchestrator.measuring.store import Store

    if not index.is_dir():  # a plan writes nothing, and opening a store would
        return set()
    trials = Store(run=index, index=index)
    return {trial.key for trial in plan.trials if trials.find(trial.key)}


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {"code": 1, "error": "left no result", "overrides": []}
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):  # it could not be written
        return {"code": 1, "error": f"{file} could not be written", "overrides": []}


def _number(folder: Path) -> tuple[int, str]:
    return (int(folder.name) if folder.name.isdigit() else sys.maxsize, folder.name)


def _told(overrides: Sequence[str]) -> str:
    return " ".join(text for text in overrides if not Override.of(text).of_hydra)
