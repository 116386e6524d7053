"""The command line: checks everything first, then hands the jobs to Hydra.

What is wrong with any comparison of a sweep is said before the first one starts. Exit codes: 2 when the configuration
is wrong and nothing was started; 1 for a sweep with a failed comparison; else what ``execute.run`` returns.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from orchestrator.config import usage
from orchestrator.config.names import ConfigError, nearest

CONFIG_WRONG = 2
INTERRUPTED = 130
_ANY_EXPERIMENT = ("name=log", '++arms.plain=["drafter=none"]')
"""Nothing of it is run: with an experiment, the configuration of ``action=log`` is checked as any other."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. HYDRA_FULL_ERROR=1 shows the traceback of a wrong configuration."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or a log in an old encoding: a "?" is better than no table.
            stream.reconfigure(errors="replace")
    if not arguments:
        print(usage.overview(), end="", file=sys.stderr)
        return CONFIG_WRONG
    if {"-h", "--help"} & set(arguments):
        print(usage.full(), end="")
        return 0
    try:
        _check_folder()
        return _main(_read(arguments))
    except ConfigError as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"error: {error}", file=sys.stderr)
        return CONFIG_WRONG
    except KeyboardInterrupt:
        print("\nStopped. What was measured is kept; the same command goes on from there.", file=sys.stderr)
        return INTERRUPTED


def _check_folder() -> None:
    try:
        Path.cwd()
    except OSError as problem:
        raise ConfigError(
            "", f"the working directory is not there any more ({problem.strerror})", hint="cd"
        ) from problem


@dataclass(frozen=True)
class _Command:
    flags: list[str]
    """For Hydra."""
    overrides: list[str]
    multirun: bool
    only_shows: bool
    """Hydra prints its config and does nothing else."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        flags = [flag for action in self._actions for flag in action.option_strings]
        unknown = message.rpartition(": ")[2].split()[0]
        raise ConfigError("", message, allowed=flags, nearest=nearest(unknown, flags))


def _read(arguments: Sequence[str]) -> _Command:
    parser = _Parser(prog="python -m orchestrator", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--config-dir")
    read = parser.parse_intermixed_args(arguments)
    flags = ["--multirun"] if read.multirun else []
    flags += ["--cfg", read.cfg] if read.cfg else []
    flags += ["--hydra-help"] if read.hydra_help else []
    overrides = list(read.overrides)
    if read.config_dir is not None:
        if not Path(read.config_dir).is_dir():
            raise ConfigError("--config-dir", f"there is no folder {read.config_dir}")
        # As an override, it reaches the arms, which are composed inside the job, as well.
        from orchestrator.config.overrides import quoted

        overrides.insert(0, f"hydra.searchpath=[{quoted(f'file://{Path(read.config_dir).absolute()}')}]")
    return _Command(flags, overrides, read.multirun, bool(read.cfg or read.hydra_help))


def _main(command: _Command) -> int:
    from orchestrator import job
    from orchestrator.config.compose import expand, hydra_settings, load
    from orchestrator.config.overrides import last_value, quoted
    from orchestrator.config.preset import place, serves_here
    from orchestrator.planning.hardware import gpus

    if last_value(command.overrides, "action") == "log" and not command.only_shows:
        if command.multirun:
            raise ConfigError("-m", "action=log takes one run_dir; the directory of a sweep holds all its comparisons")
        return job.log(load([*_ANY_EXPERIMENT, *command.overrides]))
    overrides, said = place(command.overrides, gpus)
    if said is not None:
        print(said, file=sys.stderr)
    if command.only_shows:
        return job.start([*command.flags, *overrides])
    points = expand(overrides) if command.multirun else [overrides]
    experiments = []
    for point in points:
        try:
            experiments.append(load(point))
            if experiments[-1].action == "run" and serves_here(point):
                job.refuse(experiments[-1])
        except ConfigError as error:
            swept = [text for text in point if text not in overrides]
            raise (error.within(" ".join(swept)) if swept else error) from error
    if experiments[0].action == "prepare":
        return max(job.prepare(experiment) for experiment in experiments)
    if experiments[0].action == "plan":
        for experiment in experiments:
            job.print_plan(experiment)
        return 0
    names = {experiment.name for experiment in experiments}
    folder = Path(experiments[0].output) / (names.pop() if len(names) == 1 else "sweep")
    stamp = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{uuid.uuid4().hex[:6]}"
    run, sweep = folder / stamp, folder / f"sweep-{stamp}"
    places = [f"hydra.run.dir={quoted(str(run))}", f"hydra.sweep.dir={quoted(str(sweep))}"]
    settings = hydra_settings([*places, *points[0]])
    directory = Path(settings.sweep.dir if command.multirun else settings.run.dir)
    code = job.start([*command.flags, *places, *overrides])
    if code or not command.multirun:
        return code or job.outcome(directory, None)
    return max(job.outcome(directory, len(points)), job.log_sweep(directory, experiments[0].tracking))
