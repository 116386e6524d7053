from __future__ import annotations

import pytest

from orchestrator.analysis.lossless import NEAR_TIE, Lossless, check, first_divergence, more_often
from orchestrator.measuring.records import RequestRecord
from tests.record_factory import record

PLAIN = [1, 2, 3, 4]
TIE = NEAR_TIE["float32"]


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


@pytest.mark.parametrize(("margin", "excused"), [(TIE / 2, True), (TIE * 2, False)])
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


def test_what_counts_as_a_tie_follows_from_the_precision_of_the_target() -> None:
    # A logit between 16 and 32 in bfloat16 (8 significant bits) moves in steps of 2^4 / 2^7.
    assert NEAR_TIE["bfloat16"] == 2 * 2**4 / 2**7
    assert NEAR_TIE["float16"] == 2 * 2**4 / 2**10
    records = [record(output_ids=PLAIN), spec([1, 2, 9, 4]), probe(0.2)]
    assert not check(records, "plain")["spec"].ok
    assert check(records, "plain", NEAR_TIE["bfloat16"])["spec"].ok


def _result(forked: int, prompts: int) -> Lossless:
    records = [record(prompt_id=f"p{place}", output_ids=PLAIN) for place in range(prompts)]
    for place in range(prompts):
        records.append(spec([9] if place < forked else PLAIN, prompt_id=f"p{place}"))
    return check(records, "plain")["spec"]


def test_forks_are_weighed_against_those_of_the_plain_arm() -> None:
    # Fisher's exact test by hand: 2 of 4 against 0 of 4 has a chance of C(4,2) / C(8,2) = 6/28.
    assert not more_often(_result(2, 4), _result(0, 4))
    # 4 of 4 against 0 of 4: 1 / C(8,4) = 1/70.
    assert more_often(_result(4, 4), _result(0, 4))
    assert not more_often(_result(3, 16), _result(3, 16))
    assert more_often(_result(9, 16), _result(2, 16))
    result = _result(2, 4)
    assert (result.prompts, result.forked_prompts) == (4, 2)


def test_a_second_pass_that_forks_alike_is_no_further_evidence() -> None:
    records = [record(output_ids=PLAIN), record(output_ids=PLAIN, repeat=1)]
    records += [spec([9]), spec([9], repeat=1)]
    result = check(records, "plain")["spec"]
    assert (len(result.forks), result.forked_prompts, result.prompts) == (2, 1, 1)


def test_outputs_whose_token_ids_are_not_told_are_not_called_identical() -> None:
    blind = [record(arm=arm, output_ids=[], completion_tokens=4, chunks=[(0.1, 4)]) for arm in ("plain", "dspine")]
    result = check(blind, "plain")["dspine"]
    assert (result.compared, result.identical, result.missing, result.ok) == (0, 0, ["p0"], False)
