"""No prompt of a shipped suite is in the training material, and the filter that guarantees it finds what it must find.

Measure and threshold are those of runners/engine/training/overlap.py: no run of eight words of a suite's prompt, and no
whole sentence of one, occurs in any training prompt.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.engine.training.overlap import NGRAM, SuiteFilter, suite_texts, words
from runners.engine.training.prompts import prompts, stdlib_prompts, templates, topics

SEED = 0
COUNT = 50_000


@pytest.fixture(scope="module")
def suite_filter() -> SuiteFilter:
    return SuiteFilter()


@pytest.fixture(scope="module")
def training() -> list[str]:
    return prompts(SEED, COUNT)


def test_fifty_thousand_training_prompts_share_nothing_with_any_suite(
    suite_filter: SuiteFilter, training: list[str]
) -> None:
    assert [(text, run) for text in training if (run := suite_filter.shared(text))] == []


def test_prompts_from_the_standard_library_share_nothing_with_any_suite(suite_filter: SuiteFilter) -> None:
    assert [(text, run) for text in stdlib_prompts(SEED, 3000) if (run := suite_filter.shared(text))] == []


def test_every_suite_prompt_overlaps_wherever_it_stands(suite_filter: SuiteFilter, training: list[str]) -> None:
    texts = suite_texts()
    assert len(texts) >= 26, "three suites"
    for text in texts:
        assert suite_filter.overlaps(text)
        assert suite_filter.overlaps(f"{training[0]} {text.upper()} {training[1]}"), "case and context do not count"
        found = words(text)
        middle = found[len(found) // 3 :][:NGRAM]
        if len(middle) == NGRAM:
            assert suite_filter.overlaps(", ".join(middle)), "layout does not count"


def test_the_threshold_is_eight_words_or_a_whole_sentence() -> None:
    kept_out = SuiteFilter(["One two three four five six seven eight nine ten. Where do herons sleep? Why me?"])
    assert (
        kept_out.shared("zero two three four five six seven eight nine zero")
        == "two three four five six seven eight nine"
    )
    assert not kept_out.overlaps("two three four five six seven eight")
    assert kept_out.shared("tell me: where do herons SLEEP at night") == "where do herons sleep"
    assert not kept_out.overlaps("where do herons rest")
    assert not kept_out.overlaps("why me"), "too short to tell"
    assert SuiteFilter(["Why me?"]).overlaps("but why me"), "unless it is the whole prompt"


def test_a_folder_without_suites_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no suite files"):
        suite_texts(tmp_path)


def test_prompts_are_distinct_repeatable_and_a_prefix_of_longer_lists(training: list[str]) -> None:
    assert len(set(training)) == COUNT
    assert prompts(SEED, 500) == training[:500]
    assert prompts(SEED + 1, 500) != training[:500]
    with pytest.raises(ValueError, match="200,000"):
        prompts(SEED, 200_001)


def test_stdlib_prompts_are_distinct_and_repeatable() -> None:
    found = stdlib_prompts(3, 400)
    assert len(set(found)) == 400
    assert stdlib_prompts(3, 400) == found
    assert any("```python" in text for text in found)


def test_every_slot_is_filled_and_every_list_is_used(training: list[str]) -> None:
    names = set(topics()) | {"small", "number", "year", "first", "second"}
    left = [text for text in training if any(f"{{{name}}}" in text for name in names)]
    assert left == []
    requests = "\n".join(line for _, _, lines in templates() for line in lines).replace("{first}", "{pair}")
    assert [name for name in topics() if f"{{{name}}}" not in requests] == []


def test_material_is_broad() -> None:
    assert sum(len(lines) for _, _, lines in templates()) >= 250
    assert sum(len(values) for values in topics().values()) >= 1200
    for name, values in topics().items():
        assert len(set(values)) == len(values), name
