"""``/metrics``: the few SGLang metrics this engine has, as Prometheus text (exposition format 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runners.engine.scheduler import Scheduler

_SECONDS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0)
_GAPS = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.035,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.4,
    0.8,
    1.0,
    2.0,
)


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class RequestTimes:
    """Latency histograms; observed by the HTTP loop alone."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(_SECONDS)
        self.inter_token_latency = Histogram(_GAPS)
        self.e2e_latency = Histogram(_SECONDS)

    def families(self) -> list[tuple[str, str, Histogram]]:
        return [
            ("time_to_first_token_seconds", "Time to first token in seconds.", self.time_to_first_token),
            (
                "inter_token_latency_seconds",
                "Inter-token latency in seconds, a chunk's gap shared by its tokens.",
                self.inter_token_latency,
            ),
            ("e2e_request_latency_seconds", "End-to-end request latency in seconds.", self.e2e_latency),
        ]


def render(model_name: str, scheduler: Scheduler, throughput: float, times: RequestTimes) -> str:
    """Counters count from the server's start; the two gauges of acceptance from the last flush."""
    total, recent = scheduler.totals, scheduler.recent
    steps, proposed = recent.verify_ct, recent.proposed
    numbers = [
        ("prompt_tokens_total", "counter", "Number of prefill tokens processed.", total.prompt_tokens),
        ("generation_tokens_total", "counter", "Number of generation tokens processed.", total.output_tokens),
        ("num_requests_total", "counter", "Number of requests processed.", total.requests),
        ("spec_verify_calls_total", "counter", "Number of speculative verification steps.", total.verify_ct),
        ("num_running_reqs", "gauge", "The number of running requests.", len(scheduler.running)),
        ("num_queue_reqs", "gauge", "The number of requests in the waiting queue.", len(scheduler.waiting)),
        ("gen_throughput", "gauge", "The generation throughput (token/s).", throughput),
        (
            "spec_accept_length",
            "gauge",
            "Mean acceptance length, bonus token included.",
            1 + recent.correct / steps if steps else 0.0,
        ),
        (
            "spec_accept_rate",
            "gauge",
            "Accepted drafts / proposed drafts.",
            recent.correct / proposed if proposed else 0.0,
        ),
    ]
    escaped = model_name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'engine_type="unified",model_name="{escaped}"'
    lines: list[str] = []
    for name, kind, about, value in numbers:
        lines += [f"# HELP sglang:{name} {about}", f"# TYPE sglang:{name} {kind}"]
        lines.append(f"sglang:{name}{{{labels}}} {float(value)}")
    for name, about, histogram in times.families():
        lines += [f"# HELP sglang:{name} {about}", f"# TYPE sglang:{name} histogram"]
        seen = 0
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            seen += count
            lines.append(f'sglang:{name}_bucket{{{labels},le="{bound}"}} {float(seen)}')
        lines += [f"sglang:{name}_sum{{{labels}}} {histogram.sum}", f"sglang:{name}_count{{{labels}}} {float(seen)}"]
    return "\n".join(lines) + "\n"
