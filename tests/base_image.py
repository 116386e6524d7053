"""A base image made of this machine's own files, for tests without a registry: Python, a shell, and what they load."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

NAME = "python:3.11-slim"
_PROGRAMS = ("sh", "cat", "env", "grep", "id", "ls", "mkdir", "rm", "sleep", "true")
_LIBRARIES = (
    "libgcc_s.so.1", "libstdc++.so.6", "libgomp.so.1", "libresolv.so.2", "libnss_dns.so.2", "libnss_files.so.2",
    "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libz.so.1",
)  # fmt: skip
"""Loaded by what pip installs, or by the C library at run time."""
_LEFT_OUT = re.compile(r"/(__pycache__|test|tests|idlelib|turtledemo|lib2to3|site-packages|config-[^/]*)$")
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def make(client: Any, folder: Path) -> None:
    """Import it into an engine as NAME; ``folder`` holds the archive meanwhile."""
    archive = folder / "base.tar"
    with tarfile.open(archive, "w") as tar:
        _write(tar)
    changes = [
        "ENV PATH=/usr/local/bin:/usr/bin:/bin",
        "ENV LANG=C.UTF-8",
        "ENV LD_LIBRARY_PATH=/usr/local/lib",  # an import runs no ldconfig
        'CMD ["python3"]',
    ]
    repository, _, tag = NAME.partition(":")
    client.api.import_image_from_file(str(archive), repository=repository, tag=tag, changes=changes)
    archive.unlink()


def _write(tar: tarfile.TarFile) -> None:
    for name in ("bin", "sbin", "lib", "lib64"):
        _add_text(tar, name, link=f"usr/{name}")
    for name, mode in (
        ("tmp", 0o1777),
        ("var/tmp", 0o1777),
        ("root", 0o700),
        ("etc/ssl/certs", 0o755),
        ("proc", 0o755),
    ):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        tar.addfile(entry)
    _add_text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    _add_text(tar, "etc/group", "root:x:0:\n")
    _add_text(tar, "etc/nsswitch.conf", "hosts: files dns\n")
    _add_text(tar, _CERTIFICATES, Path(_CERTIFICATES).read_bytes())
    seen: set[str] = set()
    prefix = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = prefix / "lib" / version
    programs = [Path(found) for name in _PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin"))]
    interpreter = (prefix / "bin" / version).resolve()
    extensions = [*library.glob("lib-dynload/*.so")]
    for file in sorted({*programs, *_libraries([interpreter, *programs, *extensions])}):
        _add_file(tar, seen, file, f"usr/{file}" if str(file).startswith(("/lib", "/bin")) else str(file))
    _add_file(tar, seen, interpreter, f"usr/local/bin/{version}")
    for name in ("python", "python3"):
        _add_text(tar, f"usr/local/bin/{name}", link=version)
    for file in prefix.glob("lib/libpython*.so*"):
        _add_file(tar, seen, file, f"usr/local/lib/{file.name}")
    for file in _tree(library):
        _add_file(tar, seen, file, f"usr/local/lib/{version}/{file.relative_to(library)}")
    for package in ("pip", "setuptools"):
        for file in _tree(library / "site-packages" / package):
            _add_file(tar, seen, file, f"usr/local/lib/{version}/{file.relative_to(library)}")


def _libraries(files: Iterable[Path]) -> set[Path]:
    """Shared libraries that programs need, by ldd, and those that are loaded later."""
    said = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    found = {Path(path) for path in re.findall(r"(/\S+\.so\S*) \(0x", said)}
    folders = {path.parent for path in found if path.name == "libc.so.6"}
    folders |= {Path("/usr") / folder.relative_to("/") for folder in folders if not str(folder).startswith("/usr")}
    found |= {folder / name for folder in folders for name in _LIBRARIES if (folder / name).exists()}
    return {path for path in found if not path.name.startswith("libpython")}


def _tree(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _LEFT_OUT.search(f"/{name}")]
        yield from (Path(root) / name for name in files if not name.endswith(".a"))


def _add_file(tar: tarfile.TarFile, seen: set[str], file: Path, name: str) -> None:
    name = name.replace("//", "/").lstrip("/")
    if name in seen:
        return
    seen.add(name)
    entry = tar.gettarinfo(file.resolve(), name)
    entry.uname = entry.gname = ""
    entry.type, entry.linkname, entry.size = (
        tarfile.REGTYPE,
        "",
        file.stat().st_size,
    )  # a hard link is a file of its own
    with file.open("rb") as content:
        tar.addfile(entry, content)


def _add_text(tar: tarfile.TarFile, name: str, content: str | bytes = b"", link: str | None = None) -> None:
    data = content.encode() if isinstance(content, str) else content
    entry = tarfile.TarInfo(name.lstrip("/"))
    entry.size, entry.mode = len(data), 0o644
    if link is not None:
        entry.type, entry.linkname = tarfile.SYMTYPE, link
    tar.addfile(entry, io.BytesIO(data))
