from __future__ import annotations

from typing import Any

import pytest

from orchestrator.analysis.served import Capacity, accepts_loosely, capacity, says_drafter, simulated, wrong_drafter

# Cut down from what SGLang 0.5.16 reports: a hybrid target whose state pool allows fewer requests than were asked for.
IDENTITY: dict[str, Any] = {
    "max_running_requests": 48, "max_total_num_tokens": 399592, "speculative_algorithm": "DFLASH",
    "speculative_draft_model_path": "/models/drafts/qwen-dflash", "speculative_draft_model_revision": "main",
    "speculative_num_draft_tokens": 16, "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
    "internal_states": [
        {"memory_usage": {"weight": 50.2, "token_capacity": 399592}, "effective_max_running_requests_per_dp": 9}
    ],
}  # fmt: skip


def server(**drafter: Any) -> dict[str, Any]:
    defaults = {"algorithm": "DFLASH", "verify_window": 16, "path": "/drafts/qwen-dflash", "revision": None}
    return {"drafter": defaults | drafter}


def test_room_is_what_the_server_really_has_and_not_what_was_asked_for() -> None:
    assert capacity(IDENTITY) == Capacity(tokens=399592, requests=9)


def test_room_is_summed_over_data_parallel_ranks() -> None:
    two = IDENTITY | {"internal_states": IDENTITY["internal_states"] * 2}
    assert capacity(two) == Capacity(tokens=2 * 399592, requests=18)


def test_room_that_only_the_top_level_tells_counts_too() -> None:
    assert capacity({"max_total_num_tokens": 100, "internal_states": [{}, {}]}) == Capacity(tokens=200, requests=None)
    assert capacity({"version": "0"}) is None


def test_the_drafter_that_was_asked_for_is_recognised_where_it_is_mounted() -> None:
    assert wrong_drafter(server(), IDENTITY) == []
    assert wrong_drafter(server(algorithm="dflash"), IDENTITY) == [], "SGLang writes algorithms in capitals"
    assert wrong_drafter(server(path=None), IDENTITY) == [], "one that the target's own checkpoint holds"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"algorithm": "DSPINE"}, "speculative_algorithm is DFLASH, asked for was DSPINE"),
        ({"algorithm": None}, "speculative_algorithm is DFLASH, asked for was None"),
        ({"verify_window": 8}, "speculative_num_draft_tokens is 16, asked for was 8"),
        ({"path": "/drafts/other"}, "speculative_draft_model_path is /models/drafts/qwen-dflash, asked for was"),
        ({"path": "z-lab/qwen-dflash"}, "speculative_draft_model_path is"),
        ({"revision": "abc"}, "speculative_draft_model_revision is main, asked for was abc"),
    ],
)
def test_another_drafter_is_told(asked: dict[str, Any], told: str) -> None:
    (problem,) = wrong_drafter(server(**asked), IDENTITY)
    assert problem.startswith(told)


def test_a_server_that_says_nothing_is_not_wrong_and_not_proven() -> None:
    assert wrong_drafter(server(), {"version": "0"}) == []
    assert not says_drafter({"version": "0"}) and says_drafter(IDENTITY)


def test_loose_thresholds_are_seen_whatever_the_configuration_says() -> None:
    assert not accepts_loosely(IDENTITY)
    assert accepts_loosely(IDENTITY | {"speculative_accept_threshold_single": 0.3})
    assert accepts_loosely(IDENTITY | {"speculative_accept_threshold_acc": 0.9})
    plain = IDENTITY | {"speculative_algorithm": None, "speculative_accept_threshold_single": 0.3}
    assert not accepts_loosely(plain), "without speculation nothing is accepted"
    assert not accepts_loosely({})


def test_made_up_acceptance_is_seen() -> None:
    assert simulated({"env": {"SGLANG_SIMULATE_ACC_LEN": "3.5"}}) == "3.5"
    assert simulated({"env": {"SGLANG_SIMULATE_ACC_LEN": "-1"}}) is None, "SGLang's own off"
    assert simulated({"env": {}}) is None and simulated({}) is None
