"""What cannot run, said before anything is started."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from orchestrator.config.names import ConfigError
from orchestrator.paths import local_path
from orchestrator.planning import gpu_choice, hardware
from orchestrator.planning.identity import installed_sglang
from orchestrator.schema import ArmConfig, Experiment
from orchestrator.schema.place import AttachRunner, EmbeddedRunner, ProcessRunner, Runner

_SQLITE = "sqlite:///"
_SGLANG_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def missing_arms(experiment: Experiment) -> dict[str, str]:
    """Arm -> what it lacks, for each arm that cannot run."""
    found = {name: _lacks(arm) for name, arm in experiment.configs.items()}
    return {name: reason for name, reason in found.items() if reason is not None}


def refuse_missing(experiment: Experiment, missing: dict[str, str]) -> None:
    """Raises ConfigError when arms are missing and that was not allowed, or when nothing is left to compare with."""
    if not missing:
        return
    told = "\n".join(f"  {arm}: {reason}" for arm, reason in missing.items())
    if experiment.baseline in missing:
        raise ConfigError("", f"the baseline cannot run, so there is nothing to compare with:\n{told}")
    if len(missing) == len(experiment.arms):
        raise ConfigError("", f"no arm can run:\n{told}")
    if not experiment.allow_missing_arms:
        raise ConfigError(
            "",
            f"{len(missing)} of {len(experiment.arms)} arms cannot run:\n{told}",
            hint="allow_missing_arms=true leaves them out and shows the gap in the report",
        )


def check_machine(experiment: Experiment) -> None:
    """Raises ConfigError where the runners that were chosen are not to be had, or the folders for results not to be
    written: at run, not at plan."""
    check_folders(experiment)
    for arm in experiment.configs.values():
        _check_runner(arm.runner, arm.server.get("env", {}))
        if arm.node.kind == "local" and arm.runner.kind != "attach":
            gpu_choice.check(arm, hardware.gpus())
    from runners.docker import before

    before.refuse(experiment.configs.values())


def _check_runner(runner: Runner, env: Mapping[str, str]) -> None:
    """``env``: variables that the arm's server gets beside those of this process."""
    if isinstance(runner, ProcessRunner) and (why := _without_sglang(runner.command, env)) is not None:
        raise ConfigError(
            f"runner.command={list(runner.command)}",
            why,
            hint="install SGLang here, or give the command of the environment that has it: "
            "runner.command=[/path/to/python,-m,sglang.launch_server]",
        )
    if isinstance(runner, EmbeddedRunner) and find_spec("torch") is None:
        raise ConfigError(
            "runner=embedded",
            "the embedded engine needs torch, which is not installed",
            hint="pip install -e '.[embedded]'",
        )
    if isinstance(runner, AttachRunner):
        from runners import attach

        if (why := attach.unreachable(runner.url)) is not None:
            raise ConfigError(f"runner.url={runner.url}", f"no server answers there ({why})", hint="start it first")


def _without_sglang(command: tuple[str, ...], env: Mapping[str, str]) -> str | None:
    """Why a command cannot serve with SGLang; None where it can."""
    if shutil.which(command[0]) is None:
        return f"there is no program {command[0]} on this machine"
    from runners.choose import interpreter

    without = f"its interpreter {interpreter(command)[0]} has no package sglang"
    try:
        return None if "sglang" in installed_sglang(command, tuple(sorted(env.items()))) else without
    except subprocess.CalledProcessError:
        return without
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError) as problem:
        return f"its interpreter cannot be run: {problem}"


def check_folders(experiment: Experiment) -> None:
    """Raises ConfigError where results could not be written, which else is told when all was measured."""
    why = _unwritable(Path(experiment.output))
    if "${" in experiment.output:  # escaped by the user, but Hydra reads the name of a job's folder twice
        why = "Hydra would replace what begins with ${"
    if why is not None:
        raise ConfigError(f"output={experiment.output}", f"results cannot be written there: {why}")
    tracking = experiment.tracking
    if tracking.kind == "none" or not tracking.uri.startswith(_SQLITE):
        return
    # A path may come with options (?timeout=30); :memory: and an empty one are no file.
    database = Path(tracking.uri.removeprefix(_SQLITE).partition("?")[0])
    if database.name in ("", ":memory:"):
        return
    why = _unwritable(database.parent)  # a journal and the artifacts lie beside the file
    if why is None and database.is_dir():
        why = f"{database} is a folder"
    if why is None and database.exists() and not os.access(database, os.W_OK):
        why = f"no permission to write {database}"
    if why is not None:
        raise ConfigError(
            f"tracking.uri={tracking.uri}",
            f"MLflow's file cannot be written there: {why}",
            hint="tracking.uri=sqlite:////<absolute path>, or tracking=none",
        )


def _unwritable(folder: Path) -> str | None:
    """Why nothing can be written to a folder that may not be there yet; None where it can.

    It is tried, in the nearest folder that is there: permissions alone say nothing of root, of a file system that is
    read-only, or of one such as /proc.
    """
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not there.is_dir():
            return f"{there} is a file"
        with tempfile.TemporaryDirectory(dir=there, prefix=".writable-"):
            return None
    except OSError as error:
        return f"{error.strerror or error} ({folder})"


def _lacks(arm: ArmConfig) -> str | None:
    lacks = _target_lacks(arm) or _drafter_lacks(arm)
    return "; also ".join([*([lacks] if lacks else []), *_sglang_refuses(arm)]) or None


def _sglang_refuses(arm: ArmConfig) -> list[str]:
    """Start-up rules of SGLang that the arm breaks, those included that it says only minutes later."""
    if arm.engine == "embedded" or arm.runner.kind == "attach":
        return []
    from runners.sglang import planned

    return planned.refusals(arm.server, arm.suite.temperature)


def _target_lacks(arm: ArmConfig) -> str | None:
    path, local = arm.target.path, local_path(arm.target.path)
    if local is not None and not _lies_here(arm):
        return None
    if local is not None and not local.exists():
        return f"target.path={path}: there is no such folder"
    if local is not None and local.is_dir() and not (local / "config.json").is_file():
        return f"target.path={path}: the folder holds no config.json, so it is no model's"
    if arm.engine == "embedded" and local is None and "/" in path:
        return (
            f"target.path={path}: the embedded engine fetches nothing by this name; give a folder (target=hf_folder), "
            "or take a GPU node (preset=gpu)"
        )
    return None


def _lies_here(arm: ArmConfig) -> bool:
    """Whether the folders that an arm names are those of this machine, so that they can be looked at."""
    return arm.engine == "embedded" or (arm.node.kind == "local" and arm.runner.kind != "attach")


def _drafter_lacks(arm: ArmConfig) -> str | None:
    drafter = arm.drafter
    if not drafter.speculates:
        return None
    if arm.engine == "embedded" and drafter.embedded is None:
        return f"drafter={drafter.name}: the embedded engine does not have it; it needs SGLang (runner=docker)"
    try:
        checkpoint = drafter.checkpoint(arm.target.name)
    except ConfigError as error:
        return f"{error.key}: {error.problem}; it has weights for {', '.join(error.allowed)}"
    plugin = drafter.plugin if arm.runner.kind == "docker" and arm.engine == "sglang" else None
    lacks = {}
    if plugin is not None and plugin.image is None:
        lacks["drafter.plugin.image=<tag>"] = "no image with the vendor's code"
    if checkpoint is not None and checkpoint.path is None and not checkpoint.built_in:
        where = f"drafter.checkpoints.{arm.target.name}.path=<folder or id>"
        lacks[where] = f"no public weights for target={arm.target.name}"
    if lacks:
        words = ",".join(f'"{text}"' for text in (*arm.overrides, *lacks))
        named = f"'arms.{arm.name}=[{words}]'"
        return f"drafter={drafter.name}: {' and '.join(lacks.values())}; name what there is in the arm: {named}"
    if checkpoint is None or checkpoint.path is None:
        return None
    local = local_path(checkpoint.path)
    if local is None:
        if arm.engine == "embedded":
            return f"drafter={drafter.name}: the embedded engine needs a folder, not the name {checkpoint.path}"
        return None
    if not _lies_here(arm):
        return None
    missing = [] if (local / "config.json").is_file() else ["config.json"]
    if (weights := _weights_missing(arm, local)) is not None:
        missing.append(weights)
    return f"drafter={drafter.name}: {_join(missing)} missing in {_short(local)}" if missing else None


def _weights_missing(arm: ArmConfig, folder: Path) -> str | None:
    """Weights that a server would look for in a folder and not find. SGLang takes them in several files and of several
    kinds, and none where it makes them up (``load-format: dummy``)."""
    if arm.engine == "embedded":
        return None if (folder / "model.safetensors").is_file() else "model.safetensors"
    args = arm.server["server_args"]
    if args.get("load-format") == "dummy" or any(any(folder.glob(kind)) for kind in _SGLANG_WEIGHTS):
        return None
    return f"weights ({', '.join(_SGLANG_WEIGHTS)})"


def _join(names: list[str]) -> str:
    return " and ".join(names) + (" is" if len(names) == 1 else " are")


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
