"""The image of the load client without an index of packages: what is installed here, on the base image of the tests."""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests import base_image

NAME = "spec-orchestrator/client:latest"
_PACKAGES = (
    "orjson", "pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection", "uvloop",
)  # fmt: skip


def make(client: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for package in _PACKAGES:
            for file in importlib.metadata.files(package) or []:
                if file.suffix != ".pyc" and ".." not in file.parts:
                    target = place / "packages" / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file.locate(), target)
        (place / "Dockerfile").write_text(
            f"FROM {base_image.NAME}\nCOPY packages /opt/packages\nENV PYTHONPATH=/opt/packages\nUSER 10001:10001\n"
        )
        client.images.build(path=folder, tag=NAME, rm=True)
