"""Servers on two other machines, over ssh and over TLS: the main job whole, a machine that is cut off in mid-run, GPUs
that two orchestrators want."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import psutil
import pytest

from orchestrator.analysis.results import read_summary
from orchestrator.measuring import store
from runners.base import ServerFailure
from runners.docker import node_facts, owner
from runners.docker.connect import connect
from runners.docker.gpu_lock import NodeLock
from runners.docker.sweep import sweep
from tests import base_image, client_image
from tests.command_process import eventually
from tests.docker_engine import NoEngine
from tests.integration.docker.conftest import EMBEDDED, IMAGE, MOUNTS, ROOT
from tests.nodes import SLOW_S, Node, Nodes

COMMAND = [
    sys.executable, "-m", "orchestrator", "runner=docker_embedded", MOUNTS, "suite=smoke_2", "tracking=none",
]  # fmt: skip
MAIN = ["+experiment=dspine_vs_dflash2", "order=once", "load.warmup_requests=1"]
PAIR = ["+experiment=embedded_drafters", "~arms.dflash2", "~arms.dspine", "load.warmup_requests=0", "order=once"]
LONG = ["suite.max_new_tokens.default=200", "load.stall_timeout_s=10"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two of them with the image; the first has built it, the second got it as a file: there is no registry."""
    with Nodes(2) as found:
        first, second = (node.client() for node in found.nodes)
        base_image.make(first, found.folder)
        first.images.build(fileobj=io.BytesIO(IMAGE), tag=EMBEDDED, rm=True)
        client_image.make(first)
        second.images.load(first.images.get(EMBEDDED).save(named=True))
        for client in (first, second):
            client.close()
        yield found
        assert [node.containers() for node in found.nodes] == [[], []]


@pytest.fixture(autouse=True)
def _ssh(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{nodes.path}:{os.environ['PATH']}")


def over_ssh(node: Node) -> dict[str, Any]:
    return {"kind": "ssh", "host": node.address, "docker_socket": str(node.socket)}


def over_tls(node: Node, nodes: Nodes) -> dict[str, Any]:
    return {"kind": "tls", "url": node.url, "certs": str(nodes.certs)}


def words(node: dict[str, Any]) -> list[str]:
    return [f"node={node['kind']}", *(f"node.{key}={value}" for key, value in node.items() if key != "kind")]


def environment() -> dict[str, str]:
    """Without an engine of this machine; and with what companies set, which must not stand in for a node's own
    certificate authority."""
    nowhere = NoEngine(f"unix://{tempfile.gettempdir()}/no-such.sock")
    bundle = "/etc/ssl/certs/ca-certificates.crt"
    more = {"DOCKER_HOST": nowhere.address, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "REQUESTS_CA_BUNDLE": bundle}
    return os.environ | more


def run(place: Path, node: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *words(node), *more]
    return subprocess.run(
        command, cwd=place, env=environment(), capture_output=True, text=True, timeout=200, check=False
    )


@contextmanager
def going(place: Path, node: dict[str, Any], *more: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose first trial has ended, and whose second server answers requests."""
    process = subprocess.Popen(
        [*COMMAND, *words(node), *more],
        cwd=place, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        eventually(lambda: second_serves(place) or process.poll() is not None, 100)
        assert process.poll() is None, process.communicate()[0]
        yield process
    finally:
        process.kill()
        process.wait()


def second_serves(place: Path) -> bool:
    return any(file.stat().st_size > 2000 for file in place.glob("runs/*/*/sessions/01-*/telemetry*.jsonl"))


def left_here() -> list[list[str]]:
    """Processes that a run may have started on this machine for the sake of a node."""
    found = []
    for one in psutil.process_iter(["cmdline"]):
        command = one.info["cmdline"] or []
        reaper = "runners.docker.reaper" in command and "198.51.100" in str(command)
        if reaper or any("spec-ssh-" in word for word in command):
            found.append(command)
    return found


@pytest.mark.parametrize("way", ["ssh", "tls"])
def test_the_main_job_on_another_machine(way: str, nodes: Nodes, tmp_path: Path, target_folder: Path) -> None:
    del target_folder  # it is there, so that no run fetches it
    node = nodes.nodes[0 if way == "ssh" else 1]
    place = over_ssh(node) if way == "ssh" else over_tls(node, nodes)
    done = run(tmp_path, place, *MAIN)
    assert done.returncode == 0, done.stdout + done.stderr
    (directory,) = tmp_path.glob("runs/dspine_vs_dflash2/*")
    shown = node.address if way == "ssh" else node.url
    summary = read_summary(directory / "summary.json")
    assert summary.status == "finished" and shown in summary.machine
    entries, records = store.load(directory)
    assert [entry.server.arm for entry in entries] == ["plain", "dflash2", "dspine"]
    assert len(records) == 6 and all(record.outcome == "ok" for record in records)
    for entry in entries:
        assert entry.server.peak_memory_bytes is not None and 2**29 < entry.server.peak_memory_bytes < 2**32
        assert entry.server.ceiling is None, "the bandwidth of this machine says nothing of the node's"
    for session in directory.glob("sessions/*"):
        (file,) = session.glob("telemetry*.jsonl")
        lines = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        start = next(line for line in lines if line["kind"] == "start")
        assert start["processes_absent"] is None and start["pid"] < 1000, "it runs in the container"
        served = [line["server"] for line in lines if line["kind"] == "sample" and line["server"]]
        assert len(served) > 5 and max(one["rss_bytes"] for one in served) > 2**29
        assert any(line["kind"] == "clock" for line in lines) and lines[-1] == {"kind": "end", "code": 0, "said": ""}
    again = run(tmp_path, place, *MAIN)
    assert again.returncode == 0 and "3 of 3 trials are measured already" in again.stdout, again.stdout + again.stderr
    assert node.containers() == [] and left_here() == []


@pytest.mark.nightly
def test_a_client_on_the_node_does_not_measure_the_way_there(nodes: Nodes, tmp_path: Path) -> None:
    slow = {"kind": "ssh", "host": "slow-node", "docker_socket": str(nodes.nodes[0].socket)}
    plain = [*PAIR, "~arms.ngram", "load.warmup_requests=1"]
    first: dict[str, list[float]] = {}
    for client in ("here", "node"):
        done = run(tmp_path, slow, *plain, f"load.client={client}", f"name={client}")
        assert done.returncode == 0, done.stdout + done.stderr
        (directory,) = tmp_path.glob(f"runs/{client}/*")
        _, records = store.load(directory)
        first[client] = [record.ttft_s or 0.0 for record in records]
    assert min(first["here"]) > 2 * SLOW_S > min(first["node"]), first
    assert nodes.nodes[0].containers() == [] and left_here() == []


def test_a_plan_asks_nobody(nodes: Nodes, tmp_path: Path) -> None:
    nobody = {"kind": "ssh", "host": "198.51.100.99", "docker_socket": "/run/docker.sock"}
    began = time.monotonic()
    done = run(tmp_path, nobody, *MAIN, "action=plan")
    assert done.returncode == 0, done.stderr
    assert "preliminary, as all keys here: a run first asks 198.51.100.99 for its hardware" in done.stdout
    assert time.monotonic() - began < 20 and left_here() == []


@pytest.mark.parametrize("way", ["ssh", pytest.param("tls", marks=pytest.mark.nightly)])
def test_a_machine_that_is_cut_off_in_mid_run(way: str, nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.nodes[0 if way == "ssh" else 1]
    place = over_ssh(node) if way == "ssh" else over_tls(node, nodes)
    with going(tmp_path, place, *PAIR, *LONG) as process:
        node.cut()
        try:
            began = time.monotonic()
            output = process.communicate(timeout=90)[0]
            took = time.monotonic() - began
        finally:
            node.heal()
    assert process.returncode == 1 and took < 75
    told = "it cannot be reached" if way == "ssh" else "does not answer: its network, or its engine, is down"
    assert f"ngram: {node.address if way == 'ssh' else node.url}" in output and told in output, output
    (directory,) = tmp_path.glob("runs/embedded_drafters/*")
    entries, records = store.load(directory)
    assert [entry.server.arm for entry in entries] == ["plain"] and len(records) == 2
    done = run(tmp_path, place, *PAIR, *LONG)
    assert done.returncode == 0 and "1 of 2 trials are measured already" in done.stdout, done.stdout + done.stderr
    eventually(lambda: node.containers() == [] and left_here() == [], 60)


def refusal(node: dict[str, Any]) -> ServerFailure:
    with pytest.raises(ServerFailure) as refused:
        connect(node)
    assert not list(Path(tempfile.gettempdir()).glob("spec-ssh-*"))
    return refused.value


def test_what_ssh_refuses_says_what_to_do(nodes: Nodes) -> None:
    node = nodes.nodes[0]
    nobody = refusal(over_ssh(node) | {"host": "198.51.100.99"})
    assert nobody.cause == "node_unreachable" and "No route to host" in str(nobody)
    nameless = refusal(over_ssh(node) | {"host": "no-such.invalid"})
    assert nameless.cause == "ssh_name" and "Could not resolve hostname" in str(nameless)
    socketless = refusal(over_ssh(node) | {"docker_socket": "/run/none.sock"})
    assert socketless.cause == "engine_gone" and "there is no /run/none.sock" in str(socketless)
    stranger = refusal(over_ssh(node) | {"host": f"stranger@{node.address}"})
    assert stranger.cause == "ssh_denied" and "Permission denied" in str(stranger)
    kept = nodes.known_hosts.read_text()
    try:
        nodes.known_hosts.write_text("")
        unknown = refusal(over_ssh(node))
        assert unknown.cause == "ssh_host_key" and f"ssh {node.address}" in str(unknown)
        nodes.known_hosts.write_text(nodes.nodes[1].host_key.replace(nodes.nodes[1].address, node.address))
        changed = refusal(over_ssh(node))
        assert changed.cause == "ssh_host_key" and "ssh-keygen -R" in str(changed)
    finally:
        nodes.known_hosts.write_text(kept)


def test_what_tls_refuses_says_what_to_do(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.nodes[0]
    assert "has no ca.pem" in str(refusal({"kind": "tls", "url": node.url, "certs": str(tmp_path)}))
    nobody = refusal(over_tls(node, nodes) | {"url": "tcp://198.51.100.99:2376"})
    assert nobody.cause == "node_unreachable"
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_bytes((nodes.certs / name).read_bytes())
    (tmp_path / "ca.pem").write_bytes(Path("/etc/ssl/certs/ca-certificates.crt").read_bytes())
    foreign = refusal({"kind": "tls", "url": node.url, "certs": str(tmp_path)})
    assert foreign.cause == "tls" and "node.certs" in str(foreign)


def test_a_wrong_node_is_told_before_anything_starts(nodes: Nodes, tmp_path: Path) -> None:
    done = run(tmp_path, over_ssh(nodes.nodes[0]) | {"docker_socket": "/run/none.sock"}, *PAIR)
    assert done.returncode == 2 and "node=ssh" in done.stderr and "there is no /run/none.sock" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_connection_that_was_cut_is_opened_anew(nodes: Nodes) -> None:
    node = nodes.nodes[0]
    with connect(over_ssh(node)) as connection:
        url = connection.reach(22)
        master = next(one for one in psutil.process_iter(["cmdline"]) if "-M" in _ssh_words(one))
        master.kill()
        connection.check()
        assert connection.client.ping() and connection.reach(22) == url
        said = subprocess.run(connection.words("echo", "a  b; $HOME"), capture_output=True, text=True, check=True)
        assert said.stdout == "a  b; $HOME\n"
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 5) as there:
            there.settimeout(5)
            with pytest.raises((OSError, AssertionError)):  # its loopback has no sshd, which only its address has
                assert there.recv(4)
    assert left_here() == []


def _ssh_words(process: psutil.Process) -> list[str]:
    words = process.info["cmdline"] or []
    return words if any("spec-ssh-" in word for word in words) else []


@pytest.mark.parametrize("way", ["ssh", "tls"])
def test_a_node_says_what_it_is(way: str, nodes: Nodes) -> None:
    node = nodes.nodes[0]
    with connect(over_ssh(node) if way == "ssh" else over_tls(node, nodes)) as connection:
        machine = node_facts.read(connection, EMBEDDED, gpus=False)
    assert machine.cpu.threads == os.cpu_count() and machine.cpu.model and machine.gpus.names == ()


def test_a_gpu_has_one_user_at_a_time(nodes: Nodes) -> None:
    node = nodes.nodes[0]
    gone = subprocess.run(
        [sys.executable, "-c", "from runners.docker import owner; print(owner.me())"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    client: Any = docker.DockerClient(base_url=f"unix://{node.socket}")

    def lock(of: str) -> NodeLock:
        labels = owner.labels(owner.new_lease(), directory="/home/ada/run")
        return NodeLock(client, EMBEDDED, labels | {owner.OWNER: of})

    try:
        theirs = lock("gpu-host/0123:4026:77:1234")
        theirs.take(["GPU-aa", "GPU-bb"], "gpu-3")
        with pytest.raises(ServerFailure) as busy:
            lock(owner.me()).take(["GPU-aa"], "gpu-3")
        assert busy.value.cause == "gpu_busy"
        for part in ("process 77 on gpu-host", "/home/ada/run", "docker rm spec-orchestrator-gpu-GPU-aa"):
            assert part in str(busy.value)
        sweep(client)  # of another machine's processes nothing is known
        assert len(node.containers()) == 2
        theirs.release()
        lock(gone).take(["GPU-aa", "GPU-cc"], "gpu-3")
        mine = lock(owner.me())
        mine.take(["GPU-aa"], "gpu-3")
        assert node.containers() == ["spec-orchestrator-gpu-GPU-aa"], "what else a dead one had goes with it"
        mine.release()
        lock(gone).take(["GPU-aa"], "gpu-3")
        assert sweep(client) == ["spec-orchestrator-gpu-GPU-aa"]
    finally:
        for container in client.containers.list(all=True):
            container.remove(force=True)
        client.close()
