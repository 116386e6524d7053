"""The edge to Hydra: overrides of the command line -> a checked Experiment with every arm resolved.

An arm is composed from the base config, the experiment, the command line and, last, its own overrides, so that an arm's
own choice wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from orchestrator.config.hydra_errors import explain as explain_hydra
from orchestrator.config.names import ConfigError, ConfigErrors
from orchestrator.config.overrides import Override, check_arm, check_taken
from orchestrator.config.server_config import check_combination
from orchestrator.paths import conf_dir
from orchestrator.planning.identity import content_hash
from orchestrator.schema import ARM_KEYS, ArmConfig, Experiment
from orchestrator.schema.errors import explain as explain_schema

CONFIG_NAME = "config"
VERSION_BASE = "1.3"
_FAULTS = (HydraException, OmegaConfBaseException, ValueError, AttributeError, AssertionError, yaml.YAMLError)
"""What Hydra and OmegaConf raise for a wrong configuration; some of it is not wrapped by them."""
_DERIVED = ("configs", "command_line", "sweep")
"""Fields of Experiment that no config file has."""


def load(overrides: Sequence[str], sweep: str | None = None) -> Experiment:
    """The experiment that these overrides describe. Raises ConfigError for everything that is wrong with it."""
    return _load(tuple(overrides)).model_copy(update={"sweep": sweep})


@cache
def _load(overrides: tuple[str, ...]) -> Experiment:
    # Kept, so that a job runs what was checked before the first one started, and need not compose it again.
    with hydra():
        base = _resolved(overrides)
        raw_arms = base.get("arms")
        if not isinstance(raw_arms, dict) or not raw_arms:
            raise ConfigError("arms", "the experiment has no arms", hint='+arms.plain=["drafter=none"]')
        composed: dict[str, dict[str, Any]] = {}
        for name, own in raw_arms.items():
            if not isinstance(own, list) or not all(isinstance(text, str) for text in own):
                raise ConfigError(f"arms.{name}", f"{own!r} is not a list of overrides", hint="[drafter=none]")
            check_arm(name, own)
            composed[name] = _resolved([*overrides, *own], arm=name)
    experiment = _validated(base, composed, overrides)
    _check_combinations(experiment)
    check_taken(experiment)
    _check_distinct(experiment)
    return experiment


def hydra_settings(overrides: Sequence[str]) -> DictConfig:
    """The ``hydra`` node for these overrides: where a job or a sweep writes, which launcher and sweeper it has."""
    with hydra():
        return _composed(overrides, with_hydra=True).hydra


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The jobs of a multirun as its basic sweeper makes them: one list of overrides each. Raises ConfigError."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    with hydra() as loader:
        try:
            parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
            plain = [override.input_line or "" for override in parsed if not override.is_sweep_override()]
            params = _composed(plain, with_hydra=True).hydra.sweeper.get("params") or {}
            swept = OverridesParser.create(config_loader=loader).parse_overrides(
                [f"{key}={value}" for key, value in params.items()]
            )
            (jobs,) = BasicSweeper.split_arguments(swept + parsed, None)
        except _FAULTS as error:
            raise explain_hydra(error, overrides, loader, _composed) from error
    return jobs


@contextmanager
def hydra() -> Iterator[ConfigLoader]:
    """Hydra over the shipped configuration; inside a Hydra job, the one that runs it."""
    if GlobalHydra.instance().is_initialized():
        yield GlobalHydra.instance().config_loader()
    else:
        with initialize_config_dir(str(conf_dir()), job_name="orchestrator", version_base=VERSION_BASE):
            yield GlobalHydra.instance().config_loader()


def _composed(overrides: Sequence[str], with_hydra: bool = False) -> DictConfig:
    return hydra_compose(CONFIG_NAME, overrides=list(overrides), return_hydra_config=with_hydra)


def _resolved(overrides: Sequence[str], arm: str | None = None) -> dict[str, Any]:
    """Plain data of a composed config. Raises ConfigError; it names the arm whose overrides were composed."""
    loader = GlobalHydra.instance().config_loader()
    try:
        config = OmegaConf.to_container(_composed(overrides), resolve=True, throw_on_missing=True)
    except _FAULTS as error:
        told = explain_hydra(error, overrides, loader, _composed)
        raise told if arm is None else told.within(f"arm {arm}") from error
    assert isinstance(config, dict)
    return {str(key): value for key, value in config.items()}


def _validated(base: dict[str, Any], composed: dict[str, dict[str, Any]], overrides: Sequence[str]) -> Experiment:
    """Raises ConfigError; a fault that every arm has is told once, without an arm's name."""
    whole = {key: value for key, value in base.items() if key not in ARM_KEYS}
    by_arm: dict[str, list[ConfigError]] = {}
    configs: dict[str, ArmConfig] = {}
    for name, data in composed.items():
        own = {key: data[key] for key in ARM_KEYS if key in data}
        own |= {"name": name, "overrides": base["arms"][name]}
        try:
            configs[name] = ArmConfig.model_validate(own)
        except ValidationError as error:
            by_arm[name] = explain_schema(error, ArmConfig, own)
    errors = _merged(by_arm, len(composed))
    derived = {
        "configs": configs,
        "command_line": [text for text in overrides if not Override.of(text).of_hydra],
    }
    try:
        experiment = Experiment.model_validate({**whole, **derived})
    except ValidationError as error:
        errors += [_with_arm_keys(fault) for fault in explain_schema(error, Experiment, {**whole, **derived})]
    if errors:
        raise _together(errors)
    return experiment


def _check_combinations(experiment: Experiment) -> None:
    by_arm: dict[str, list[ConfigError]] = {}
    for name, arm in experiment.configs.items():
        try:
            check_combination(arm)
        except ConfigError as error:
            by_arm[name] = [error]
    if by_arm:
        raise _together(_merged(by_arm, len(experiment.configs)))


def _together(errors: list[ConfigError]) -> ConfigError:
    return errors[0] if len(errors) == 1 else ConfigErrors(errors)


def _merged(by_arm: dict[str, list[ConfigError]], arms: int) -> list[ConfigError]:
    merged: list[ConfigError] = []
    for name, errors in by_arm.items():
        for error in errors:
            sharing = sum(error.text() in [other.text() for other in others] for others in by_arm.values())
            if sharing < arms:
                merged.append(error.within(f"arm {name}"))
            elif error.text() not in [other.text() for other in merged]:
                merged.append(error)
    return merged


def _with_arm_keys(error: ConfigError) -> ConfigError:
    """At the top, the keys of the arms are known keys, too, and the derived ones are not."""
    if "." in error.key or not error.allowed or "arms" not in error.allowed:
        return error
    allowed = [*ARM_KEYS, *(name for name in error.allowed if name not in _DERIVED)]
    return ConfigError.unknown(error.key, allowed)


def _check_distinct(experiment: Experiment) -> None:
    seen: dict[str, str] = {}
    for name, arm in experiment.configs.items():
        key = content_hash([arm.server, arm.suite.sent, arm.load.model_dump(mode="json")])
        if key in seen:
            raise ConfigError(
                f"arms {seen[key]} and {name}",
                "are the same: nothing that they use differs",
                hint=f"drop one ('~arms.{name}'), or drop the override that makes them equal: "
                + (" ".join(experiment.command_line) or "none was given"),
            )
        seen[key] = name
