"""Whether SGLang will find a vendor's algorithm; run while its image is built, and by anyone who doubts an image.

    SGLANG_PLUGINS=ENTRY_POINT python3 verify_plugin.py ENTRY_POINT ALGORITHM

SGLang only logs that a plugin failed to load, and dies minutes later of an unknown algorithm.
"""

import json
import logging
import sys
from importlib.metadata import entry_points

GROUP = "sglang.srt.plugins"


def main(entry_point: str, algorithm: str) -> str | None:
    """What is wrong, None where the algorithm is there."""
    registered = list(entry_points(group=GROUP))
    found = [one for one in registered if one.name == entry_point]
    if len(found) != 1:
        names = ", ".join(sorted(one.name for one in registered)) or "none at all"
        return f"{len(found)} entry points named {entry_point!r} in the group {GROUP}, one is wanted; it has: {names}"
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")  # SGLang logs why one fails
    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    load_plugins()
    try:
        SpeculativeAlgorithm.from_string(algorithm)
    except ValueError as error:
        return f"the entry point {entry_point!r} ({found[0].value}) registers no algorithm {algorithm!r}: {error}"
    package = found[0].dist
    origin = json.loads((package and package.read_text("direct_url.json")) or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id", "unknown")
    name = f"{package.name} {package.version}" if package else "a package without a name"
    print(f"verified: {algorithm} of {name}, commit {commit}")
    return None


if __name__ == "__main__":
    if wrong := main(*sys.argv[1:]):
        sys.exit(f"refused: {wrong}")
