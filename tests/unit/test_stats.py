from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats as scipy_stats

from orchestrator.stats import Observation, mean_interval, paired_ratio


def observation(prompt: str, repeat: int, tokens: int, seconds: float, comparison: str = "c") -> Observation:
    return Observation(comparison, prompt, repeat, tokens, seconds)


def noisy(prompts: int, repeats: int, speedup: float, seed: int) -> tuple[list[Observation], list[Observation]]:
    rng = random.Random(seed)
    arm, plain = [], []
    for prompt in range(prompts):
        own = speedup * math.exp(rng.gauss(0, 0.2))
        for repeat in range(repeats):
            seconds = rng.uniform(1, 3)
            plain.append(observation(f"p{prompt}", repeat, 60, seconds))
            arm.append(observation(f"p{prompt}", repeat, 60, seconds / own * math.exp(rng.gauss(0, 0.03))))
    return arm, plain


def test_a_constant_speedup_is_found_exactly_and_without_spread() -> None:
    plain = [observation(f"p{i}", r, 10 + i, 1.0 + i) for i in range(4) for r in range(2)]
    arm = [o._replace(seconds=o.seconds / 2.5) for o in plain]
    found = paired_ratio(arm, plain)
    assert found is not None
    assert found.ratio == pytest.approx(2.5)
    assert found.low == pytest.approx(2.5)
    assert found.high == pytest.approx(2.5)
    assert found.ratio_of_totals == pytest.approx(2.5)
    assert (found.n_prompts, found.n_pairs, found.n_repeats) == (4, 8, 2.0)


def test_interval_is_students_t_on_the_mean_log_ratio_of_prompts() -> None:
    arm, plain = noisy(16, 2, 2.0, seed=3)
    rates = {(o.prompt, o.repeat): o.tokens / o.seconds for o in plain}
    logs = [
        np.mean([math.log(o.tokens / o.seconds / rates[o.prompt, o.repeat]) for o in arm if o.prompt == prompt])
        for prompt in {o.prompt for o in arm}
    ]
    low, high = scipy_stats.t.interval(0.95, 15, np.mean(logs), scipy_stats.sem(logs))
    found = paired_ratio(arm, plain)
    assert found is not None
    assert found.ratio == pytest.approx(math.exp(np.mean(logs)))
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))


def test_a_repeat_that_adds_nothing_does_not_narrow_the_interval() -> None:
    arm, plain = noisy(8, 1, 1.5, seed=5)
    again = [o._replace(repeat=1) for o in arm], [o._replace(repeat=1) for o in plain]
    once, twice = paired_ratio(arm, plain), paired_ratio(arm + again[0], plain + again[1])
    assert once is not None
    assert twice is not None
    assert (twice.low, twice.high) == (pytest.approx(once.low), pytest.approx(once.high))
    assert (once.n_prompts, twice.n_prompts, twice.n_pairs) == (8, 8, 16)


def test_ratio_is_per_prompt_and_the_ratio_of_totals_stands_beside_it() -> None:
    plain = [observation("short", 0, 10, 1.0), observation("long", 0, 100, 10.0)]
    arm = [observation("short", 0, 10, 1.0), observation("long", 0, 100, 2.5)]
    found = paired_ratio(arm, plain)
    assert found is not None
    assert found.ratio == pytest.approx(2.0)  # sqrt(1 * 4)
    assert found.ratio_of_totals == pytest.approx((110 / 3.5) / (110 / 11.0))


def test_outputs_of_different_length_are_compared_per_token() -> None:
    found = paired_ratio([observation("p", 0, 30, 1.0)], [observation("p", 0, 10, 1.0)])
    assert found is not None
    assert found.ratio == pytest.approx(3.0)


def test_what_has_no_partner_or_no_tokens_is_left_out() -> None:
    plain = [observation("a", 0, 10, 1.0), observation("b", 0, 10, 1.0), observation("c", 0, 0, 1.0)]
    arm = [observation("a", 0, 10, 0.5), observation("c", 0, 10, 0.1), observation("d", 0, 10, 0.1)]
    found = paired_ratio(arm, plain)
    assert found is not None
    assert (found.n_pairs, found.ratio) == (1, pytest.approx(2.0))
    assert (found.low, found.high) == (None, None)  # one prompt has no spread
    assert paired_ratio(arm, []) is None


def test_requests_of_two_comparisons_are_refused() -> None:
    with pytest.raises(ValueError, match="never paired: one, two"):
        paired_ratio([observation("p", 0, 1, 1.0, "one")], [observation("p", 0, 1, 1.0, "two")])


def test_a_pair_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'p', repeat 0 occurs twice"):
        paired_ratio([observation("p", 0, 1, 1.0)] * 2, [observation("p", 0, 1, 1.0)])


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(400):
        arm, plain = noisy(16, 2, 2.0, seed)
        found = paired_ratio(arm, plain)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 2.0 <= found.high
    assert 0.92 <= hits / 400 <= 0.98  # 95% +- 2.75 standard errors


def test_mean_of_a_single_value_has_no_width() -> None:
    assert mean_interval([1.5]) == (1.5, None)


def test_more_repeats_cannot_bring_the_interval_below_what_prompts_spread() -> None:
    plain = [observation(f"p{i}", r, 10, 1.0) for i in range(16) for r in range(4)]
    arm = [o._replace(seconds=1 / (2 + 0.1 * int(o.prompt[1:]))) for o in plain]
    exact = paired_ratio(arm, plain)
    assert exact is not None and exact.half is not None
    assert exact.narrowest == pytest.approx(exact.half)  # repeats agree: all of the spread is the prompts'
    shaken = [o._replace(seconds=o.seconds * 1.1 ** (1 if o.repeat in (0, 3) else -1)) for o in arm]
    same = paired_ratio(shaken, plain)  # every prompt alike: that is no noise of requests
    assert same is not None and same.narrowest == pytest.approx(exact.narrowest)
    rng = random.Random(1)
    noisy_arm = [o._replace(seconds=o.seconds * math.exp(rng.gauss(0, 0.3))) for o in arm]
    noise = paired_ratio(noisy_arm, plain)
    assert noise is not None and noise.half is not None and noise.narrowest is not None
    assert noise.narrowest < 0.9 * noise.half
    assert noise.narrowest == pytest.approx(exact.narrowest, rel=0.6)
    once = paired_ratio([o for o in arm if o.repeat == 0], plain)
    assert once is not None and once.narrowest is None


def test_detectable_is_a_ratio_beyond_the_half_width() -> None:
    found = paired_ratio(*noisy(16, 2, 1.0, seed=4))
    assert found is not None and found.half is not None and found.detectable is not None
    # (2.13 + 0.87) standard errors against 2.13
    assert math.log(found.detectable) == pytest.approx(math.log(1 + found.half) * (2.131 + 0.866) / 2.131, rel=1e-3)
    assert found.prompts_se is not None
    assert math.log(1 + found.half) == pytest.approx(2.131 * found.prompts_se, rel=1e-3)
