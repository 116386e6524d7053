"""Where things lie, whether installed in place, from a wheel, or started from another folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
PACKAGE_PREFIX = "package:"


def conf_dir() -> Path:
    """The shipped configuration."""
    return shipped("conf")


def shipped(name: str) -> Path:
    """A folder that belongs to the program: inside the package in a wheel, beside it in a checkout.

    Raises FileNotFoundError.
    """
    for folder in (_PACKAGE / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"no {name}/ beside {_PACKAGE}: the installation is incomplete")


def package_root() -> Path:
    """The folder that holds the packages ``orchestrator`` and ``runners``: a checkout, or site-packages."""
    return _PACKAGE.parent


def local_path(path: str) -> Path | None:
    """The folder or file that a model path of the config names, or None where it is a name to be fetched.

    ``package:<folder>`` lies in this installation. A path that begins with ``/``, ``./``, ``../`` or ``~``, or that
    exists from the working directory, is local; anything else is a Hugging Face id or the name of a packaged model.
    """
    if path.startswith(PACKAGE_PREFIX):
        return package_root() / path.removeprefix(PACKAGE_PREFIX)
    if path.startswith(("/", "./", "../", "~")) or Path(path).is_dir():
        return Path(path).expanduser().absolute()
    return None


def write_whole(file: Path, text: str) -> None:
    """Write a file whole or not at all, whoever else writes it at the same time; its folder is made. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, staged = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    with os.fdopen(handle, "w") as output:
        output.write(text)
    os.replace(staged, file)
