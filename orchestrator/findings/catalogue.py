"""Every finding by name: how severe it is and what it says. docs/reference/findings.md shows the same list.

error: the figure must not be used as it stands. warning: it can mislead. note: it needs a word of context.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.results import Finding, Severity


class Entry(NamedTuple):
    severity: Severity
    says: str


CATALOGUE: dict[str, Entry] = {
    # The run as a whole
    "incomplete": Entry("error", "trials are missing: a server failed or the run was stopped"),
    "no_plain_arm": Entry("error", "nothing to relate speed and tokens to"),
    "missing_arm": Entry("warning", "an arm that could not run"),
    "drift_not_controlled": Entry("warning", "`order: once`"),
    "measured_apart": Entry("warning", "trials of several runs are combined"),
    "unsteady_machine": Entry("warning", "repeats of a prompt on the same arm differ by more than 15% in the median"),
    "failed_requests": Entry("warning", "requests that did not end well"),
    "adopted": Entry("note", "nothing was measured anew"),
    "embedded": Entry("note", "a small target on a CPU: acceptance is real, speed says nothing about a GPU"),
    # Fairness
    "unfair": Entry("warning", "a setting differs between arms outside `varies`"),
    # Drafts
    "no_counters": Entry("error", "a speculative arm's server returned no counters"),
    "speedup_above_tau": Entry(
        "error", "faster after prefill than tokens per step allow: the plain arm is handicapped, or an error"
    ),
    "tau_near_one": Entry("warning", "tau below 1.1: wrong weights, template or layers"),
    "lossy": Entry("warning", "relaxed verification"),
    # Output
    "not_lossless": Entry("error", "an arm's tokens differ from the plain arm's without an excuse"),
    "not_deterministic": Entry("warning", "repeats of the plain arm differ"),
    "output_lengths": Entry("warning", "the arms' outputs have different lengths"),
    "looping_text": Entry("warning", "more than 20% of the 4-grams repeat"),
    "cut_outputs": Entry("note", "outputs that ended at the token limit"),
    "near_tie": Entry("note", "a fork that rounding explains"),
}


def finding(code: str, text: str, arm: str | None = None) -> Finding:
    """A finding with the severity of its name. Raises KeyError for a name that the catalogue does not have."""
    return Finding(severity=CATALOGUE[code].severity, code=code, text=text, arm=arm)
