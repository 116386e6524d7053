"""Hydra's and OmegaConf's errors, told with what is allowed, the nearest valid name and what to type."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException

from orchestrator.config.names import ConfigError, nearest
from orchestrator.config.overrides import Override
from orchestrator.paths import conf_dir

Compose = Callable[[Sequence[str]], DictConfig]


def explain(error: Exception, overrides: Sequence[str], loader: ConfigLoader, compose: Compose) -> ConfigError:
    """``error`` as a ConfigError. ``compose`` composes the config without the faulty override, to name its keys."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        return _no_such_option(error, overrides)
    if isinstance(error, OverrideParseException):
        return _unreadable(error, overrides, loader)
    if isinstance(error, MissingMandatoryValue):
        return _no_value(error, loader)
    if isinstance(error, ConfigCompositionException):
        return _not_composed(error, overrides, loader, compose)
    if isinstance(error, InterpolationResolutionError):
        return ConfigError(error.full_key or "", _first_line(error), hint="a literal ${ is written \\${")
    if isinstance(error, yaml.YAMLError):
        return ConfigError("", f"a config file is not YAML: {error}")
    if isinstance(error, OmegaConfBaseException):
        return ConfigError(error.full_key or "", _first_line(error))
    return _not_a_choice(overrides, loader) or ConfigError("", _first_line(error))


def no_experiment(loader: ConfigLoader) -> ConfigError:
    """What to type when no experiment was chosen."""
    names = options(loader, "experiment")
    return ConfigError(
        "+experiment",
        "choose an experiment",
        allowed=[f"+experiment={name}" for name in names],
        hint="python -m orchestrator --help shows what can be chosen",
    )


def options(loader: ConfigLoader, group: str) -> list[str]:
    """Option names of a group; empty when there is no such group."""
    return sorted(loader.get_group_options(group, ObjectType.CONFIG))


def groups(loader: ConfigLoader) -> list[str]:
    """Names of the config groups, Hydra's own left out."""
    return sorted(set(loader.list_groups("")) - {"hydra"})


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _no_such_option(error: MissingConfigException, overrides: Sequence[str]) -> ConfigError:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    typed = [o for o in map(Override.of, overrides) if o.key == group]
    prefix = typed[-1].prefix if typed else ""
    allowed = sorted(error.options or ())
    near = nearest(name, allowed)
    return ConfigError(
        f"{prefix}{group}={name}",
        f"there is no {group} '{name}'",
        allowed=allowed,
        nearest=f"{prefix}{group}={near}" if near else None,
    )


def _not_a_choice(overrides: Sequence[str], loader: ConfigLoader) -> ConfigError | None:
    """A group override whose value is no name at all (``drafter=3``): Hydra raises a bare ValueError for it."""
    for override in map(Override.of, overrides):
        if override.key in groups(loader) and override.value not in (names := options(loader, override.key)):
            return ConfigError(override.text, f"there is no {override.key} '{override.value}'", allowed=names)
    return None


def _unreadable(error: OverrideParseException, overrides: Sequence[str], loader: ConfigLoader) -> ConfigError:
    text = str(error.override)
    # Hydra's parser names the rest of the line in some cases; the override as typed is the one it is part of.
    text = text if text in overrides else next((typed for typed in overrides if text in typed), text)
    near = None
    if "=" not in text and not text.startswith("~"):
        if text not in groups(loader):
            near = nearest(text, options(loader, "experiment"))  # the name alone is what one types first
        hint = "an override is key=value; a key is removed with ~key"
    elif re.search(r"[\[{,][^\"']*=", text.partition("=")[2]):
        hint = 'quote overrides inside a list: \'+arms.NAME=["drafter=dspine","verification=dynamic"]\''
    else:
        hint = "quote a value with special characters, once for the shell and once for Hydra: 'key=\"a b, c\"'"
    nearest_text = f"+experiment={near}" if near else None
    return ConfigError(text, "cannot be read as an override", nearest=nearest_text, hint=hint)


def _no_value(error: MissingMandatoryValue, loader: ConfigLoader) -> ConfigError:
    key = error.full_key or str(error.key)
    if key == "name":
        return no_experiment(loader)
    return ConfigError(key, "has to be given", hint=f"{key}=<value>")


def _not_composed(
    error: ConfigCompositionException, overrides: Sequence[str], loader: ConfigLoader, compose: Compose
) -> ConfigError:
    text = str(error)
    if match := re.search(r"Could not override '([^']+)'", text):
        key = match.group(1).partition("@")[0]
        typed = next((o for o in map(Override.of, overrides) if o.key == key), Override.of(key))
        return _unknown(typed, overrides, loader, compose)
    if match := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return ConfigError(
            match.group(1),
            "gives several values",
            hint="add -m to run each of them as a comparison of its own, or write a list: key=[value1,value2]",
        )
    if match := re.search(r"Could not delete (?:'([^']+)'|from config\. '([^']+)')", text):
        return ConfigError(f"~{match.group(1) or match.group(2)}", "cannot be removed: it is not there")
    if isinstance(error.__cause__, OmegaConfBaseException) and error.__cause__.full_key:
        return ConfigError(error.__cause__.full_key, _first_line(error.__cause__))
    return ConfigError("", _first_line(error))


def _unknown(typed: Override, overrides: Sequence[str], loader: ConfigLoader, compose: Compose) -> ConfigError:
    key, value = typed.key, typed.value or ""
    if key in groups(loader):  # a group outside the defaults list: experiment
        names = options(loader, key)
        best = value if value in names else nearest(value, names)
        return ConfigError(
            typed.text,
            f"{key} is added with a +",
            allowed=[f"+{key}={name}" for name in names],
            nearest=f"+{key}={best}" if best else None,
        )
    if typed.of_hydra:
        return ConfigError(
            typed.text, "Hydra has no such setting", hint="python -m orchestrator --cfg hydra lists them"
        )
    parts = key.split(".")
    if len(parts) == 1:
        known = [*groups(loader), *map(str, compose([]).keys())]
        near = nearest(key, known)
        allowed: list[str] = list(dict.fromkeys(known))
        return ConfigError(
            typed.text,
            f"there is no key '{key}'",
            allowed=allowed,
            nearest=f"{'+' if near == 'experiment' else ''}{near}={value}" if near else None,
        )
    return _unknown_inside(typed, parts, overrides, loader, compose)


def _unknown_inside(
    typed: Override, parts: list[str], overrides: Sequence[str], loader: ConfigLoader, compose: Compose
) -> ConfigError:
    choices = [text for text in overrides if Override.of(text).is_choice or Override.of(text).key in groups(loader)]
    node: Any = compose(choices)
    depth = 0
    while depth < len(parts) - 1 and OmegaConf.is_dict(node) and parts[depth] in node:
        node = node._get_node(parts[depth])
        depth += 1
    name, parents = parts[depth], parts[:depth]
    if not OmegaConf.is_dict(node):
        return ConfigError(typed.text, f"{'.'.join(parents)} is a single value, it has no key '{name}'")
    allowed = [str(key) for key in node]
    if not allowed or parents[-1:] in (["server_args"], ["env"], ["arms"], ["mounts"]):
        return ConfigError(typed.text, "is not there yet", hint=f"a new one is added with a +: +{typed.text}")
    near = nearest(name, allowed)
    elsewhere = _options_with(name, parents)
    rest = parts[depth + 1 :]
    return ConfigError(
        typed.text,
        f"{'.'.join(parents)} has no key '{name}'",
        allowed=allowed,
        nearest=f"{'.'.join([*parents, near, *rest])}={typed.value or ''}" if near else None,
        hint=f"it is a key of {' and '.join(elsewhere)}" if elsewhere else None,
    )


def _options_with(name: str, parents: list[str]) -> list[str]:
    """Options of the same group whose file has this key: ``runner.url`` is a key of ``runner=attach``."""
    if len(parents) != 1:
        return []
    files = sorted((conf_dir() / parents[0]).glob("*.yaml"))
    return [f"{parents[0]}={file.stem}" for file in files if name in (yaml.safe_load(file.read_text()) or {})]
