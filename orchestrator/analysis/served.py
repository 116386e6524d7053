"""What a server says of itself (``/server_info``, and what its runner adds), read for what matters to a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from orchestrator.frozen import Frozen


class Capacity(Frozen):
    """What a server has room for. Drafters are compared at equal memory: the same share of it
    (``mem_fraction_static``), less room beside the drafter's weights and caches."""

    tokens: int | None
    """Tokens whose keys and values fit, over all data-parallel ranks."""
    requests: int | None
    """Most requests it runs at once, over all ranks: what is asked for, or what its caches allow if that is less."""


def capacity(identity: Mapping[str, Any]) -> Capacity | None:
    """None where the server reports neither."""
    ranks = _ranks(identity)
    tokens = [rank.get("memory_usage", {}).get("token_capacity") for rank in ranks]
    requests = [rank.get("effective_max_running_requests_per_dp") for rank in ranks]
    if not any(tokens) and identity.get("max_total_num_tokens"):
        tokens = [identity["max_total_num_tokens"]] * max(1, len(ranks))
    if not any(tokens) and not any(requests):
        return None
    return Capacity(tokens=_total(tokens), requests=_total(requests))


def memory_parts(identity: Mapping[str, Any]) -> dict[str, float]:
    """GiB per GPU by what it is for, as the server's log tells (runners/sglang/identity.py); {} where none does."""
    parts = _of_log(identity).get("memory_gib") or {}
    return {name: float(size) for name, size in parts.items() if size is not None}


def remarks(identity: Mapping[str, Any]) -> list[str]:
    """What its log only warns of."""
    return list(_of_log(identity).get("remarks") or ())


def wrong_drafter(server: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """What the server reports of its drafter other than the server config asks for; [] also where it says nothing.

    ``server`` is a server config (docs/reference/server_config.md).
    """
    drafter = server["drafter"]
    speculates = drafter["algorithm"] is not None
    asked: dict[str, Any] = {"speculative_algorithm": drafter["algorithm"]}
    if speculates:
        asked["speculative_num_draft_tokens"] = drafter["verify_window"]
        # Not named: the server's own choice (a drafter inside the target's checkpoint; the newest revision).
        named = {"speculative_draft_model_path": "path", "speculative_draft_model_revision": "revision"}
        asked |= {key: drafter[name] for key, name in named.items() if drafter.get(name)}
    return [
        f"{key} is {identity[key]}, asked for was {value}"
        for key, value in asked.items()
        if key in identity and not _same(identity[key], value)
    ]


def says_drafter(identity: Mapping[str, Any]) -> bool:
    """Whether the server says at all with which algorithm it speculates."""
    return "speculative_algorithm" in identity


def accepts_loosely(identity: Mapping[str, Any]) -> bool:
    """Whether the server takes drafts that the target would not have chosen: thresholds below 1 under speculation."""
    thresholds = [identity.get(f"speculative_accept_threshold_{name}") for name in ("single", "acc")]
    loose = any(value is not None and value < 1 for value in thresholds)
    return loose and identity.get("speculative_algorithm") is not None


def simulated(server: Mapping[str, Any]) -> str | None:
    """The acceptance length that the server is told to make up, where it is (SGLang's ``SGLANG_SIMULATE_ACC_LEN``)."""
    value = server.get("env", {}).get("SGLANG_SIMULATE_ACC_LEN")
    return None if value is None or float(value) < 0 else str(value)


def _of_log(identity: Mapping[str, Any]) -> Mapping[str, Any]:
    told = identity.get("server_log")
    return told if isinstance(told, Mapping) else {}


def _ranks(identity: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    states = identity.get("internal_states")
    return [state for state in states if isinstance(state, Mapping)] if isinstance(states, list) else []


def _total(values: list[Any]) -> int | None:
    known = [int(value) for value in values if value]
    return sum(known) if known else None


def _same(reported: Any, asked: Any) -> bool:
    if isinstance(reported, str) and isinstance(asked, str):
        if PurePath(asked).is_absolute():  # a folder, which may be mounted elsewhere in a container
            return PurePath(reported).name == PurePath(asked).name
        return reported.upper() == asked.upper()  # SGLang writes algorithms in capitals
    return bool(reported == asked)
