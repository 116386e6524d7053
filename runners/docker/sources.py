"""This project's own files, packed to be put into a container."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping


def packed(folder: str, sources: Mapping[str, bytes]) -> bytes:
    """A tar file with ``sources`` (path -> content) below ``folder``, readable by every user."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in sources.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()
