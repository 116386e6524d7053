"""``action=prepare``: has images and weights where the servers will run, and says what fits and what a run will cost.

Starts no server. What is absent is said arm by arm; one arm's trouble does not keep the others from being prepared.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from orchestrator.paths import local_path
from orchestrator.planning import hardware, preflight
from orchestrator.planning.plan import Plan
from orchestrator.planning.plan_text import cost
from orchestrator.schema import ArmConfig, DockerRunner, Experiment, ProcessRunner
from runners.base import ServerFailure
from runners.hugging_face import Found, found, looking

if TYPE_CHECKING:
    from runners.docker.connect import Connection

GIB = 2**30


@dataclass
class Prepared:
    """What an arm has, in lines for a person, and what it lacks."""

    lines: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)


def prepare(experiment: Experiment, plan: Plan, say: Callable[[str], None] = print) -> int:
    """Prints what was done; 0 when every arm can run, else 1."""
    lacking = preflight.missing_arms(experiment)
    complete = True
    with _Places() as places:
        for name, arm in experiment.configs.items():
            say(f"{name}: {arm.drafter.name} for {arm.target.name}, runner={arm.runner.kind}, node={arm.node.kind}")
            done = _arm(arm, Path(experiment.output), places)
            missing = [*([lacking[name]] if name in lacking else []), *done.lacks]
            for line in done.lines:
                say(f"  {line}")
            for line in missing:
                say(f"  MISSING {line}")
            complete &= not missing
    say(f"\n{cost(plan)}")
    say("Every arm can run." if complete else "Not every arm can run: see MISSING.")
    return int(not complete)


def _arm(arm: ArmConfig, output: Path, places: _Places) -> Prepared:
    done = Prepared()
    if arm.runner.kind == "attach":
        done.lines.append(f"server   {arm.runner.url}: someone else's, nothing to prepare")
        return done
    if isinstance(arm.runner, DockerRunner) and not _image(arm, arm.runner, output, places, done):
        return done
    target = _weights("target", arm, places, done)
    draft = _weights("drafter", arm, places, done) if arm.server["drafter"].get("path") else None
    if arm.gpus:
        whole = target is not None and (draft is not None or not arm.server["drafter"].get("path"))
        told, fits = _memory(arm, target, draft) if whole else ("unknown until the weights are here", True)
        (done.lines if fits else done.lacks).append(f"memory   {told}" if fits else f"memory: {told}")
    return done


def _image(arm: ArmConfig, runner: DockerRunner, output: Path, places: _Places, done: Prepared) -> bool:
    from runners.docker.before import lock_image

    image = arm.server["runner"]["image"]
    if image is None:  # said already, of the drafter that brings none
        return False
    try:
        digest = lock_image(places.connection(arm).client, image, runner.pull, output, _progress)
    except ServerFailure as failure:
        done.lacks.append(f"image: {failure}")
        return False
    done.lines.append(f"image    {image} = {digest}")
    if arm.load.client == "node":
        try:
            digest = lock_image(places.connection(arm).client, arm.load.image, runner.pull, output, _progress)
        except ServerFailure as failure:
            done.lacks.append(f"image of the load client: {failure}")
        else:
            done.lines.append(f"client   {arm.load.image} = {digest}")
    return True


def _weights(part: Literal["target", "drafter"], arm: ArmConfig, places: _Places, done: Prepared) -> Found | None:
    path, revision = arm.server[part]["path"], arm.server[part].get("revision")
    try:
        model = places.look(arm, path, revision)
    except ServerFailure as failure:
        done.lacks.append(f"{part}: {path}: {failure}")
        return None
    at = f" at {model.commit}" if model.commit else ""
    done.lines.append(f"{part:8} {path}{at}: {model.weights_bytes / GIB:.2f} GiB in {model.folder}")
    if model.commit and revision is None:
        key = "target.revision" if part == "target" else f"drafter.checkpoints.{arm.target.name}.revision"
        done.lines.append(f"         newest today; to keep it: {key}={model.commit}")
    return model


def _memory(arm: ArmConfig, target: Found | None, draft: Found | None) -> tuple[str, bool]:
    """What is known of it, and whether the arm fits as far as that is known."""
    from runners.sglang.config import ServerConfig
    from runners.sglang.memory_estimate import Checkpoint, estimate, free_gib

    assert target is not None
    # A node elsewhere is not asked for its GPUs here: a run does, before anything starts.
    mine = hardware.gpus().names if arm.node.kind == "local" else ()
    gpu = arm.node.expect_gpu or next(iter(mine), None)
    free = free_gib(gpu) if gpu else None
    if free is None:
        return f"unknown for {gpu or 'a GPU that nobody named'}: node.expect_gpu=H100", True
    checkpoints = [Checkpoint(one.weights_bytes, one.config) for one in (target, draft) if one is not None]
    if not all(one.config for one in checkpoints):
        return "unknown: a checkpoint has no config.json", True
    room = estimate(ServerConfig.model_validate(arm.server), checkpoints[0], (*checkpoints[1:], None)[0], free)
    if room is None:
        return "left to SGLang (target.mem_fraction_static)", True
    return f"{gpu}, by estimate: {room.told(arm.target.context_length)}", not room.short


class _Places:
    """Where servers will run, asked once for each thing. A context manager: leaving it closes what it opened."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._connections: dict[str, Connection] = {}
        self._found: dict[tuple[str, ...], Found | ServerFailure] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    def connection(self, arm: ArmConfig) -> Connection:
        """Raises ServerFailure."""
        from runners.docker.connect import connect

        node = arm.node.model_dump_json()
        if node not in self._connections:
            self._connections[node] = self._stack.enter_context(connect(arm.node.model_dump(mode="json")))
        return self._connections[node]

    def look(self, arm: ArmConfig, path: str, revision: str | None) -> Found:
        """The model, fetched if need be. Raises ServerFailure."""
        runner = arm.runner
        if arm.engine == "embedded":
            from runners.embedded import fetch

            folder = str(local_path(path) or fetch(path, _progress))
            return self._once(looking([sys.executable], folder, None, online=False), _here)
        if isinstance(runner, ProcessRunner):
            from runners.choose import interpreter

            return self._once(looking(interpreter(runner.command), _local(path), revision, online=True), _here)
        from runners.docker.fetch import run
        from runners.sglang.software import PYTHON

        assert isinstance(runner, DockerRunner)
        image, cache, node = arm.server["runner"]["image"], runner.hf_cache, arm.node.model_dump(mode="json")
        connection, path = self.connection(arm), _local(path)
        folders = [path] if path.startswith("/") else []
        words = looking(PYTHON, path, revision, online=True)
        return self._once(
            words,
            lambda words: run(connection, node, image, words, cache, folders, _progress, runner.network),
            str(node),
        )

    def _once(self, words: Sequence[str], run: Callable[[Sequence[str]], str], place: str = "") -> Found:
        key = (place, *words)
        if key not in self._found:
            try:
                self._found[key] = found(run(words))
            except ServerFailure as failure:
                self._found[key] = failure
        known = self._found[key]
        if isinstance(known, ServerFailure):
            raise known
        return known


def _here(words: Sequence[str]) -> str:
    try:  # its standard error is progress, for the terminal
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    except OSError as problem:
        raise ServerFailure("weights", f"{words[0]} cannot be run: {problem.strerror}") from problem
    if done.returncode != 0:
        raise ServerFailure("weights", "it cannot be fetched: see the error above (gated weights need HF_TOKEN)")
    return done.stdout


def _local(path: str) -> str:
    return str(local_path(path) or path)


def _progress(text: str) -> None:
    if text.strip():
        print(text, file=sys.stderr, flush=True)
