"""The runner against a real engine: what a container is given, what is read from it, that it goes, what is refused."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from runners.base import ServerFailure
from runners.docker import owner
from runners.starting import answers
from tests import base_image
from tests.command_process import eventually
from tests.container_server import SmallServer, config, make_runner
from tests.docker_engine import DockerEngine


def quiet(text: str) -> None:
    pass


def get(url: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(url + path, timeout=10) as answer:
        return dict(json.load(answer))


def test_a_server_is_started_proven_and_removed(engine: DockerEngine, place: Path) -> None:
    software, told = SmallServer(), []
    runner = make_runner(place.parent, software)
    (place / "model").mkdir()
    handle = runner.start(config(mounts={str(place / "model"): "/seen"}), place, told.append)
    try:
        client = engine.client()
        (container,) = client.containers.list()
        labels = container.labels
        assert labels[owner.OWNER] == owner.me() and not owner.is_gone(labels[owner.OWNER])
        assert labels[f"{owner.PREFIX}.arm"] == "plain" and labels[f"{owner.PREFIX}.directory"] == str(place)
        host = container.attrs["HostConfig"]
        assert host["Init"] is True and host["AutoRemove"] is False and host["Privileged"] is False
        assert host["PortBindings"] == {"30000/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
        mounts = {mount["Target"]: (mount["Source"], mount.get("ReadOnly", False)) for mount in host["Mounts"]}
        hf, kernels = f"{place.parent}/hf", f"{place.parent}/kernels"
        assert mounts == {"/seen": (str(place / "model"), True), hf: (hf, False), kernels: (kernels, False)}
        assert Path(hf).is_dir() and Path(kernels).is_dir()
        env = handle.identity["env"]
        assert env["MARK"] == "m" and env["HF_HOME"] == hf and env["SGLANG_CACHE_DIR"] == kernels
        assert env["HF_HUB_OFFLINE"] == env["TRANSFORMERS_OFFLINE"] == "1"
        assert handle.identity["image"] == base_image.NAME
        assert handle.identity["image_digest"] == client.images.get(base_image.NAME).id
        assert handle.identity["container_engine"].startswith("Docker ")
        assert json.loads((handle.tokenizer / "tokenizer_config.json").read_text()) == {"chat_template": "x"}
        assert software.asked.startswith("Python 3.") and runner.failure(handle) is None
        peak = runner.peak_memory_bytes(handle)
        assert peak is not None and 2**22 < peak < 2**27
        assert container.top()["Processes"][-1][1] in map(str, handle.pids)
        told_command = (place / "command.txt").read_text()
        assert "hidden" not in told_command + str(labels) and "--env HF_TOKEN" in told_command
        get(handle.url, "/say")
        eventually(lambda: handle.log.read_text().split() == ["ready", "said"], 5)
    finally:
        runner.stop(handle)
    assert engine.containers() == [] and any("container" in text for text in told)


def test_the_command_that_is_shown_does_the_same_by_hand(engine: DockerEngine, place: Path) -> None:
    """The first ``docker`` on the PATH may be newer than the engine: it is told which one to use."""
    runner = make_runner(place.parent)
    runner.stop(runner.start(config(), place, quiet))
    words = shlex.split((place / "command.txt").read_text())
    name = ["--name", "by-hand", "--detach"]
    done = subprocess.run(
        [words[0], "--host", engine.address, words[1], *name, *words[2:]], capture_output=True, text=True, check=False
    )
    client = engine.client()
    try:
        assert done.returncode == 0, done.stderr
        container = client.containers.get("by-hand")
        port = container.ports["30000/tcp"][0]["HostPort"]
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: answers(url), 10)  # it says that it is ready a moment before it listens
        assert get(url, "/")["env"]["MARK"] == "m"
    finally:
        client.containers.get("by-hand").remove(force=True)


def refused(runner: Any, asked: dict[str, Any], place: Path) -> ServerFailure:
    with pytest.raises(ServerFailure) as raised:
        runner.stop(runner.start(asked, place, quiet))
    return raised.value


def test_an_image_that_is_not_there_is_never_pulled_unasked(engine: DockerEngine, place: Path) -> None:
    failure = refused(make_runner(place), config(image="spec-orchestrator/sglang:v0"), place)
    assert failure.cause == "image_missing" and "-f containers/sglang/Dockerfile" in str(failure)


def test_a_registry_that_does_not_answer_is_told(engine: DockerEngine, place: Path) -> None:
    with socket.socket() as taken:  # a port of this machine on which nothing answers
        taken.bind(("127.0.0.1", 0))
        image = f"127.0.0.1:{taken.getsockname()[1]}/no/such:1"
        failure = refused(make_runner(place, pull="missing"), config(image=image), place)
    assert failure.cause == "registry_unreachable" and image in str(failure)


def test_a_port_that_is_taken(engine: DockerEngine, place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        failure = refused(make_runner(place, port=taken.getsockname()[1]), config(), place)
    assert failure.cause == "port_in_use" and "runner.port=null" in str(failure)


def test_a_folder_that_is_not_there_is_not_made(engine: DockerEngine, place: Path) -> None:
    failure = refused(make_runner(place), config(mounts={str(place / "typo"): "/seen"}), place)
    assert failure.cause == "mount_missing" and str(place / "typo") in str(failure)
    assert not (place / "typo").exists()


def test_a_program_that_the_image_lacks(engine: DockerEngine, place: Path) -> None:
    failure = refused(make_runner(place, SmallServer(program="sglang")), config(), place)
    assert failure.cause == "command" and "runner.engine" in str(failure) and "exec sglang failed" in failure.detail


def test_a_limit_that_the_node_does_not_allow(engine: DockerEngine, place: Path) -> None:
    runner = make_runner(place)
    handle = runner.start(config(ulimits={"nofile": 512}), place, quiet)
    try:
        (container,) = engine.client().containers.list()
        assert container.exec_run(["sh", "-c", "ulimit -n"]).output.split() == [b"512"]
    finally:
        runner.stop(handle)
    failure = refused(make_runner(place), config(ulimits={"nofile": 2**31 - 1}), place)
    assert failure.cause == "limits" and "runner.ulimits" in str(failure)


def test_gpus_of_an_engine_without_the_toolkit(engine: DockerEngine, place: Path) -> None:
    asked = config()
    asked["node"]["gpus"] = [0]
    failure = refused(make_runner(place), asked, place)
    assert failure.cause == "gpu_runtime" and "Container Toolkit" in str(failure)


def test_a_server_that_ends_before_it_is_ready(engine: DockerEngine, place: Path) -> None:
    failure = refused(make_runner(place, SmallServer(first="raise SystemExit('no such model')\n")), config(), place)
    assert failure.cause == "died" and not failure.served and failure.detail == "no such model"


@pytest.mark.parametrize(
    ("what", "cause"), [("kill", "killed"), ("stop", "stopped"), ("remove", "container_gone"), ("end", "died")]
)
def test_a_container_that_ends_while_it_serves(engine: DockerEngine, place: Path, what: str, cause: str) -> None:
    runner = make_runner(place)
    handle = runner.start(config(), place, quiet)
    try:
        (container,) = engine.client().containers.list()
        if what == "kill":
            container.kill()
        elif what == "stop":
            container.stop(timeout=5)
        elif what == "remove":
            container.remove(force=True)
        else:
            with pytest.raises((urllib.error.URLError, OSError)):
                get(handle.url, "/end")
        eventually(lambda: runner.failure(handle), 5)
        failure = runner.failure(handle)
        assert failure is not None and failure.served and failure.cause == cause and failure.log == handle.log
    finally:
        runner.stop(handle)


def test_a_server_that_the_kernel_ends_for_memory(engine: DockerEngine, place: Path) -> None:
    runner = make_runner(place)
    handle = runner.start(config(), place, quiet)
    try:
        (container,) = engine.client().containers.list()
        container.update(mem_limit="100m", memswap_limit="100m")
        with pytest.raises((urllib.error.URLError, OSError)):
            get(handle.url, "/grow")
        eventually(lambda: runner.failure(handle), 10)
        failure = runner.failure(handle)
        assert failure is not None and failure.cause == "memory" and failure.served
    finally:
        runner.stop(handle)
