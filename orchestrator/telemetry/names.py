"""Figures of an arm's telemetry under the names that MLflow shows, grouped by what comes before the ``/``."""

from __future__ import annotations

from orchestrator.telemetry.pool import Usage

_GIB = 2**30


def figures(usage: Usage) -> dict[str, float | None]:
    """Name -> value; None where it is not known. docs/reference/telemetry.md has formulas and units."""
    return {
        "energy/joules": usage.energy_j,
        "energy/joules_per_output_token": usage.energy_per_token_j,
        "gpu/power_mean_w": usage.power_mean_w,
        "gpu/power_peak_w": usage.power_peak_w,
        "gpu/utilisation_mean": usage.utilisation_mean,
        "gpu/sm_clock_mean_mhz": usage.sm_mean_mhz,
        "gpu/sm_clock_low_mhz": usage.sm_low_mhz,
        "gpu/memory_clock_mean_mhz": usage.memory_clock_mean_mhz,
        "gpu/temperature_mean_c": usage.temperature_mean_c,
        "gpu/temperature_peak_c": usage.temperature_peak_c,
        "gpu/throttled_share": usage.throttled_share,
        "memory/mean_vram_gib": _gib(usage.vram_mean_bytes),
        "memory/peak_vram_used_gib": _gib(usage.vram_peak_bytes),
        "memory/peak_vram_server_gib": _gib(usage.vram_server_bytes),
        "memory/peak_vram_others_gib": _gib(usage.vram_other_bytes),
        "memory/mean_rss_gib": _gib(usage.rss_mean_bytes),
        "cpu/seconds": usage.cpu_s,
        "cpu/ms_per_output_token": None if usage.cpu_per_token_s is None else 1000 * usage.cpu_per_token_s,
        "cpu/cores_mean": usage.cpu_cores_mean,
        "cpu/cores_others_mean": usage.cpu_others_mean,
        "telemetry/sampler_core_share": usage.sampler_share,
        "telemetry/longest_gap_s": usage.longest_gap_s,
    }


def _gib(size: float | None) -> float | None:
    return None if size is None else size / _GIB
