from __future__ import annotations

import math

import pytest

from orchestrator.analysis.crossover import crossover


def test_it_lies_between_the_last_load_that_pays_and_the_next() -> None:
    found = crossover([(1, 2.0), (4, 2.0), (16, 0.5)])
    assert found is not None
    # log speedup falls from log 2 to -log 2 between 4 and 16: it is 0 in the middle of the logarithms, at 8.
    assert (found.where, found.concurrency, found.dips) == ("inside", pytest.approx(8), False)
    assert found.text == "about 8 requests at once"


def test_it_is_interpolated_in_the_logarithms_and_loads_may_come_in_any_order() -> None:
    found = crossover([(8, 0.9), (2, 1.6)])
    assert found is not None and found.concurrency is not None
    share = math.log(1.6) / (math.log(1.6) - math.log(0.9))
    assert found.concurrency == pytest.approx(2 * 4**share)


def test_outside_what_was_measured_it_is_said_and_not_extrapolated() -> None:
    above, below = crossover([(1, 2.0), (8, 1.2)]), crossover([(2, 0.9), (8, 0.7)])
    assert above is not None and (above.where, above.concurrency) == ("above", None)
    assert above.text == "above 8, the largest load measured"
    assert below is not None and (below.where, below.concurrency) == ("below", None)
    assert below.text == "below 2, the smallest load measured"


def test_a_load_that_does_not_pay_between_those_that_do_is_told() -> None:
    found = crossover([(1, 1.2), (2, 0.95), (4, 1.1), (8, 0.8)])
    assert found is not None and found.concurrency is not None
    assert 4 < found.concurrency < 8 and found.dips
    later = crossover([(1, 0.9), (2, 1.1)])
    assert later is not None and (later.where, later.dips) == ("above", True)


def test_one_load_is_no_sweep() -> None:
    assert crossover([(1, 2.0)]) is None
    assert crossover([]) is None
