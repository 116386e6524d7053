"""Arms that cannot run are named at once with what they lack."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.names import ConfigError
from orchestrator.planning import hardware, preflight
from orchestrator.schema import (
    ArmConfig,
    AttachRunner,
    DockerRunner,
    Experiment,
    MlflowTracking,
    NoTracking,
    ProcessRunner,
    SshNode,
)
from tests import plan_factory
from tests.engine_process import free_port
from tests.unit.test_schema import drafter

DOCKER = DockerRunner(
    engine="sglang",
    threads=None,
    kind="docker", image="sglang:1", pull="missing", network="bridge", ipc_host=True, shm_size=None, ulimits={},
    hf_cache="~/hf", kernel_cache="~/k", offline=True, mounts={}, port=None, ready_timeout_s=1.0, start_s=1.0,
)  # fmt: skip


def experiment(*arms: ArmConfig, allow: bool = False) -> Experiment:
    made, _ = plan_factory.comparison(Path("runs"), *arms)
    return made.model_copy(update={"allow_missing_arms": allow})


def arm(name: str, **changes: Any) -> ArmConfig:
    return plan_factory.arm(name, plan_factory.suite(), plan_factory.load()).model_copy(update=changes)


def target(name: str, path: str) -> Any:
    return arm("plain").target.model_copy(update={"name": name, "path": path})


def lacks(**changes: Any) -> str | None:
    return preflight.missing_arms(experiment(arm("plain"), arm("x", **changes))).get("x")


def test_nothing_is_missing_where_all_is_there(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    own = drafter("dspine", checkpoints={"smollm2_135m": {"path": str(weights)}})
    assert lacks(drafter=own) == (f"drafter=dspine: config.json and model.safetensors are missing in {weights}")
    (weights / "config.json").write_text("{}")
    assert lacks(drafter=own) == f"drafter=dspine: model.safetensors is missing in {weights}"
    (weights / "model.safetensors").write_bytes(b"")
    assert lacks(drafter=own) is None
    assert lacks(drafter=drafter("ngram")) is None


def test_sglang_takes_weights_in_several_files_and_makes_them_up_where_it_is_told_to(tmp_path: Path) -> None:
    runner = ProcessRunner(kind="process", command=("sglang",), port=None, ready_timeout_s=1.0, start_s=1.0)
    own = drafter("dflash", checkpoints={"smollm2_135m": {"path": str(tmp_path)}})
    told = lacks(drafter=own, runner=runner)
    assert told is not None and "config.json and weights (*.safetensors, *.bin, *.pt, *.gguf) are missing" in told
    (tmp_path / "config.json").write_text("{}")
    assert "weights (" in (lacks(drafter=own, runner=runner) or "")
    assert "missing" not in (lacks(drafter=own, runner=runner, server_args={"load-format": "dummy"}) or "")
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"")
    assert "missing" not in (lacks(drafter=own, runner=runner) or "")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert lacks(drafter=drafter("eagle3")) == (
        "drafter=eagle3: the embedded engine does not have it; it needs SGLang (runner=docker)"
    )
    assert lacks(target=target("hf_folder", str(tmp_path))) == (
        f"target.path={tmp_path}: the folder holds no config.json, so it is no model's"
    )
    (tmp_path / "config.json").write_text("{}")
    assert lacks(drafter=drafter("dspine"), target=target("hf_folder", str(tmp_path))) == (
        "drafter=dspine: has no weights for target=hf_folder; "
        "it has weights for target=smollm2_135m, target=qwen3_8_27b"
    )
    assert lacks(target=target("hf_folder", "/no/such/folder")) == (
        "target.path=/no/such/folder: there is no such folder"
    )
    assert lacks(target=target("qwen3_8b", "Qwen/Qwen3-8B")) == (
        "target.path=Qwen/Qwen3-8B: the embedded engine fetches nothing by this name; give a folder "
        "(target=hf_folder), or take a GPU node (preset=gpu)"
    )
    large = target("qwen3_8_27b", "Qwen/Qwen3.8-27B")
    of_the_arm = {"target": large, "runner": DOCKER, "overrides": ("drafter=dspine",)}
    assert lacks(drafter=drafter("dspine"), **of_the_arm) == (
        "drafter=dspine: no image with the vendor's code and no public weights for target=qwen3_8_27b; name what there "
        'is in the arm: \'arms.x=["drafter=dspine","drafter.plugin.image=<tag>",'
        '"drafter.checkpoints.qwen3_8_27b.path=<folder or id>"]\''
    )
    built = drafter("dspine", plugin={"image": "vendor:1", "entry_point": "dspine"})
    assert lacks(drafter=built, **of_the_arm) == (
        "drafter=dspine: no public weights for target=qwen3_8_27b; name what there is in the arm: "
        '\'arms.x=["drafter=dspine","drafter.checkpoints.qwen3_8_27b.path=<folder or id>"]\''
    )
    assert lacks(drafter=drafter("mtp"), target=large, runner=DOCKER) is None
    assert lacks(drafter=drafter("dflash2"), target=large, runner=DOCKER) is None


def test_the_folders_of_another_machine_are_not_looked_for_here() -> None:
    served = AttachRunner(
        kind="attach", engine="sglang", threads=None, url="http://gpu-3:1", ready_timeout_s=1.0, start_s=1.0
    )
    there = SshNode(kind="ssh", host="gpu-3", docker_socket="/s", gpus=None, expect_gpu=None)
    own = target("mine", "/on/the/node")
    assert lacks(target=own, runner=served) is None
    assert lacks(target=own, runner=DOCKER, node=there) is None
    trained = drafter("dflash", checkpoints={"mine": {"path": "/on/the/node/too"}})
    assert lacks(target=own, runner=DOCKER, node=there, drafter=trained) is None
    assert lacks(target=own, runner=DOCKER) is not None


def test_missing_arms_refuse_the_comparison_unless_allowed() -> None:
    gap = arm("x", drafter=drafter("eagle3"))
    refused = experiment(arm("plain"), arm("ngram"), gap)
    with pytest.raises(
        ConfigError, match=r"1 of 3 arms cannot run:\n  x: drafter=eagle3.*\n  hint: allow_missing_arms=true"
    ):
        preflight.refuse_missing(refused, preflight.missing_arms(refused))
    allowed = experiment(arm("plain"), arm("ngram"), gap, allow=True)
    preflight.refuse_missing(allowed, preflight.missing_arms(allowed))


def test_a_missing_baseline_is_refused_always() -> None:
    one = experiment(arm("plain", target=target("a", "/no/such/folder")), arm("ngram"), allow=True)
    with pytest.raises(ConfigError, match="the baseline cannot run"):
        preflight.refuse_missing(one, preflight.missing_arms(one))


def test_a_gpu_machine_without_a_docker_engine_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hardware, "gpus", lambda: hardware.Gpus(("NVIDIA H100",), "580"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    one = experiment(arm("plain", runner=DOCKER))
    told = r"(?s)a GPU is visible here \(NVIDIA H100\).*no container engine.*systemctl start docker.*runner=embedded"
    with pytest.raises(ConfigError, match=told):
        preflight.check_machine(one)


def test_an_sglang_that_is_not_there_is_told_before_anything_starts() -> None:
    process = ProcessRunner(kind="process", command=("no-sglang", "serve"), port=None, ready_timeout_s=1.0, start_s=1.0)
    with pytest.raises(ConfigError, match=r"(?s)there is no program no-sglang .*runner.command="):
        preflight.check_machine(experiment(arm("plain", runner=process)))
    preflight.check_machine(experiment(arm("plain")))


def test_an_interpreter_without_sglang_is_told_before_anything_starts(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "sglang.launch_server")
    process = ProcessRunner(kind="process", command=command, port=None, ready_timeout_s=1.0, start_s=1.0)
    with pytest.raises(ConfigError, match=rf"(?s)its interpreter {sys.executable} has no package sglang.*install"):
        preflight.check_machine(experiment(arm("plain", runner=process)))
    script = tmp_path / "sglang"
    script.write_text("#!/no/such/python\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match=r"its interpreter cannot be run: .*/no/such/python"):
        preflight.check_machine(experiment(arm("plain", runner=process.model_copy(update={"command": (str(script),)}))))


def test_a_server_that_does_not_answer_is_told_before_anything_starts() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    attach = AttachRunner(kind="attach", engine="sglang", threads=None, url=url, ready_timeout_s=1.0, start_s=1.0)
    with pytest.raises(ConfigError, match=f"runner.url={url}: no server answers there"):
        preflight.check_machine(experiment(arm("plain", runner=attach)))


def test_the_embedded_engine_without_torch_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"(?s)torch, which is not installed.*pip install"):
        preflight.check_machine(experiment(arm("plain")))


def in_folders(output: Path | str, uri: str | None = None) -> Experiment:
    tracking = NoTracking(kind="none") if uri is None else MlflowTracking(kind="mlflow", uri=uri)
    return experiment(arm("plain")).model_copy(update={"output": str(output), "tracking": tracking})


def test_results_that_cannot_be_written_are_told_before_anything_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for output, told in (
        (file, "results cannot be written there: .*/file is a file"),
        ("a${b}", "results cannot be written there: Hydra"),
        (file / "below", "output=.*/file/below: results cannot be written there"),
        ("/proc/nope", r"output=/proc/nope: results cannot be written there: .+ \(/proc/nope\)"),
        (tmp_path / ("n" * 300), "results cannot be written there: File name too long"),
    ):
        with pytest.raises(ConfigError, match=told):
            preflight.check_machine(in_folders(output))
    preflight.check_machine(in_folders(tmp_path / "not" / "yet"))
    assert list(tmp_path.iterdir()) == [file], "nothing is left behind"


def test_a_database_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for uri, told in (
        (
            "sqlite:////proc/mlflow.db",
            "tracking.uri=sqlite:////proc/mlflow.db: MLflow's file cannot be written there: ",
        ),
        (f"sqlite:///{file}/mlflow.db?timeout=9", "file is a file\n  hint: tracking.uri=sqlite:////<absolute path>"),
        (f"sqlite:///{tmp_path}", "is a folder"),
    ):
        with pytest.raises(ConfigError, match=told):
            preflight.check_machine(in_folders(tmp_path, uri))
    for uri in (f"sqlite:///{tmp_path}/new/mlflow.db", f"sqlite:///{file}", "sqlite:///:memory:", "http://127.0.0.1:9"):
        preflight.check_machine(in_folders(tmp_path, uri))
    results = tmp_path / "results"
    results.mkdir()
    monkeypatch.chdir("/proc")
    with pytest.raises(ConfigError, match="file cannot be written there"):
        preflight.check_machine(in_folders(results, "sqlite:///mlflow.db"))
    preflight.check_machine(in_folders(results))
