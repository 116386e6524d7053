"""What a reader must know before using the figures of a comparison: one file per theme, each finding one sentence.

`catalogue.py` names every finding with its severity; `judge.py` collects them. A theme is a function
``(Summary, Facts) -> Iterator[Finding]``, listed in `judge.THEMES`.
"""
