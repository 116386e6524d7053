"""runner=auto: which preset a comparison takes, decided from the machine that will serve, before Hydra composes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.config.names import ConfigError
from orchestrator.config.overrides import last_value
from orchestrator.planning.hardware import Gpus

MEANS = {
    "embedded": "the small target on this project's own engine",
    "gpu": "the published target on SGLang",
}
_EMBEDDED = ("embedded", "docker_embedded")
_LAUNCHERS_HERE = (None, "basic", "joblib")


def place(overrides: Sequence[str], gpus: Callable[[], Gpus]) -> tuple[list[str], str | None]:
    """The overrides with the preset before the user's own, and a sentence that says so (None where the user chose).

    ``gpus`` is asked only where the machine decides. Raises ConfigError for a swept runner without a preset.
    """
    runner = last_value(overrides, "runner")
    rest = [text for text in overrides if text != "runner=auto"]
    if last_value(overrides, "preset") is not None:
        return rest, None
    if runner is not None and "," in runner:
        raise ConfigError(
            f"runner={runner}", "a sweep over runners needs a preset", allowed=[f"preset={name}" for name in MEANS]
        )
    preset, reason = _decide(runner, overrides, gpus)
    where = " in containers" if preset == "gpu" and runner in (None, "auto", "docker") else ""
    return [f"preset={preset}", *rest], f"{reason}: preset={preset} ({MEANS[preset]}{where})"


def serves_here(overrides: Sequence[str]) -> bool:
    """Whether jobs run on this machine, so that it can be asked what they will find."""
    return last_value(overrides, "hydra/launcher") in _LAUNCHERS_HERE


def _decide(runner: str | None, overrides: Sequence[str], gpus: Callable[[], Gpus]) -> tuple[str, str]:
    if runner not in (None, "auto"):
        return ("embedded" if runner in _EMBEDDED else "gpu"), f"runner={runner}"
    node = last_value(overrides, "node")
    # The machine that will serve cannot be asked from here; it was chosen for its GPU.
    if node not in (None, "local"):
        return "gpu", f"runner=auto, node={node}"
    if not serves_here(overrides):
        return "gpu", f"runner=auto, hydra/launcher={last_value(overrides, 'hydra/launcher')}"
    seen = gpus().names
    if seen:
        return "gpu", f"runner=auto: {', '.join(dict.fromkeys(seen))} is visible here"
    return "embedded", "runner=auto: no NVIDIA GPU is visible here"
