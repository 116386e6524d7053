"""Training prompts for the miniature drafters: what people ask a small assistant, made from a seed.

The text a drafter learns from is the target's own answer to these prompts, so their breadth decides how well it drafts.
They come from request templates and topics (`data/`), longer briefs (`detailed.py`), made-up passages (`passages.py`),
numbers (`numbers.py`), and the source and documentation of Python's standard library (`stdlib_prompts`). Everything is
deterministic, and `prompts(seed, n)` is a prefix of `prompts(seed, m)` for n < m. Standard library only.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from random import Random

from runners.engine.training import detailed, numbers, passages

DATA = Path(__file__).parent / "data"
_SLOT = re.compile(r"\{(\w+?)([23]?)\}")
_VERB = re.compile(r"\b(is|does|has|was) (?=\{)", re.IGNORECASE)
_PLURAL = {"is": "are", "does": "do", "has": "have", "was": "were"}
_SINGULAR = {"person", "country", "city", "character", "history", "sport", "function", "dish", "product"}
_WISHES = (
    "Keep it short.|Answer in one sentence.|Answer in two or three sentences.|Use simple words.|Use a numbered list.|"
    "Use bullet points.|Give an example.|Be as detailed as you can.|Explain step by step.|In one paragraph, please.|"
    "Please be brief.|Thanks!|Thank you.|I am a beginner.|Write at most {n} words."
).split("|")
_OPENERS = "Hi! |Hello. |Hey, |Please help me. |Quick question: |I have a question. |Can you help me? ".split("|")


def sections(path: Path) -> dict[str, list[str]]:
    """Lines of a data file by section header, comments and empty lines left out."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            found[line[1:-1]] = current = []
        else:
            current.append(line.replace("\\n", "\n"))
    return found


@cache
def topics() -> dict[str, list[str]]:
    """Slot name -> its values."""
    return sections(DATA / "topics.txt")


@cache
def templates() -> list[tuple[str, float, list[str]]]:
    """(section, weight, request templates)."""
    found = []
    for header, lines in sections(DATA / "templates.txt").items():
        name, weight = header.split()
        found.append((name, float(weight), lines))
    return found


def _fill(template: str, r: Random) -> str:
    """Put a value into every slot; equal slots with different numbers get different values."""
    used: dict[str, str] = {}
    if "{first}" in template or "{second}" in template:
        used["first"], used["second"] = r.choice(topics()["pair"]).split(" | ")

    def value(match: re.Match[str]) -> str:
        name, nth = match[1], match[2]
        key = name + nth
        if key not in used:
            if name == "small":
                used[key] = str(r.randint(3, 12))
            elif name == "number":
                used[key] = str(r.randint(13, 200))
            elif name == "year":
                used[key] = str(r.randint(1400, 2010))
            else:
                used[key] = r.choice([v for v in topics()[name] if v not in used.values()])
        return used[key]

    def agree(match: re.Match[str]) -> str:
        slot = _SLOT.match(template, match.end())
        # Good enough for the lists at hand: "tides", "fractions", but not "osmosis", "genetics" or "Archimedes'".
        plural = slot is not None and slot[1] not in _SINGULAR and re.search(r"(?<!ic)(?<![suiy'])s$", value(slot))
        verb = _PLURAL[match[1].lower()] if plural else match[1]
        return f"{verb.capitalize() if match[1][0].isupper() else verb} "

    text = _SLOT.sub(value, _VERB.sub(agree, template))
    return text[0].upper() + text[1:]


def style(text: str, r: Random) -> str:
    """Some users open with a greeting, add a wish, forget capitals or the question mark."""
    roll = r.random()
    if roll < 0.16:
        text += " " + r.choice(_WISHES).replace("{n}", str(r.randint(2, 15) * 10))
    elif roll < 0.22:
        text = r.choice(_OPENERS) + text
    elif roll < 0.28:
        text = text[0].lower() + text[1:].rstrip("?.")
    elif roll < 0.31:
        text = text.lower().rstrip("?.")
    elif roll < 0.34 and text.endswith("?"):
        text = "Can you tell me: " + text[0].lower() + text[1:]
    return text


def _brief(r: Random) -> str:
    return detailed.detailed(r, topics())


_OWN_MATERIAL: tuple[tuple[Callable[[Random], str], float], ...] = (
    (_brief, 28.0),
    (numbers.word_problem, 12.0),
    (numbers.arithmetic, 7.0),
    (numbers.conversion, 5.0),
    (numbers.puzzle, 5.0),
    (passages.on_passage, 15.0),
    (passages.extract, 5.0),
    (passages.classify, 3.0),
    (passages.on_table, 7.0),
    (passages.choose, 3.0),
)


def _stream(seed: int) -> Iterator[str]:
    r = Random(f"prompts-{seed}")
    kinds: list[Callable[[Random], str] | list[str]] = []
    weights: list[float] = []
    for _, weight, lines in templates():
        kinds.append(lines)
        weights.append(weight)
    for make, weight in _OWN_MATERIAL:
        kinds.append(make)
        weights.append(weight)
    bounds = list(accumulate(weights))
    seen: set[str] = set()
    while True:
        kind = kinds[bisect(bounds, r.random() * bounds[-1])]
        text = style(_fill(r.choice(kind), r), r) if isinstance(kind, list) else kind(r)
        if text not in seen:
            seen.add(text)
            yield text


def prompts(seed: int, n: int) -> list[str]:
    """`n` distinct user messages.

    Args:
        seed: the same seed gives the same messages, on every platform and Python version from 3.11.
        n: how many, from 0 to 200,000 (beyond that the short kinds of request run dry and the mix shifts).
    """
    if not 0 <= n <= 200_000:
        raise ValueError(f"n is {n}; from 0 to 200,000 distinct prompts are made")
    return list(islice(_stream(seed), n))


@cache
def _stdlib() -> tuple[list[tuple[str, str]], list[str]]:
    """(functions as (source, docstring or ''), paragraphs of documentation) of this Python's standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    functions: list[tuple[str, str]] = []
    texts: list[str] = []
    left_out = set("test tests site-packages dist-packages idlelib lib2to3 pydoc_data encodings turtledemo".split())
    for path in sorted(root.rglob("*.py")):
        if left_out & set(path.relative_to(root).parts):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError):  # a few files hold deliberate errors or other encodings
            continue
        lines = source.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                doc = ast.get_docstring(node) or ""
                texts += [p for p in doc.split("\n\n") if 120 <= len(p) <= 700 and ">>>" not in p]
                if isinstance(node, ast.FunctionDef) and node.end_lineno and 4 <= node.end_lineno - node.lineno <= 30:
                    indent = node.col_offset
                    body = "\n".join(line[indent:] for line in lines[node.lineno - 1 : node.end_lineno])
                    if len(body) <= 1100:
                        functions.append((body, doc))
    return functions, texts


def _reference() -> list[str]:
    """Paragraphs of the language reference that `help()` shows."""
    from pydoc_data.topics import topics as pages  # some builds of Python leave it out: the caller handles that

    found = []
    for name in sorted(pages):
        for p in pages[name].split("\n\n"):
            words = " ".join(p.split())
            if 150 <= len(words) <= 700 and not words.startswith(("*", "-", ">>>", "+")):
                found.append(words)
    return found


_ON_FUNCTION = (
    "Explain what this Python function does.|Explain this function line by line.|What does this code do?|"
    "Write a docstring for this function.|Write a unit test for this function.|Add type hints to this function.|"
    "Rewrite this function with clearer names.|Is there a bug in this code?|Add comments to this code.|"
    "What are the inputs and outputs of this function?|Translate this function to JavaScript.|"
    "How could this code be simplified?|Which errors can this function raise?|"
    "Repeat this code and change nothing but the function's name."
).split("|")
_ON_TEXT = (
    "Continue this text.|Explain this text in simple words.|Summarize this documentation.|What does this mean?|"
    "Rewrite this paragraph for a beginner.|Give a code example for this.|Write a question that this text answers."
).split("|")


def stdlib_prompts(seed: int, n: int) -> list[str]:
    """`n` distinct requests about functions and documentation of the running Python's standard library.

    Deterministic for one Python version. Raises ValueError when the library at hand yields fewer.
    """
    functions, texts = _stdlib()
    with suppress(ImportError):
        texts = texts + _reference()
    r = Random(f"stdlib-{seed}")
    found: dict[str, None] = {}
    for _ in range(20 * n):
        if len(found) == n:
            break
        roll = r.random()
        if functions and (roll < 0.6 or not texts):
            body, doc = r.choice(functions)
            if roll < 0.12:
                lines = body.splitlines()
                beginning = "\n".join(lines[: max(2, len(lines) // 2)])
                text = f"Complete this Python function.\n\n```python\n{beginning}\n```"
            elif roll < 0.2 and 30 <= len(doc) <= 400 and ">>>" not in doc:
                text = f"Write a Python function for this description:\n\n{body.splitlines()[0].strip()}\n{doc}"
            else:
                text = f"{r.choice(_ON_FUNCTION)}\n\n```python\n{body}\n```"
        elif texts:
            passage = r.choice(texts)
            task = r.choice(_ON_TEXT)
            if task == "Continue this text.":
                words = passage.split()
                passage = " ".join(words[: max(15, len(words) // 2)])
            text = f"{task}\n\n{passage}"
        else:
            break
        found[text] = None
    if len(found) < n:
        raise ValueError(f"this Python's standard library gave {len(found)} prompts; {n} were asked for")
    return list(found)
