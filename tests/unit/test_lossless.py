from __future__ import annotations

import pytest

from orchestrator.lossless import NEAR_TIE, check, first_divergence
from orchestrator.records import RequestRecord
from tests.record_factory import record

PLAIN = [1, 2, 3, 4]


def probe(margin: float, second: int = 9, ids: list[int] | None = None, position: int = 2) -> RequestRecord:
    """The plain arm asked again, with the margin ``margin`` to token ``second`` at the position."""
    ids = ids or PLAIN
    places = [((token, -0.5), (99, -5.0)) for token in ids]
    places[position] = ((ids[position], -0.5), (second, -0.5 - margin))
    return record(phase="probe", output_ids=ids, top2=places)


def spec(ids: list[int], **fields: object) -> RequestRecord:
    return record(arm="spec", output_ids=ids, **fields)


def test_first_divergence() -> None:
    assert first_divergence([1, 2], [1, 2]) is None
    assert first_divergence([1, 2, 3], [1, 5, 3]) == 1
    assert first_divergence([1, 2], [1, 2, 3]) == 2
    assert first_divergence([], [1]) == 0


def test_identical_outputs_pass_in_every_repeat() -> None:
    records = [record(), record(repeat=1), spec(PLAIN_IDS := [11, 12, 13, 14]), spec(PLAIN_IDS, repeat=1)]
    result = check(records, "plain")
    assert (result["spec"].compared, result["spec"].identical, result["spec"].ok) == (2, 2, True)
    assert (result["plain"].compared, result["plain"].identical) == (1, 1), "noise floor: the second repeat"


def test_a_fork_without_a_known_margin_is_a_failure() -> None:
    result = check([record(output_ids=PLAIN), spec([1, 2, 9, 4])], "plain")["spec"]
    (fork,) = result.forks
    assert not result.ok
    assert (fork.position, fork.token, fork.plain_token, fork.margin) == (2, 9, 3, None)


@pytest.mark.parametrize(("margin", "excused"), [(NEAR_TIE / 2, True), (NEAR_TIE * 2, False)])
def test_a_fork_is_excused_by_a_near_tie_of_the_plain_target_only(margin: float, excused: bool) -> None:
    result = check([record(output_ids=PLAIN), spec([1, 2, 9, 4]), probe(margin)], "plain")["spec"]
    (fork,) = result.near_ties if excused else result.forks
    assert fork.margin == pytest.approx(margin)
    assert result.ok is excused


def test_a_tie_between_other_tokens_excuses_nothing() -> None:
    result = check([record(output_ids=PLAIN), spec([1, 2, 8, 4]), probe(1e-5, second=9)], "plain")["spec"]
    assert not result.ok


def test_a_margin_after_another_prefix_excuses_nothing() -> None:
    result = check([record(output_ids=PLAIN), spec([1, 2, 9, 4]), probe(1e-5, ids=[1, 7, 3, 4])], "plain")["spec"]
    assert not result.ok and result.forks[0].margin is None


def test_an_output_that_ends_early_is_a_fork_at_its_end() -> None:
    result = check([record(output_ids=PLAIN), spec([1, 2])], "plain")["spec"]
    assert (result.forks[0].position, result.forks[0].token, result.forks[0].plain_token) == (2, None, 3)


def test_a_prompt_without_a_well_ended_request_on_both_sides_is_missing() -> None:
    plain = [record(), record(prompt_id="p1", outcome="error")]
    records = [*plain, spec([1], outcome="timeout"), spec([1], prompt_id="p1")]
    result = check(records, "plain")["spec"]
    assert result.missing == ["p0", "p1"] and not result.ok


def test_warm_up_is_not_compared() -> None:
    result = check([record(), spec([11, 12, 13, 14]), spec([5], phase="warmup")], "plain")["spec"]
    assert (result.compared, result.ok) == (1, True)


def test_the_noise_floor_shows_a_plain_arm_that_forks_from_itself() -> None:
    result = check([record(output_ids=PLAIN), record(output_ids=[1, 2, 9, 4], repeat=1)], "plain")["plain"]
    assert len(result.forks) == 1
