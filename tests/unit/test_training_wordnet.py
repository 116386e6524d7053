"""Requests about the words of WordNet, on a few lines in its format."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.engine.training.wordnet import wordnet_prompts, words

NOUNS = """\
  1 This software and database is being provided to you, the LICENSEE, by
00000001 06 n 02 fire_hydrant 0 fireplug 1 001 @ 00000002 n 0000 | an upright hydrant for drawing water to use in a fire
00000002 06 n 01 step_ladder 0 000 | a folding portable ladder hinged at the top; "she stood on it"
00000003 18 n 01 glazier 0 000 | someone who cuts flat glass to size
00000004 18 n 01 cooper 0 000 | a craftsman who makes or repairs wooden barrels or tubs
00000005 18 n 01 boor 0 000 | an offensive word for a crude uncouth person
00000006 06 n 01 1530s 0 000 | the decade from 1530 to 1539 inclusive
00000007 06 n 01 it 0 000 | a thing
"""
VERBS = """\
00000008 30 v 01 solder 0 000 01 + 08 00 | join or fuse with solder and a hot iron
00000009 30 v 01 varnish 0 000 01 + 08 00 | cover with varnish to protect the wood
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.noun").write_text(NOUNS)
    (tmp_path / "data.verb").write_text(VERBS)
    return tmp_path


def test_words_are_plain_and_carry_their_definition(folder: Path) -> None:
    found = words(folder / "data.noun")
    assert [word.lemma for word in found] == ["fire hydrant", "fireplug", "step ladder", "glazier", "cooper"]
    assert found[2].gloss == "a folding portable ladder hinged at the top"
    assert {word.kind for word in found} == {"06", "18"}


def test_requests_are_distinct_deterministic_and_use_the_words(folder: Path) -> None:
    made = wordnet_prompts(folder, 3, 120)
    assert made == wordnet_prompts(folder, 3, 120) != wordnet_prompts(folder, 4, 120)
    assert len(set(made)) == 120
    subjects = ("hydrant", "fireplug", "ladder", "glazier", "cooper", "solder", "varnish", "barrels", "glass", "water")
    assert [text for text in made if not any(subject in text.lower() for subject in subjects)] == []
    assert not any("{" in text or "}" in text for text in made)


def test_a_folder_without_wordnet_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data\.noun"):
        wordnet_prompts(tmp_path, 0, 1)
