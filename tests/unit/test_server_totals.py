"""The server's totals against the requests' counters, worked out by hand from the counts in each test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from orchestrator.measuring.records import RequestRecord
from orchestrator.measuring.server_totals import Reading, TrialTotals, check, counters, read, read_after
from tests import record_factory
from tests.record_factory import record

# As SGLang 0.5.16 writes them; the gauge and the histogram have similar names and must not be taken.
METRICS = """\
# HELP sglang:spec_verify_calls_total Total number of speculative verification calls.
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{engine_type="unified",model_name="/models/a b"} 5398.0
sglang:generation_tokens_total{engine_type="unified",model_name="/models/a b"} 12360.0
sglang:generation_tokens_histogram_sum{engine_type="unified",model_name="/models/a b"} 7.0
sglang:num_requests_total{engine_type="unified",model_name="/models/a b"} 26.0
sglang:cached_tokens_total{cache_source="device",engine_type="unified"} 2000.0
sglang:cached_tokens_total{cache_source="host",engine_type="unified"} 295.0
sglang:spec_accept_length{engine_type="unified",tp_rank="0"} 3.0
sglang:fwd_occupancy{engine_type="unified"} NaN
http_requests_total{endpoint="/health"} 4.0
"""


def request(**fields: Any) -> RequestRecord:
    """10 steps with 17 correct of 30 drafts, 28 output tokens: tau 2.7, committed 2.7."""
    defaults = {"completion_tokens": 28, "spec": record_factory.counters([2, 3, 1, 4], 30)}
    return record(**(defaults | fields))


def totals(steps: float, tokens: float, requests: float, *taus: float | None, interval: int = 0) -> TrialTotals:
    before = Reading(verify_steps=1000, output_tokens=5000, requests=70)
    after = Reading(
        verify_steps=1000 + steps, output_tokens=5000 + tokens, requests=70 + requests, rank_tau=list(taus),
        log_interval=interval,
    )  # fmt: skip
    return TrialTotals(before=before, after=after)


def test_counters_are_read_from_prometheus_text_and_summed_over_labels() -> None:
    assert counters(METRICS) == {
        "verify_steps": 5398.0, "output_tokens": 12360.0, "requests": 26.0, "cached_tokens": 2295.0,
    }  # fmt: skip
    assert counters("") == {}


def test_totals_that_agree_are_the_same_figures() -> None:
    found = check([([request(), request(prompt_id="p1")], totals(20, 56, 2, 2.7))])
    assert found is not None and found.disagreements == []
    assert (found.trials, found.ranks, found.tau) == (1, 1, pytest.approx(2.7))
    assert found.committed_per_step == found.committed_counted == pytest.approx(54 / 20)


def test_a_trial_without_readings_is_no_cross_check() -> None:
    assert check([]) is None
    silent = check([([request()], TrialTotals(before=Reading(), after=Reading()))])
    assert silent is not None
    assert (silent.tau, silent.committed_per_step, silent.disagreements) == (None, None, [])


def test_someone_else_on_the_server_is_a_disagreement() -> None:
    found = check([([request()], totals(30, 48, 2, 2.2))])
    assert found is not None
    steps, tokens, tau = found.disagreements
    assert "counted 30 verification steps over a trial whose requests report 10" in steps
    assert "counted 48 output tokens over a trial whose requests report 28" in tokens
    assert "/server_info says tau 2.200, the requests of the trial 2.700" in tau


def test_a_request_that_ended_badly_explains_more_on_the_server_and_never_less() -> None:
    lost = request(prompt_id="p1", outcome="timeout", e2e_s=None, spec=None)
    more = check([([request(), lost], totals(17, 40, 2, 2.5))])
    assert more is not None and more.disagreements == []
    less = check([([request(), lost], totals(8, 28, 1))])
    assert less is not None and "counted 8 verification steps" in less.disagreements[0]


def test_every_rank_counts_and_the_pooled_tau_must_lie_between_them() -> None:
    between = check([([request()], totals(10, 28, 1, 2.1, 3.3))])
    assert between is not None and between.disagreements == []
    assert (between.ranks, between.tau) == (2, pytest.approx(2.7))
    outside = check([([request()], totals(10, 28, 1, 3.1, 3.3))])
    assert outside is not None
    assert "tau 3.100 to 3.300 over 2 ranks, the requests of the trial 2.700" in outside.disagreements[0]


def test_a_rank_that_reports_nothing_is_left_out() -> None:
    found = check([([request()], totals(10, 28, 1, None, 2.7))])
    assert found is not None and (found.ranks, found.tau) == (1, pytest.approx(2.7))


def test_what_the_last_update_may_have_missed_is_allowed_for() -> None:
    # 40 passes between updates, one request at a time: up to 80 of 1000 steps, each of a window of 4, may be missed.
    long = request(completion_tokens=2701, spec=record_factory.counters([200, 300, 100, 400], 3000))
    near = check([([long], totals(1000, 2701, 1, 2.7 - 0.3, interval=40))])
    assert near is not None and near.disagreements == []
    far = check([([long], totals(1000, 2701, 1, 2.7 - 0.4, interval=40))])
    assert far is not None and len(far.disagreements) == 1
    exact = check([([long], totals(1000, 2701, 1, 2.69))])
    assert exact is not None and len(exact.disagreements) == 1, "a server that is always up to date has no excuse"


def test_a_plain_server_is_checked_by_its_tokens() -> None:
    plain = [record(), record(prompt_id="p1")]
    before, after = Reading(output_tokens=10, requests=3), Reading(output_tokens=18, requests=5, rank_tau=[None])
    found = check([(plain, TrialTotals(before=before, after=after))])
    assert found is not None
    assert (found.tau, found.committed_per_step, found.disagreements) == (None, None, [])
    found = check([(plain, TrialTotals(before=before, after=after.model_copy(update={"output_tokens": 30.0})))])
    assert found is not None and "counted 20 output tokens" in found.disagreements[0]


def test_requests_that_carry_no_counters_do_not_disagree_about_steps() -> None:
    silent = [request(spec=None), request(spec=None, prompt_id="p1")]
    found = check([(silent, totals(20, 56, 2, 2.7))])
    assert found is not None and found.disagreements == []
    found = check([(silent, totals(20, 80, 2, 2.7))])
    assert found is not None and len(found.disagreements) == 1 and "80 output tokens" in found.disagreements[0]
    found = check([([request(), request(spec=None, prompt_id="p1")], totals(20, 56, 2))])
    assert found is not None and "counted 20 verification steps" in found.disagreements[0]


def test_trials_are_pooled_by_their_steps() -> None:
    short = request(completion_tokens=9, spec=record_factory.counters([0, 0, 0, 2], 6))  # 2 steps, tau 4
    found = check([([request()], totals(10, 28, 1, 2.7)), ([short], totals(2, 9, 1, 4.0))])
    assert found is not None and found.disagreements == []
    assert found.tau == pytest.approx((10 * 2.7 + 2 * 4.0) / 12)
    assert found.committed_per_step == pytest.approx((27 + 8) / 12)


def test_a_real_server_counts_in_metrics_what_its_requests_report() -> None:
    """SGLang 0.5.16 with DFLASH on an H200: 25 requests, and /metrics after them. Before them there was one warm-up
    request of 8 tokens in 7 steps."""
    seen = [(511, 512)] * 4 + [(171, 512)] * (2 + 2 * 8) + [(103, 512)] * 2 + [(63, 64)]
    requests = [
        record(prompt_id=f"p{place}", completion_tokens=tokens, spec=record_factory.counters([steps], 15 * steps))
        for place, (steps, tokens) in enumerate(seen)
    ]
    before = Reading(verify_steps=7, output_tokens=8, requests=1)
    after = Reading(**counters(METRICS))
    assert (after.verify_steps, after.output_tokens, after.requests) == (5398, 12360, 26)
    found = check([(requests, TrialTotals(before=before, after=after))])
    assert found is not None and found.disagreements == []
    assert found.committed_per_step == found.committed_counted == pytest.approx((12352 - 25) / 5391)
    cold = check([(requests, TrialTotals(before=Reading(verify_steps=0, output_tokens=0, requests=0), after=after))])
    assert cold is not None and cold.disagreements == [], "one warm-up request in 25 is within the tolerance"
    lost = check([(requests[1:], TrialTotals(before=before, after=after))])
    assert lost is not None and len(lost.disagreements) == 2


async def _served(readings: list[str], info: dict[str, Any] | None, act: Any) -> Any:
    """Runs ``act(url)`` against a server that answers /metrics with the readings in order, then with the last."""
    left = list(readings)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=left.pop(0) if len(left) > 1 else left[0])

    async def server_info(_: web.Request) -> web.Response:
        return web.json_response(info)

    app = web.Application()
    if readings:
        app.router.add_get("/metrics", metrics)
    if info is not None:
        app.router.add_get("/server_info", server_info)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        return await act(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


def test_a_reading_takes_every_rank_and_what_is_missing_is_none() -> None:
    info = {"decode_log_interval": 40, "internal_states": [{"avg_spec_accept_length": 2.5}, {"other": 1}]}
    reading = asyncio.run(_served([METRICS], info, read))
    assert (reading.verify_steps, reading.rank_tau, reading.log_interval) == (5398.0, [2.5, None], 40)
    assert reading.prompt_tokens is None
    assert asyncio.run(_served([], None, read)) == Reading()
    assert asyncio.run(read("http://127.0.0.1:9")) == Reading()


def test_a_server_that_counts_a_request_late_is_waited_for() -> None:
    late = METRICS.replace(" 26.0", " 25.0")
    before = Reading(requests=24)
    reading = asyncio.run(_served([late, late, METRICS], {}, lambda url: read_after(url, before, 2)))
    assert reading.requests == 26
