"""Several trials of one arm under one load as one: what they took of the machine, and per output token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from orchestrator.frozen import Frozen
from orchestrator.telemetry.window import GpuUsage, Spread, TrialUsage


class Usage(Frozen):
    """Figures over all GPUs of the server: memory and power are summed, clocks, utilisation and temperature are not.

    Means are weighted by the trials' lengths. None where it is not known.
    """

    trials: list[TrialUsage]
    energy_j: float | None
    """Of the trials whose energy is known."""
    energy_per_token_j: float | None
    """The same over their output tokens."""
    power_mean_w: float | None
    power_peak_w: float | None
    utilisation_mean: float | None
    sm_mean_mhz: float | None
    sm_low_mhz: float | None
    memory_clock_mean_mhz: float | None
    temperature_mean_c: float | None
    temperature_peak_c: float | None
    throttled_share: float | None
    """Of the GPU that throttled most."""
    throttled: list[str]
    """Its reasons, and those of the others."""
    vram_mean_bytes: float | None
    vram_peak_bytes: float | None
    """Used on the GPUs, by whomever."""
    vram_server_bytes: float | None
    """Peak of the server's own processes."""
    vram_other_bytes: float | None
    """Peak of processes that are not the server's."""
    vram_before_bytes: float | None
    """Used before the server started, at most."""
    rss_mean_bytes: float | None
    rss_peak_bytes: float | None
    cpu_s: float | None
    cpu_per_token_s: float | None
    cpu_cores_mean: float | None
    """CPU seconds of the server per second."""
    cpu_others_mean: float | None = None
    """Cores that others than the server and the client used; None where no trial knows it."""
    sampler_share: float | None
    """CPU seconds of the sampler per second: what the sampling itself took, as a share of one core."""
    samples: int
    longest_gap_s: float
    absent: str | None
    """Why there is less than was asked for."""


def pool(trials: Sequence[TrialUsage]) -> Usage | None:
    """The trials of one arm under one load; None where there is none."""
    if not trials:
        return None
    joules, joule_tokens, _ = _total(trials, lambda trial: trial.energy_j)
    cpu, cpu_tokens, cpu_seconds = _total(trials, lambda trial: trial.cpu_s)
    sampler, _, sampler_seconds = _total(trials, lambda trial: trial.sampler_cpu_s)
    gpus = [gpu for trial in trials for gpu in trial.gpus]

    def mean(of: Callable[[GpuUsage], Spread | None], over: Callable[[list[float]], float]) -> float | None:
        return _weighted((trial.seconds, _across(trial, lambda gpu: _mean(of(gpu)), over)) for trial in trials)

    def peak(of: Callable[[GpuUsage], Spread | None], over: Callable[[list[float]], float]) -> float | None:
        found = [_across(trial, lambda gpu: _high(of(gpu)), over) for trial in trials]
        return max((value for value in found if value is not None), default=None)

    shares = [gpu.throttled_share for gpu in gpus if gpu.throttled_share is not None]
    lows = [gpu.sm_mhz.low for gpu in gpus if gpu.sm_mhz]
    said = [trial.absent for trial in trials if trial.absent]
    return Usage(
        trials=list(trials),
        energy_j=joules,
        energy_per_token_j=_over(joules, joule_tokens),
        power_mean_w=mean(lambda gpu: gpu.power_w, math.fsum),
        power_peak_w=peak(lambda gpu: gpu.power_w, math.fsum),
        utilisation_mean=mean(lambda gpu: gpu.utilisation, _average),
        sm_mean_mhz=mean(lambda gpu: gpu.sm_mhz, _average),
        sm_low_mhz=min(lows, default=None),
        memory_clock_mean_mhz=mean(lambda gpu: gpu.memory_mhz, _average),
        temperature_mean_c=mean(lambda gpu: gpu.temperature_c, _average),
        temperature_peak_c=peak(lambda gpu: gpu.temperature_c, max),
        throttled_share=max(shares, default=None),
        throttled=sorted({reason for gpu in gpus for reason in gpu.throttled or {}}),
        vram_mean_bytes=mean(lambda gpu: gpu.used_bytes, math.fsum),
        vram_peak_bytes=peak(lambda gpu: gpu.used_bytes, math.fsum),
        vram_server_bytes=peak(lambda gpu: gpu.server_bytes, math.fsum),
        vram_other_bytes=peak(lambda gpu: gpu.other_bytes, math.fsum),
        vram_before_bytes=max((gpu.before_bytes for gpu in gpus if gpu.before_bytes is not None), default=None),
        rss_mean_bytes=_weighted((trial.seconds, _mean(trial.rss_bytes)) for trial in trials),
        rss_peak_bytes=max((trial.rss_bytes.high for trial in trials if trial.rss_bytes), default=None),
        cpu_s=cpu,
        cpu_per_token_s=_over(cpu, cpu_tokens),
        cpu_cores_mean=_over(cpu, cpu_seconds),
        cpu_others_mean=_weighted((trial.seconds, trial.others_cores) for trial in trials),
        sampler_share=_over(sampler, sampler_seconds),
        samples=sum(trial.samples for trial in trials),
        longest_gap_s=max(trial.longest_gap_s for trial in trials),
        absent=said[0] if said else None,
    )


def _total(
    trials: Iterable[TrialUsage], figure: Callable[[TrialUsage], float | None]
) -> tuple[float | None, int, float]:
    """(sum of a figure, output tokens, seconds) over the trials in which it is known."""
    known = [(value, trial) for trial in trials if (value := figure(trial)) is not None]
    total = math.fsum(value for value, _ in known) if known else None
    return total, sum(trial.output_tokens for _, trial in known), math.fsum(trial.seconds for _, trial in known)


def _across(
    trial: TrialUsage, figure: Callable[[GpuUsage], float | None], over: Callable[[list[float]], float]
) -> float | None:
    """One figure of all GPUs; None where one of them does not say."""
    found = [figure(gpu) for gpu in trial.gpus]
    known = [value for value in found if value is not None]
    return over(known) if known and len(known) == len(found) else None


def _weighted(pairs: Iterable[tuple[float, float | None]]) -> float | None:
    known = [(weight, value) for weight, value in pairs if value is not None]
    total = math.fsum(weight for weight, _ in known)
    return math.fsum(weight * value for weight, value in known) / total if total else None


def _average(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _over(value: float | None, count: float) -> float | None:
    return value / count if value is not None and count else None


def _mean(spread: Spread | None) -> float | None:
    return spread.mean if spread else None


def _high(spread: Spread | None) -> float | None:
    return spread.high if spread else None
