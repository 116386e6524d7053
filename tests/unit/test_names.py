from __future__ import annotations

import pytest

from orchestrator.config.names import ConfigError, ConfigErrors, nearest

DRAFTERS = ("dflash", "dflash2", "dspark", "dspine", "eagle3", "mtp", "ngram", "none")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dspin", "dspine"),
        ("DSpine", "dspine"),
        ("d-spine", "dspine"),
        ("dflsh2", "dflash2"),
        ("eagle", "eagle3"),
        ("n-gram", "ngram"),
        ("m", "mtp"),
        ("dflash2", "dflash2"),
        ("medusa", None),
        ("", None),
        ("-", None),
    ],
)
def test_nearest_name(typed: str, meant: str | None) -> None:
    assert nearest(typed, DRAFTERS) == meant


def test_dashes_and_underscores_are_the_same() -> None:
    assert nearest("cap-accept", ["static", "cap_accept"]) == "cap_accept"


def test_an_error_says_what_where_what_is_allowed_and_what_is_near() -> None:
    error = ConfigError(
        "order", "'abab' is not allowed", allowed=["abba", "once"], nearest="order=abba", hint="type it"
    )
    assert str(error) == ("order: 'abab' is not allowed\n  allowed: abba, once\n  nearest: order=abba\n  hint: type it")
    assert str(error.within("arm x")).startswith("arm x: order: 'abab'")
    assert str(ConfigErrors([error, ConfigError("", "two")])).splitlines()[-1] == "two"


def test_an_unknown_key_is_told_with_its_parents() -> None:
    error = ConfigError.unknown("drafter.blok_size", ["block_size", "name"])
    assert error.nearest == "drafter.block_size"
    assert ConfigError.unknown("zzz", ["block_size"]).nearest is None
