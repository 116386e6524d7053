"""One engine for the tests of this folder, and more of them where one has to fail."""

from __future__ import annotations

import io
import site
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import base_image
from tests.docker_engine import DockerEngine

EMBEDDED = "spec-orchestrator/embedded:latest"
ROOT = Path(__file__).parents[3]
PACKAGES = site.getsitepackages()[0]
MOUNTS = f"++runner.mounts={{{PACKAGES}: /opt/packages, {ROOT}/runners: /opt/project/runners}}"
"""What the image of containers/embedded holds, from here: installing torch into an image takes a minute."""
IMAGE = b"""FROM python:3.11-slim
ENV PYTHONPATH=/opt/packages:/opt/project PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=engine
"""


def with_images(engine: DockerEngine) -> DockerEngine:
    client = engine.client()
    base_image.make(client, engine.folder)
    client.images.build(fileobj=io.BytesIO(IMAGE), tag=EMBEDDED, rm=True)
    client.close()
    return engine


@pytest.fixture(scope="session")
def shared_engine() -> Iterator[DockerEngine]:
    with DockerEngine() as engine:
        yield with_images(engine)


@pytest.fixture
def engine(shared_engine: DockerEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerEngine]:
    """The shared engine, as the one that a user has; a test leaves no container on it."""
    monkeypatch.setenv("DOCKER_HOST", shared_engine.address)
    yield shared_engine
    assert shared_engine.containers() == []


@pytest.fixture
def own_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerEngine]:
    """An engine that the test may do anything to."""
    with DockerEngine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        yield with_images(engine)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a session. What images were asked is kept apart from the user's cache."""
    monkeypatch.setenv("SPEC_ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "run" / "sessions" / "00-plain"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _no_credentials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of the user's, whatever is pulled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_CONFIG", str(tmp_path_factory.mktemp("docker")))
        yield
