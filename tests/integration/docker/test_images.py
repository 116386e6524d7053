"""Images from a registry: pulled as the config says, known by their digest, and what fails is told."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from runners.base import ServerFailure
from runners.docker import images
from tests import base_image, registry
from tests.docker_engine import DockerEngine


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, str]]:
    with registry.serving() as found:
        yield found


def test_an_image_is_pulled_once_and_known_by_its_registry_s_digest(
    engine: DockerEngine, served: tuple[str, str]
) -> None:
    client, told = engine.client(), []
    image = f"{served[0]}/{registry.NAME}:1"
    with pytest.raises(ServerFailure) as raised:
        images.ensure(client, image, "never", told.append)
    assert raised.value.cause == "image_missing" and told == []
    try:
        assert images.ensure(client, image, "missing", told.append) == served[1]
        assert any(re.search(r"pulling \S+: \d+ of 3 MB", text) for text in told)
        told.clear()
        assert images.ensure(client, image, "missing", told.append) == served[1] and told == []
        assert images.ensure(client, image, "always", told.append) == served[1] and told != []
        assert images.ensure(client, image, "never", told.append) == served[1]
        by_digest = f"{served[0]}/{registry.NAME}@{served[1]}"
        assert images.ensure(client, by_digest, "always", told.append) == served[1]
    finally:
        client.images.remove(image, force=True)


def test_a_pull_ends_with_what_the_person_who_waits_does(engine: DockerEngine, served: tuple[str, str]) -> None:
    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        images.ensure(engine.client(), f"{served[0]}/{registry.NAME}:1", "missing", stop)


def test_a_tag_that_the_registry_does_not_have(engine: DockerEngine, served: tuple[str, str]) -> None:
    with pytest.raises(ServerFailure) as raised:
        images.ensure(engine.client(), f"{served[0]}/{registry.NAME}:2", "missing", lambda text: None)
    assert raised.value.cause == "pull_refused" and "check runner.image" in str(raised.value)


def test_an_image_that_was_built_here_is_known_by_its_content(engine: DockerEngine) -> None:
    client = engine.client()
    assert images.digest(client, base_image.NAME) == client.images.get(base_image.NAME).id
    assert images.digest(client, "no/such") is None
