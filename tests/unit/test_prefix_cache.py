from __future__ import annotations

from orchestrator.analysis.prefix_cache import beyond_the_template, unequal
from orchestrator.measuring.records import RequestRecord
from tests.record_factory import record


def request(prompt: str, sent: float, tokens: int, cached: int, **fields: object) -> RequestRecord:
    return record(prompt_id=prompt, sent_at=sent, prompt_tokens=tokens, cached_tokens=cached, **fields)


def test_a_common_beginning_is_no_hit() -> None:
    trial = [request("a", 0, 30, 0), request("b", 1, 12, 11), request("c", 2, 80, 11)]
    assert beyond_the_template(trial) == []


def test_the_first_request_of_a_trial_finds_nothing() -> None:
    trial = [request("b", 1, 12, 4), request("a", 0, 30, 4)]
    assert [one.prompt_id for one in beyond_the_template(trial)] == ["a"]


def test_more_than_the_shortest_prompt_cannot_be_a_common_beginning() -> None:
    # A real server that had seen the prompt before: 255 of 256 tokens.
    trial = [request("a", 0, 30, 0), request("b", 1, 12, 3), request("c", 2, 256, 255)]
    assert [one.prompt_id for one in beyond_the_template(trial)] == ["c"]


def test_every_trial_begins_with_an_empty_cache() -> None:
    trials = [request("a", 0, 30, 0), request("a", 0, 30, 29, trial_key="t1", repeat=1)]
    assert [one.trial_key for one in beyond_the_template(trials)] == ["t1"]


def test_arms_that_found_different_amounts_are_told_over_what_they_share() -> None:
    plain = [request("a", 0, 100, 90), request("b", 1, 100, 90), request("c", 2, 100, 0)]
    spec = [request("a", 0, 100, 0, arm="x"), request("b", 1, 100, 90, arm="x")]
    assert unequal({"plain": plain, "x": spec}) == {"plain": 180, "x": 90}
    assert unequal({"plain": plain, "x": [spec[1]]}) == {}, "only prompts that both have"
    near = [request("a", 0, 100, 89, arm="x"), request("b", 1, 100, 90, arm="x")]
    assert unequal({"plain": plain, "x": near}) == {}, "within 1% of the prompt"
    assert unequal({}) == {}
