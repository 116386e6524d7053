"""Which SGLang there is, asked where it will run, and its help text; kept, since SGLang takes long to tell it."""

from __future__ import annotations

from collections.abc import Sequence

from runners.base import Ask, ServerFailure
from runners.remembered import remembered
from runners.sglang.version import Version, parse

HELP = "--help"
# Its version, and a digest of all that decides what its help says: every package of the interpreter (plugins add
# choices) by version, place and time, and SGLang's own variables. A source tree may change unseen: no digest.
_ABOUT = """
import hashlib, importlib.metadata as packages, os
def about(package):
    place = package.locate_file('')
    files = [file for file in package.files or () if file.name == 'METADATA'][:1]
    times = [os.stat(path).st_mtime_ns for path in map(package.locate_file, files) if os.path.exists(path)]
    return [package.metadata['Name'], package.version, str(place), times]
sglang = packages.distribution('sglang')
said = sorted(map(repr, map(about, packages.distributions())))
said += sorted(f'{name}={value}' for name, value in os.environ.items() if name.startswith('SGLANG_'))
source = '"editable": true' in (sglang.read_text('direct_url.json') or '')
print(sglang.version, '-' if source else hashlib.sha256(repr(said).encode()).hexdigest())
"""


class Installed:
    """The SGLang of an interpreter. Raises ServerFailure (``argument``) where there is none."""

    def __init__(self, ask: Ask, python: Sequence[str]) -> None:
        self._ask = ask
        said = ask([*python, "-c", _ABOUT])
        # Packages that are imported on the way may print lines of their own before.
        words = said.strip().splitlines()[-1].split() if said.strip() else []
        version = parse(words[0]) if len(words) == 2 else None
        if version is None:
            raise ServerFailure("argument", f"the version of SGLang cannot be told from {said.strip()[-200:]!r}")
        self.version: Version = version
        self._digest = None if words[1] == "-" else words[1]

    def help(self, command: Sequence[str]) -> str:
        """What ``command --help`` prints."""
        words = [*command, HELP]
        if self._digest is None:
            return self._ask(words)
        return remembered("sglang-help", [self._digest, *words], lambda: self._ask(words))
