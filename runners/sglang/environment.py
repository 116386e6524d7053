"""The environment of a server: what of a server config SGLang takes from variables and not from flags."""

from __future__ import annotations

import re

from orchestrator.config.names import nearest
from runners.sglang import known
from runners.sglang.config import ServerConfig
from runners.sglang.version import Version

RAGGED_VERIFY_MODE = "SGLANG_RAGGED_VERIFY_MODE"
SIMULATED_ACCEPTANCE = "SGLANG_SIMULATE_ACC_LEN"
PLUGINS = "SGLANG_PLUGINS"
NO_PLUGIN = "none"
_RAGGED = {"static": "static", "relaxed": "static", "cap_accept": "cap-accept", "compact": "compact"}
_OURS = re.compile(r"^(SGLANG|SGL)_")


def environment(config: ServerConfig) -> dict[str, str]:
    """Variables of the server; what the config's own ``env`` says wins.

    Every one is set though it be SGLang's default, since a process inherits what its user has exported. An arm without
    a plugin gets a whitelist that no plugin is on: installed vendor code would otherwise run, hooks and all, in the
    arms that it is compared with. ``verification=dynamic`` is the vendor's own, so its switch is in ``env`` or nowhere
    (`rules` refuses nowhere).
    """
    drafter, verification = config.drafter, config.verification
    made = {PLUGINS: NO_PLUGIN if drafter.plugin is None else drafter.plugin.entry_point}
    if verification is not None and (mode := _RAGGED.get(verification.mode)) is not None:
        made[RAGGED_VERIFY_MODE] = mode
    return {**made, **config.env}


def unknown_variables(env: dict[str, str], version: Version) -> dict[str, str | None]:
    """Variables with a name of SGLang's that this version does not read -> the nearest that it reads. SGLang ignores
    them without a word."""
    reads = known.variables(version)
    return {name: nearest(name, reads) for name in env if _OURS.match(name) and name not in reads}
