"""Requests about the words of WordNet: tens of thousands of subjects, where the lists of `data/` hold hundreds.

A drafter that has seen a few hundred subjects learns their texts by heart and drafts other subjects badly. WordNet
(Princeton, its own licence) is not contained here: Debian's package `wordnet-base` puts it into /usr/share/wordnet.
Standard library only; deterministic for one version of WordNet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

from runners.engine.training.prompts import DATA, sections, style

_LEFT_OUT = re.compile(
    r"slur|offensive|obscen|vulgar|disparag|derogat|sexual|genus|family of|order of|slang|archaic", re.IGNORECASE
)
_PLAIN = re.compile(r"[A-Za-z]+(?:[-_'][A-Za-z]+){0,2}")
_NAMES = "Lena,Omar,Priya,Jonas,Mei,Carlos,Aisha,Viktor,Nora,Samuel,Ines,Tariq".split(",")


@dataclass(frozen=True)
class Word:
    lemma: str
    kind: str
    """Number of the lexicographer file."""
    gloss: str
    """Definition, without examples."""


def words(path: Path) -> list[Word]:
    """Usable words of a WordNet data file (wndb(5WN)). Raises FileNotFoundError."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(" "):  # the licence at the head
            continue
        data, _, gloss = line.partition(" | ")
        fields = data.split()
        gloss = gloss.split(";")[0].split('"')[0].strip(" ()")
        if _LEFT_OUT.search(line) or not 12 <= len(gloss) <= 140:
            continue
        lemmas = [fields[4 + 2 * i] for i in range(int(fields[3], 16))]
        found += [Word(lemma.replace("_", " "), fields[1], gloss) for lemma in lemmas[:2] if _PLAIN.fullmatch(lemma)]
    return found


def wordnet_prompts(folder: Path, seed: int, n: int) -> list[str]:
    """``n`` requests about the words in ``folder`` (data.noun, data.verb). Raises FileNotFoundError."""
    templates: dict[str, list[str]] = {}
    weights: dict[str, float] = {}
    for header, lines in sections(DATA / "wordnet.txt").items():
        name, _, weight = header.partition(" ")
        templates[name] = lines
        if weight:
            weights[name] = float(weight)
    nouns: dict[str, list[Word]] = {}
    for word in words(folder / "data.noun"):
        nouns.setdefault(word.kind, []).append(word)
    verbs = words(folder / "data.verb")
    kinds = [kind for kind in weights if len(nouns.get(kind, [])) > 1]
    r = Random(f"wordnet-{seed}")
    found: dict[str, None] = {}
    while len(found) < n:
        roll = r.random()
        if roll < 0.12:
            chosen, pool = templates["verb"], verbs
        else:
            kind = r.choices(kinds, [weights[kind] for kind in kinds])[0]
            pool = nouns[kind]
            chosen = templates[kind if roll < 0.4 else "definition" if roll < 0.55 else "any"]
        first, second = r.sample(pool, 2)
        text = r.choice(chosen).format(w=first.lemma, x=second.lemma, g=first.gloss, h=second.gloss, n=r.choice(_NAMES))
        found[style(text[0].upper() + text[1:], r)] = None
    return list(found)
