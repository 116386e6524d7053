"""SGLang itself, out of the wheels of its versions, for tests in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
_PLATFORM = ("--only-binary=:all:", "--python-version", "3.12", "--platform", "manylinux_2_34_x86_64")


def install_imports(folder: Path) -> Path:
    """Packages whose classes SGLang's own are derived from, so that nothing can stand in for them."""
    subprocess.run([*_PIP, "install", "--no-deps", "--target", str(folder), "msgspec", "dill"], check=True)
    return folder


def unpacked(version: str, folder: Path) -> Path:
    """The package out of that version's wheel."""
    wanted = f"sglang=={version}"
    subprocess.run([*_PIP, "download", "--no-deps", *_PLATFORM, wanted, "--dest", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "package")
    return folder / "package"


def environment(home: Path, *imports: Path) -> dict[str, str]:
    """Of a process that imports it: no GPU, nothing of the user's, no network for checkpoints."""
    return {
        "PYTHONPATH": ":".join(map(str, imports)), "CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin",
        "HOME": str(home), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
