"""What needs SGLang itself, fetched as the wheels of its versions: every golden command line through the real argument
parser, and the check of a vendor's plugin with the real loader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runners.sglang import known
from runners.sglang.version import KNOWN, of
from tests import vendor_plugin
from tests.unit import sglang_golden as golden
from tests.unit.sglang_wheels import environment, install_imports, unpacked

pytestmark = pytest.mark.nightly
SCRIPT = Path(__file__).parent / "sglang_real_parser.py"


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_imports(tmp_path_factory.mktemp("imports"))


@pytest.mark.parametrize("version", [str(version) for version in KNOWN])
def test_the_parser_itself_takes_every_command_line(version: str, imports: Path, tmp_path: Path) -> None:
    package = unpacked(version, tmp_path)
    lines = golden.lines(version)
    right = next(iter(lines.values()))
    # What the parser is known to refuse, so that one that takes everything would be noticed.
    wrong = {"unknown": [*right, "--no-such-flag"], "choice": [*right, "--load-format", "nope"]}
    told = json.loads(
        subprocess.run(
            [sys.executable, str(SCRIPT), str(package)],
            input=json.dumps(lines | wrong),
            env=environment(tmp_path, imports),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
    )
    assert "unrecognized arguments: --no-such-flag" in told["refused"].pop("unknown")
    assert "invalid choice: 'nope'" in told["refused"].pop("choice")
    assert told["refused"] == dict.fromkeys(lines, "")
    assert {name: flag.takes for name, flag in known.flags(of(version)).items()} == told["spellings"]


@pytest.mark.parametrize("version", [str(KNOWN[0]), str(KNOWN[-1])])
def test_the_check_of_a_vendor_s_plugin_works_with_sglang_itself(version: str, imports: Path, tmp_path: Path) -> None:
    """containers/dspine runs it while an image is built; there the tests have a stand-in only."""
    package = unpacked(version, tmp_path)
    told = {}
    for kind in vendor_plugin.KINDS:
        vendor = tmp_path / kind
        vendor_plugin.install(vendor, kind)
        done = subprocess.run(
            [sys.executable, str(SCRIPT.with_name("sglang_real_plugin.py")), str(package), "dspine", "DSPINE"],
            env=environment(tmp_path, imports, vendor) | {"SGLANG_PLUGINS": "dspine"},
            capture_output=True,
            text=True,
            check=False,
        )
        told[kind] = (done.stdout + done.stderr).strip().splitlines()[-1]
        assert (done.returncode == 0) == (kind == "right"), told[kind]
        if kind == "import fails":
            assert "Failed to load plugin dspine" in done.stdout and "a_module_that_is_not_there" in done.stdout
    assert told["right"] == "verified: DSPINE of dspine-vendor 0.1, commit unknown"
    assert told["no entry point"].startswith("refused: 0 entry points named 'dspine'")
    for kind in ("another algorithm", "import fails"):
        assert told[kind].endswith("registers no algorithm 'DSPINE': Unknown speculative algorithm name: DSPINE")
