"""Figures of one comparison with their intervals; docs/explanation/statistics.md says why they are made like this.

The unit of evidence is the prompt, not the request: at temperature 0 a second run of a prompt repeats its text and its
acceptance, so it adds timing and nothing else. What a second server start adds is a term of its own (`restarts`).
benchmarks/statistics measures how often these intervals hold a known truth.
"""

from orchestrator.stats.drift import drift_over_run, drifts
from orchestrator.stats.intervals import LEVEL, POWER, Estimate, clustered_median, mean_interval, ratio_of_sums
from orchestrator.stats.observation import Observation
from orchestrator.stats.paired import PairedRatio, paired_ratio, start_weights
from orchestrator.stats.restarts import Restarts, between_starts

__all__ = [
    "LEVEL",
    "POWER",
    "Estimate",
    "Observation",
    "PairedRatio",
    "Restarts",
    "between_starts",
    "clustered_median",
    "drift_over_run",
    "drifts",
    "mean_interval",
    "paired_ratio",
    "ratio_of_sums",
    "start_weights",
]
