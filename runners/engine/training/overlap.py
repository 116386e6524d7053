"""Keeps the suites' prompts out of the training data.

Measure: texts are compared as sequences of lower-case words (runs of letters and digits; punctuation and layout don't
count). A text overlaps a suite when it holds

- any `NGRAM` (8) consecutive words of a suite's prompt, or
- a whole sentence of a suite's prompt that is shorter than that (but has at least `SENTENCE` (4) words), or
- the whole of a prompt with fewer words than that.

The threshold is zero: one such run of words is enough. Eight words is short enough to catch a paraphrase that keeps a
clause, and long enough that common phrases ("write a short story about a") don't count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from orchestrator.paths import conf_dir

NGRAM = 8
SENTENCE = 4
_WORD = re.compile(r"[^\W_]+")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n+")


def words(text: str) -> list[str]:
    """The lower-case words of a text."""
    return _WORD.findall(text.lower())


def suite_texts(folder: Path | None = None) -> list[str]:
    """Every prompt text of every suite file in `folder` (None: the shipped suites).

    Raises:
        FileNotFoundError: the folder holds no suite, so that nothing could be excluded.
    """
    import yaml

    folder = folder or conf_dir() / "suite"
    suites = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yaml"))]
    if not suites:
        raise FileNotFoundError(f"no suite files in {folder}")
    return [message["content"] for suite in suites for prompt in suite["prompts"] for message in prompt["messages"]]


class SuiteFilter:
    """Tells whether a text shares a run of words with a suite's prompts (module docstring: the measure).

    Args:
        texts: the suites' prompt texts; None: those of `suite_texts()`.
    """

    def __init__(self, texts: Iterable[str] | None = None) -> None:
        self._runs: dict[int, set[tuple[str, ...]]] = {}  # length in words -> runs of that length
        for text in suite_texts() if texts is None else texts:
            whole = words(text)
            if 0 < len(whole) < SENTENCE:
                self._add(whole)
            for i in range(len(whole) - NGRAM + 1):
                self._add(whole[i : i + NGRAM])
            for sentence in _SENTENCE_END.split(text):
                if SENTENCE <= len(run := words(sentence)) < NGRAM:
                    self._add(run)

    def _add(self, run: list[str]) -> None:
        self._runs.setdefault(len(run), set()).add(tuple(run))

    def shared(self, text: str) -> str | None:
        """The first shared run of words, or None."""
        found = words(text)
        for length, runs in self._runs.items():
            for i in range(len(found) - length + 1):
                if tuple(found[i : i + length]) in runs:
                    return " ".join(found[i : i + length])
        return None

    def overlaps(self, text: str) -> bool:
        """True when the text must not be trained on."""
        return self.shared(text) is not None
