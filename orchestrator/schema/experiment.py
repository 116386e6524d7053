"""One comparison: its arms, each resolved to what it serves and sends, and how they are put in order."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from orchestrator.config.names import nearest
from orchestrator.findings.catalogue import CATALOGUE, ERRORS
from orchestrator.schema.base import Env, Flags, Model, Name, Repeats, Seed, Strings
from orchestrator.schema.place import AttachRunner, DockerRunner, Engine, Node, Runner, Tracking
from orchestrator.schema.server import Attention, Drafter, Target, Verification
from orchestrator.schema.suite import FEW_PROMPTS, Load, Suite


class ArmConfig(Model):
    """What one arm serves and sends, resolved."""

    name: Name
    overrides: Strings
    """The arm's own overrides, as written in the experiment."""
    target: Target
    drafter: Drafter
    attention: Attention
    verification: Verification
    suite: Suite
    load: Load
    runner: Runner
    node: Node
    seed: Seed
    """The server's random seed."""
    server_args: Flags
    env: Env

    @property
    def engine(self) -> Engine:
        """The software that serves, wherever it runs."""
        if isinstance(self.runner, DockerRunner | AttachRunner):
            return self.runner.engine
        return "embedded" if self.runner.kind == "embedded" else "sglang"

    @property
    def chosen_gpus(self) -> tuple[int | str, ...]:
        """Indices or UUIDs of the node's GPUs that its server is given; () for one that serves on the processor."""
        if self.engine == "embedded":
            return ()
        return tuple(range(self.target.tp_size)) if self.node.gpus is None else self.node.gpus

    @property
    def gpus(self) -> int:
        """GPUs that its server takes; 0 on a CPU, and of someone else's server."""
        on_cpu = not self.chosen_gpus or self.attention.backend == "intel_amx" or self.runner.kind == "attach"
        return 0 if on_cpu else self.target.tp_size

    @property
    def server(self) -> dict[str, Any]:
        """The server config: only what this arm's server uses, plain JSON data (docs/reference/server_config.md)."""
        from orchestrator.config.server_config import server_config

        return server_config(self)


ARM_KEYS = tuple(name for name in ArmConfig.model_fields if name not in ("name", "overrides"))
"""Top-level config keys that an arm may choose for itself; the others concern the whole comparison."""

ARM_GROUPS = tuple(name for name in ARM_KEYS if name not in ("seed", "server_args", "env"))
"""Those of them that are config groups."""

_SHARED = ("suite", "load")
"""Arm keys that say what is sent: pairs are formed over them, so that no comparison is one between two of them."""

VARYING = tuple(name for name in ARM_KEYS if name not in _SHARED)
"""What ``varies`` may name, with their parts."""


class Stop(Model):
    """When a comparison has enough repeats."""

    rule: Literal["fixed", "ci_width"]
    """``fixed``: after the suite's repeats. ``ci_width``: ABBA rounds are added while an interval is wide."""
    width: Annotated[float, Field(gt=0, lt=1)]
    """Longer arm of the 95% interval of a speedup, as a share of it, that is narrow enough."""
    max_repeats: Annotated[Repeats, Field(ge=2)]
    """The most repeats, the suite's own included."""

    @property
    def told(self) -> str:
        return self.rule if self.rule == "fixed" else f"ci_width {self.width:g}, at most {self.max_repeats} repeats"


class Experiment(Model):
    """One comparison. Ratios are formed inside it only."""

    name: Name
    description: str
    arms: Annotated[dict[Name, Strings], Field(min_length=1)]
    """Arm -> its overrides; the order is the order of measurement."""
    configs: dict[Name, ArmConfig]
    """Arm -> resolved config, in the order of ``arms``."""
    baseline: Name
    """The arm that speedups and losslessness refer to."""
    varies: Strings
    """Config keys that may differ between arms; what else differs is a finding. None is of ``suite`` or ``load``:
    answers are compared prompt by prompt, under one load."""
    allow: Strings = ()
    """Findings of severity error that are known and accepted: they refuse nothing then."""
    order: Literal["abba", "once"]
    """``abba``: whole server sessions forwards, then backwards; ``once``: one start per arm, drift uncontrolled."""
    stop: Stop = Stop(rule="fixed", width=0.05, max_repeats=8)
    action: Literal["run", "plan", "prepare", "log"]
    run_dir: str | None = None
    """What ``action=log`` logs: the directory of a comparison or of a sweep."""
    reuse: bool = True
    """Trials that an earlier run measured are taken over; False: everything is measured anew."""
    output: str
    """Root folder of results; what is measured is found again under it."""
    allow_missing_arms: bool
    tracking: Tracking
    command_line: Strings = ()
    """Overrides of the user, the preset included, without hydra's own."""
    sweep: str | None = None
    """Tag shared by the comparisons of one multirun; None outside a multirun."""

    @field_validator("varies")
    @classmethod
    def _keys_of_an_arm(cls, varies: tuple[str, ...]) -> tuple[str, ...]:
        for key in varies:
            top = key.partition(".")[0]
            if top in _SHARED:
                raise ValueError(
                    f"'{key}' cannot vary: arms are compared prompt by prompt, under one load, so suite and load "
                    f"are the same in all of them; a sweep makes one comparison per value: -m {key}=VALUE1,VALUE2"
                )
            if top not in VARYING:
                near = nearest(top, VARYING)
                raise ValueError(
                    f"'{key}' is not a key that arms can differ in; allowed: {', '.join(VARYING)} and their parts"
                    + (f"; nearest: {near}" if near else "")
                )
        return varies

    @field_validator("allow")
    @classmethod
    def _names_of_errors(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        for code in allow:
            if code not in ERRORS:
                near = nearest(code, ERRORS)
                known = "is a finding that refuses nothing" if code in CATALOGUE else "is not a finding"
                raise ValueError(
                    f"'{code}' {known}; allowed: {', '.join(ERRORS)}" + (f"; nearest: {near}" if near else "")
                )
        return allow

    @model_validator(mode="after")
    def _run_dir_is_what_is_logged(self) -> Self:
        if self.run_dir is not None and self.action != "log":
            raise ValueError(f"run_dir: belongs to action=log; action={self.action} does not use it")
        return self

    @model_validator(mode="after")
    def _loads_can_be_reached(self) -> Self:
        for name, arm in self.configs.items():
            most, prompts = max(arm.load.concurrency or (1,)), len(arm.suite.prompts)
            if most > prompts:
                raise ValueError(
                    f"load.concurrency: {most} requests are never in flight with suite={arm.suite.name}, of which a "
                    f"pass has {prompts} (arm {name}); allowed: 1 to {prompts}"
                )
        return self

    @model_validator(mode="after")
    def _network_can_be_reached(self) -> Self:
        for name, arm in self.configs.items():
            if not isinstance(arm.runner, DockerRunner) or arm.runner.network == "bridge":
                continue
            if arm.node.kind == "tls":
                raise ValueError(
                    f"runner.network: host puts the server of arm {name} on the node's loopback, which node=tls does "
                    "not reach; allowed: bridge, or node=ssh"
                )
            if arm.node.kind == "ssh" and arm.runner.port is None:
                raise ValueError(
                    f"runner.network: host on another machine needs runner.port (arm {name}): which of its ports are "
                    "free is not known here"
                )
        return self

    @model_validator(mode="after")
    def _client_has_a_container(self) -> Self:
        for name, arm in self.configs.items():
            if arm.load.client == "node" and arm.runner.kind != "docker":
                raise ValueError(
                    f"load.client: node puts the client into a container beside the server's, and arm {name} has "
                    f"runner={arm.runner.kind}; allowed: here, or runner=docker or docker_embedded"
                )
        return self

    @model_validator(mode="after")
    def _rounds_are_whole(self) -> Self:
        if self.stop.rule == "fixed":
            return self
        repeats = {arm.suite.repeats for arm in self.configs.values()}
        if self.order != "abba":
            raise ValueError(f"stop.rule: ci_width adds ABBA rounds; it needs order=abba, not order={self.order}")
        if len(repeats) > 1 or any(count % 2 for count in repeats):
            told = ", ".join(map(str, sorted(repeats)))
            raise ValueError(f"stop.rule: ci_width needs an even suite.repeats, the same in every arm, not {told}")
        fewest = min((len(arm.suite.prompts) for arm in self.configs.values()), default=FEW_PROMPTS)
        if fewest < FEW_PROMPTS:
            raise ValueError(
                f"stop.rule: ci_width needs {FEW_PROMPTS} prompts or more, the suite has {fewest}: with so few an "
                "interval is often narrow by luck"
            )
        if self.stop.max_repeats < max(repeats, default=0):
            raise ValueError(
                f"stop.max_repeats: {self.stop.max_repeats} is below suite.repeats, which is {max(repeats)}"
            )
        return self

    @model_validator(mode="after")
    def _baseline_is_an_arm(self) -> Self:
        if self.baseline not in self.arms:
            near = nearest(self.baseline, self.arms)
            raise ValueError(
                f"baseline: '{self.baseline}' is not an arm; arms: {', '.join(self.arms)}"
                + (f"; nearest: {near}" if near else "")
            )
        config = self.configs.get(self.baseline)
        if config is not None and config.drafter.speculates:
            plain = [name for name, arm in self.configs.items() if not arm.drafter.speculates]
            raise ValueError(
                f"baseline: '{self.baseline}' drafts (drafter={config.drafter.name}); speedups and losslessness refer "
                "to decoding without a drafter, so the baseline is an arm with drafter=none"
                + (f"; allowed: {', '.join(plain)}" if plain else ': +arms.NAME=["drafter=none"] baseline=NAME')
            )
        return self
