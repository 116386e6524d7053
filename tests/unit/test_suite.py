"""The shipped suites are what docs/reference/suite.md says, and what the README says of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from orchestrator.paths import conf_dir
from orchestrator.schema.suite import Suite

FILES = sorted((conf_dir() / "suite").glob("*.yaml"))


def load(path: Path) -> Suite:
    return Suite.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_fits_the_schema_and_is_readable_by_omegaconf(path: Path) -> None:
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert load(path).name == path.stem
    assert OmegaConf.to_container(OmegaConf.load(path), resolve=True) == plain, "an interpolation"
    assert set(plain) == set(Suite.model_fields), "every key is written out, so that each can be overridden"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_prompts_are_clean_text_and_all_different(path: Path) -> None:
    texts = ["\n".join(message.content for message in prompt.messages) for prompt in load(path).prompts]
    assert len(set(texts)) == len(texts)
    for text in texts:
        assert text.isascii(), "a stray typographic character would change the tokens"
        assert all(not line.endswith(" ") for line in text.splitlines())


def test_short_long_16_has_eight_of_each_and_short_ones_are_short() -> None:
    suite = load(conf_dir() / "suite" / "short_long_16.yaml")
    assert Counter(prompt.category for prompt in suite.prompts) == {"short": 8, "long": 8}
    assert suite.repeats == 2
    assert suite.temperature == 0
    assert suite.token_limit("smollm2_135m") == 64
    length = {prompt.id: len(prompt.messages[-1].content.split()) for prompt in suite.prompts}
    short = [n for name, n in length.items() if name.startswith("short-")]
    long = [n for name, n in length.items() if name.startswith("long-")]
    assert len(short) == len(long) == 8
    assert max(short) <= 20 < min(long)


def test_smoke_2_is_the_smallest_run() -> None:
    suite = load(conf_dir() / "suite" / "smoke_2.yaml")
    assert (len(suite.prompts), suite.repeats, suite.token_limit("any")) == (2, 1, 16)


def test_suites_share_no_prompt() -> None:
    texts = Counter(prompt.messages for path in FILES for prompt in load(path).prompts)
    assert max(texts.values()) == 1
