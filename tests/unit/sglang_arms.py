"""Server configs of SGLang arms from the files in conf/, put together without Hydra: there are hundreds of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from orchestrator.config.server_config import check_combination
from orchestrator.paths import conf_dir
from orchestrator.schema import ArmConfig
from runners.sglang.config import ServerConfig
from runners.sglang.facts import Violation
from runners.sglang.rules import violations
from runners.sglang.version import of
from tests import plan_factory

LOGS = Path(__file__).parent / "sglang_logs"
NEWEST = "0.5.23"
DRAFTERS = sorted(file.stem for file in (conf_dir() / "drafter").glob("*.yaml"))
SMALL = ("target=qwen3_8b",)
"""Qwen3-8B: attention only, no recurrent state."""
TARGETS = ("qwen3_8_27b", "qwen3_8b")
"""Shipped targets that are served on a GPU node."""
_GPU = ("target=qwen3_8_27b", "attention=fa3", "verification=static", "runner=docker", "node=local")
_NEEDS = {
    "dflash": SMALL,
    "eagle3": SMALL,
    "standalone": SMALL,
    "dspine": ("drafter.plugin.image=dspine:1", "drafter.checkpoints.qwen3_8_27b.path=/models/dspine"),
}
"""What a drafter needs beside its name on a GPU node: the target that it has weights for, or the vendor's."""


def targets(drafter: str) -> list[str]:
    """Those of `TARGETS` that a shipped drafter can draft for: it has a checkpoint for them, or needs none."""
    checkpoints = _file("drafter", drafter)["checkpoints"]
    return [target for target in TARGETS if checkpoints is None or target in checkpoints]


def server(*overrides: str, drafter: str = "none", version: str = NEWEST) -> dict[str, Any]:
    """The server config of an arm as ``preset=gpu`` gives it, with overrides in the command line's grammar."""
    chosen = [
        *_GPU,
        f"drafter={drafter}",
        f"runner.image=lmsysorg/sglang:v{version}",
        *_NEEDS.get(drafter, ()),
        *overrides,
    ]
    groups = {
        choice.partition("=")[0]: choice.partition("=")[2] for choice in chosen if "." not in choice.split("=")[0]
    }
    config = OmegaConf.create({group: _file(group, option) for group, option in groups.items()})
    for choice in chosen:
        key, _, value = choice.removeprefix("+").partition("=")
        if "." in key:
            OmegaConf.update(config, key, yaml.safe_load(value), merge=True)
    suite, load = plan_factory.suite(), plan_factory.load()
    plain = {"seed": 0, "server_args": {}, "env": {}}
    fields = {**plain, **dict(OmegaConf.to_container(config)), "name": "arm", "overrides": ()}  # type: ignore[arg-type]
    arm = ArmConfig.model_validate({**fields, "suite": suite, "load": load})
    check_combination(arm)
    return arm.server


def config(*overrides: str, drafter: str = "none") -> ServerConfig:
    return ServerConfig.model_validate(server(*overrides, drafter=drafter))


def refused(
    *overrides: str,
    drafter: str,
    version: str = NEWEST,
    temperature: float = 0.0,
    target: dict[str, Any] | None = None,
    draft: dict[str, Any] | None = None,
) -> list[Violation]:
    return violations(config(*overrides, drafter=drafter), of(version), temperature, target, draft)


def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


def server_info(name: str) -> dict[str, Any]:
    return dict(json.loads((LOGS / f"server_info-{name}.json").read_text(encoding="utf-8")))


def _file(group: str, option: str) -> dict[str, Any]:
    return dict(yaml.safe_load((conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8")))


PAIRS = tuple((drafter, target) for drafter in DRAFTERS for target in targets(drafter))
"""Every shipped drafter with every target of a GPU node that it can draft for."""
