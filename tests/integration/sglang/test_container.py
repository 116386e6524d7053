"""A real SGLang in a container: its environment is mounted, since there is no registry to give its image."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.analysis.results import read_summary
from orchestrator.measuring import store
from tests import base_image
from tests.command_process import ENVIRONMENT, ROOT
from tests.docker_engine import DockerEngine
from tests.sglang_cpu import rig

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]
IMAGE = "sglang-cpu:v0.5.23"


def mounts() -> dict[str, str]:
    """SGLang and its interpreter, and this machine's programs: it compiles its n-gram drafter when it starts."""
    compiler = [Path(name) for name in ("/usr/bin", "/usr/lib", "/usr/include", "/etc/alternatives")]
    seen = [*compiler, Path(sys.base_prefix), rig.python().parents[1], rig.STAND_INS]
    return {str(path): str(path) for path in seen}


@pytest.fixture(scope="module")
def engine() -> Iterator[DockerEngine]:
    with DockerEngine() as engine:
        client = engine.client()
        base_image.make(client, engine.folder)
        variables = rig.environment() | {"PATH": f"{rig.python().parent}:/usr/bin:/bin", "LD_LIBRARY_PATH": ""}
        lines = [f"FROM {base_image.NAME}", *(f'ENV {name}="{value}"' for name, value in variables.items())]
        client.images.build(fileobj=io.BytesIO("\n".join(lines).encode()), tag=IMAGE, rm=True)
        client.close()
        yield engine


def test_it_serves_from_a_container(engine: DockerEngine, tmp_path: Path, target_folder: Path) -> None:
    named = ", ".join(f"{path}: {seen}" for path, seen in mounts().items())
    kept = [one for one in rig.overrides(target_folder) if not one.startswith(("runner", "+env.PATH"))]
    command = [
        sys.executable, "-m", "orchestrator", "--config-dir", str(ROOT / "tests/sglang_cpu/conf"),
        "+experiment=sglang_drafters", "~arms.standalone", "suite=lists_3", "tracking=none", "order=once", *kept,
        "runner=docker", f"runner.image={IMAGE}", "runner.pull=never", "runner.ipc_host=false", "runner.shm_size=1g",
        f"runner.hf_cache={tmp_path}/hf", f"runner.kernel_cache={tmp_path}/kernels", f"++runner.mounts={{{named}}}",
        "node.gpus=[]",
    ]  # fmt: skip
    environment = ENVIRONMENT | {"DOCKER_HOST": engine.address, "SPEC_ORCHESTRATOR_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert engine.containers() == []
    (directory,) = (tmp_path / "runs/sglang_drafters").iterdir()
    entries, records = store.load(directory)
    assert {entry.server.arm: entry.server.identity["speculative_algorithm"] for entry in entries} == {
        "plain": None,
        "ngram": "NGRAM",
    }
    assert {entry.server.identity["version"] for entry in entries} == {"0.5.23"}
    assert len(records) == 6 and {record.outcome for record in records} == {"ok"}
    (ngram,) = [arm for arm in read_summary(directory / "summary.json").arms if arm.name == "ngram"]
    assert ngram.lossless is not None and (ngram.lossless.identical, ngram.lossless.compared) == (3, 3)
    assert ngram.point is not None and ngram.point.acceptance is not None and ngram.point.acceptance.tau > 1
