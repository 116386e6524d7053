"""Every golden command line through the real argument parser of its version, fetched as the wheel that it comes in."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from runners.sglang import known
from runners.sglang.version import KNOWN, of
from tests.unit import sglang_golden as golden

pytestmark = pytest.mark.nightly
SCRIPT = Path(__file__).parent / "sglang_real_parser.py"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
PLATFORM = ("--only-binary=:all:", "--python-version", "3.12", "--platform", "manylinux_2_34_x86_64")


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages whose classes SGLang's own are derived from, so that nothing can stand in for them."""
    folder = tmp_path_factory.mktemp("imports")
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(folder), "msgspec", "dill"], check=True)
    return folder


@pytest.mark.parametrize("version", [str(version) for version in KNOWN])
def test_the_parser_itself_takes_every_command_line(version: str, imports: Path, tmp_path: Path) -> None:
    subprocess.run(
        [*PIP, "download", "--no-deps", *PLATFORM, f"sglang=={version}", "--dest", str(tmp_path)], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "package")
    lines = golden.lines(version)
    right = next(iter(lines.values()))
    # What the parser is known to refuse, so that one that takes everything would be noticed.
    wrong = {"unknown": [*right, "--no-such-flag"], "choice": [*right, "--load-format", "nope"]}
    told = json.loads(
        subprocess.run(
            [sys.executable, str(SCRIPT), str(tmp_path / "package")],
            input=json.dumps(lines | wrong),
            env={
                "PYTHONPATH": str(imports),
                "CUDA_VISIBLE_DEVICES": "",
                "PATH": "/usr/bin:/bin",
                "HOME": str(tmp_path),
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
    )
    assert "unrecognized arguments: --no-such-flag" in told["refused"].pop("unknown")
    assert "invalid choice: 'nope'" in told["refused"].pop("choice")
    assert told["refused"] == dict.fromkeys(lines, "")
    assert {name: flag.takes for name, flag in known.flags(of(version)).items()} == told["spellings"]
