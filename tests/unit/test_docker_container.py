"""What an engine is asked for, as data."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.names import ConfigError
from orchestrator.planning import identity, image_lock
from orchestrator.schema import ArmConfig
from runners.base import Launch
from runners.docker import container, images, inside, owner
from runners.docker.ask import ImageAsker
from runners.docker.before import refuse
from tests import plan_factory
from tests.unit.test_preflight import DOCKER

LAUNCH = Launch(["sglang", "serve", "--model-path", "a b"], {"MODE": "compact", "HF_TOKEN": "hidden"})


def place(**changes: Any) -> container.Place:
    facts: dict[str, Any] = {
        "image": "sglang:1", "gpus": ("0", "GPU-abc"), "read_only": {"/models/x": "/models/x"}, "caches": ("/hf",),
        "env": {"HF_HOME": "/hf"}, "user": None, "ipc_host": True, "shm_size": "32g",
        "ulimits": {"memlock": -1}, "port": None,
    }  # fmt: skip
    return container.Place(**facts | changes)


def test_the_engine_is_asked_for_what_the_config_says() -> None:
    asked = container.arguments(place(), LAUNCH, {"label": "x"})
    assert (asked["entrypoint"], asked["command"]) == (["sglang"], ["serve", "--model-path", "a b"])
    assert asked["environment"] == {"HF_HOME": "/hf", "MODE": "compact", "HF_TOKEN": "hidden"}
    (gpus,) = asked["device_requests"]
    assert gpus["DeviceIDs"] == ["0", "GPU-abc"] and gpus["Count"] == 0 and gpus["Capabilities"] == [["gpu"]]
    assert [(one["Source"], one["Target"], one["Type"], one["ReadOnly"]) for one in asked["mounts"]] == [
        ("/models/x", "/models/x", "bind", True),
        ("/hf", "/hf", "bind", False),
    ]
    assert asked["ports"] == {"30000/tcp": ("127.0.0.1", None)}
    assert (asked["ipc_mode"], asked["shm_size"], asked["init"]) == ("host", None, True)
    assert [dict(one) for one in asked["ulimits"]] == [{"Name": "memlock", "Soft": -1, "Hard": -1}]
    assert "auto_remove" not in asked and "privileged" not in asked and asked["labels"] == {"label": "x"}


def test_without_gpus_none_are_asked_for_and_shared_memory_is_as_large_as_set() -> None:
    asked = container.arguments(place(gpus=(), ipc_host=False, port=8123), LAUNCH, {})
    assert asked["device_requests"] is None and (asked["ipc_mode"], asked["shm_size"]) == (None, "32g")
    assert asked["ports"] == {"30000/tcp": ("127.0.0.1", 8123)}


def test_the_command_line_holds_no_secret() -> None:
    words = container.command_line(place(), LAUNCH)
    assert words == shlex.split(
        "docker run --rm --init --security-opt no-new-privileges --gpus '\"device=0,GPU-abc\"' "
        "--publish 127.0.0.1::30000 --ipc host --ulimit memlock=-1 "
        "--mount type=bind,source=/models/x,target=/models/x,readonly --mount type=bind,source=/hf,target=/hf "
        "--env HF_HOME=/hf --env MODE=compact --env HF_TOKEN --entrypoint sglang sglang:1 serve --model-path 'a b'"
    )


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({"engine": "embedded"}, ()),
        ({"engine": "sglang", "node": {"gpus": None}, "target": {"tp_size": 2}}, ("0", "1")),
        ({"engine": "sglang", "node": {"gpus": [3, "GPU-x"]}, "target": {"tp_size": 2}}, ("3", "GPU-x")),
    ],
)
def test_gpus_are_named(config: dict[str, Any], ids: tuple[str, ...]) -> None:
    assert container.gpu_ids(config) == ids


def test_models_are_mounted_where_they_lie() -> None:
    snapshot = "/hf/hub/models--a--b/snapshots/123"
    config = {
        "target": {"path": snapshot, "tokenizer_path": None, "chat_template": "/t/chat.jinja"},
        "drafter": {"path": "incoai/Qwen3.8-27B-DFlash2"},
        "verification": {"sps_table": "/t/table.json"},
    }
    assert container.model_mounts(config) == {
        path: path for path in ("/hf/hub/models--a--b", "/t/chat.jinja", "/t/table.json")
    }
    assert container.model_mounts({"target": {"path": "a/b"}, "drafter": {}}) == {}


def test_offline_means_that_hugging_face_is_not_asked() -> None:
    offline = container.cache_env("/hf", "/kernels", True)
    assert offline["HF_HOME"] == "/hf" and offline["SGLANG_CACHE_DIR"] == "/kernels"
    assert {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"} <= set(offline)
    assert not {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"} & set(container.cache_env("/hf", "/kernels", False))


def test_peaks_are_summed_over_the_server_s_processes() -> None:
    blocks = [
        "Name:\tdocker-init\nPid:\t1\nVmHWM:\t     800 kB\n",
        "Name:\tsglang::schedul\nPid:\t7\nVmPeak:\t 9999 kB\nVmHWM:\t    1000 kB\n",
        "Name:\tpython\nPid:\t8\nVmHWM:\t     24 kB\n",
        "Name:\tkthread\nPid:\t9\n",
        "Name:\tcat\nPid:\t20\nVmHWM:\t     700 kB\n",
    ]
    assert inside.sum_of_peaks("".join(blocks)) == 1024 * 1024
    assert inside.sum_of_peaks("") is None


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        ("sglang", "sglang"),
        ("lmsysorg/sglang:v0.5.23", "lmsysorg/sglang"),
        ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b"),
        ("127.0.0.1:5000/a/b:1", "127.0.0.1:5000/a/b"),
        ("a/b@sha256:12", "a/b"),
    ],
)
def test_the_repository_of_an_image(image: str, repository: str) -> None:
    assert images._repository(image) == repository


def test_the_network_of_the_node_needs_no_published_port() -> None:
    asked = container.arguments(place(network="host", port=31000), LAUNCH, {})
    assert asked["network_mode"] == "host" and "ports" not in asked
    words = container.command_line(place(network="host", port=31000), LAUNCH)
    assert words[words.index("--network") + 1] == "host" and "--publish" not in words
    assert "network_mode" not in container.arguments(place(), LAUNCH, {})


def test_how_to_get_an_image_of_this_project_is_to_build_it() -> None:
    for image in ("spec-orchestrator/embedded:latest", "spec-orchestrator/sglang"):
        folder = image.partition("/")[2].partition(":")[0]
        assert f"docker build -t {image} -f containers/{folder}/Dockerfile ." in images.how_to_get(image, "never")
    assert "docker pull a/b" in images.how_to_get("a/b", "never")


def test_the_lock_file_keeps_what_others_wrote(tmp_path: Path) -> None:
    assert image_lock.read(tmp_path) == {}
    for image, digest in (("a:1", "sha256:1"), ("b:1", "sha256:2"), ("a:1", "sha256:3")):
        image_lock.write(tmp_path, image, digest)
    assert image_lock.read(tmp_path) == {"a:1": "sha256:3", "b:1": "sha256:2"}


@pytest.mark.parametrize("content", [b"{broken", b"[1]", b"\xff\xfe", b""])
def test_a_damaged_image_lock_is_told_by_its_path(tmp_path: Path, content: bytes) -> None:
    (tmp_path / image_lock.NAME).write_bytes(content)
    with pytest.raises(ConfigError, match=r"images\.lock\.json: cannot be read"):
        image_lock.read(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {image_lock.NAME, f".{image_lock.NAME}"}


def test_an_owner_is_known_to_be_gone_only_where_that_can_be_seen() -> None:
    mine = owner.me()
    where, _, _ = mine.rpartition(":")
    assert not owner.is_gone(mine)
    assert owner.is_gone(f"{where}:1")  # its number is another process's by now
    assert not owner.is_gone(f"elsewhere/1:{mine.partition(':')[2]}") and not owner.is_gone("nonsense")
    tell = "from runners.docker import owner; print(owner.me())"
    ended = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True)
    assert owner.is_gone(ended.stdout.strip()) and ended.stdout.strip() != mine


def test_what_an_image_said_is_asked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPEC_ORCHESTRATOR_CACHE", str(tmp_path))
    asked: list[Any] = []

    def run(self: ImageAsker, words: Any) -> str:
        asked.append(words)
        return f"answer {len(asked)}"

    monkeypatch.setattr(ImageAsker, "_run", run)
    client: Any = None
    for digest, words, said in (
        ("sha256:1", ["--help"], "answer 1"),
        ("sha256:1", ["--help"], "answer 1"),
        ("sha256:1", ["--version"], "answer 2"),
        ("sha256:2", ["--help"], "answer 3"),
    ):
        assert ImageAsker(client, "a:1", digest, (), {}, {})(words) == said
    assert os.listdir(tmp_path) == ["images"]


def test_containers_need_docker_s_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.docker.before.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"(?s)needs Docker's client.*pip install"):
        refuse([plan_factory.arm("plain", plan_factory.suite(), plan_factory.load(), runner=DOCKER)])


def test_a_server_in_a_container_is_known_by_the_digest_of_its_image() -> None:
    arm = plan_factory.arm("plain", plan_factory.suite(), plan_factory.load(), runner=DOCKER)
    other = plan_factory.arm(
        "plain", plan_factory.suite(), plan_factory.load(), runner=DOCKER.model_copy(update={"image": "sglang:2"})
    )

    def content(one: ArmConfig, known: dict[str, str], engine: str = "1") -> str:
        facts = {"weights": {}, "images": known, "engine": {"embedded": {"sources": engine}, "sglang": {"x": engine}}}
        return identity.content_hash(identity.arm_content(one, facts))

    here = content(arm, {"sglang:1": "sha256:a"})
    assert here == content(other, {"sglang:2": "sha256:a"}), "a tag is a name"
    assert here == content(arm, {"sglang:1": "sha256:a"}, engine="2"), "what is installed here does not serve"
    assert here != content(arm, {"sglang:1": "sha256:b"}) and here != content(arm, {})
    assert content(arm, {}) != content(other, {})
