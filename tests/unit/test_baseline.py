"""The bandwidth ceiling of a plain server: from what the server says, from the GPU's name, and measured on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis import baseline
from orchestrator.analysis.baseline import (
    ceiling_tok_s,
    find,
    gpu_bandwidth,
    model_config,
    read_bandwidth,
    settings,
    weights_bytes,
)

# What SGLang 0.5.16 said of a Qwen3-8B on an H200, cut to what is read.
SGLANG: dict[str, Any] = {
    "model_path": "/models/qwen3-8b", "dtype": "auto", "device": "cuda", "tp_size": 1, "pp_size": 1,
    "disable_overlap_schedule": False, "disable_cuda_graph": False, "disable_decode_cuda_graph": False,
    "cuda_graph_config": {"decode": {"backend": "full", "max_bs": 16}, "prefill": {"backend": "breakable"}},
    "internal_states": [{"memory_usage": {"weight": 15.28, "kvcache": 82.43, "token_capacity": 600210, "graph": 0.18}}],
}  # fmt: skip
QWEN3_8B = {"vocab_size": 151936, "hidden_size": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
H200 = {"name": "NVIDIA H200", "uuid": "GPU-0", "memory_bus_bits": 6144, "memory_max_mhz": 3201}


def test_a_published_plain_arm_is_a_half_of_its_ceiling() -> None:
    """27B parameters in bfloat16 on an H100 at 3.35 TB/s: 62 tokens/s at most; the published plain arm had 33."""
    bandwidth = gpu_bandwidth([{"name": "NVIDIA H100 80GB HBM3"}]).value
    assert bandwidth is not None
    assert ceiling_tok_s(54e9, bandwidth) == pytest.approx(62, abs=0.1)


def test_the_input_embedding_is_not_read_unless_it_is_the_head() -> None:
    tied = weights_bytes(SGLANG, QWEN3_8B | {"tie_word_embeddings": True})
    untied = weights_bytes(SGLANG, QWEN3_8B)
    assert tied.value == 15.28 * 2**30
    assert untied.value == pytest.approx(15.28 * 2**30 - 151936 * 4096 * 2)
    assert untied.value == pytest.approx(15.16e9, rel=1e-3), "8.19e9 parameters less 0.62e9, two bytes each"
    nested = {"text_config": QWEN3_8B, "vision_config": {}}
    assert weights_bytes(SGLANG, nested).value == untied.value
    assert weights_bytes(SGLANG, None).value == tied.value, "without config.json nothing is taken off"
    split = weights_bytes(SGLANG | {"tp_size": 2}, QWEN3_8B).value
    assert split == pytest.approx(15.28 * 2**30 - 151936 * 4096)


def test_weights_that_are_not_known_are_said_to_be() -> None:
    assert weights_bytes({}, QWEN3_8B).value is None
    moe = weights_bytes(SGLANG, QWEN3_8B | {"num_experts": 128, "num_experts_per_tok": 8})
    assert moe.value is None and "mixture of experts" in moe.source


def test_bandwidth_is_known_by_name_by_bus_and_clock_or_not_at_all() -> None:
    assert gpu_bandwidth([H200]) == (4.8e12, "data sheet, NVIDIA H200")
    unknown = gpu_bandwidth([H200 | {"name": "NVIDIA H205"}])
    assert unknown.value == pytest.approx(4.917e12, rel=1e-3) and "6144 bits" in unknown.source
    assert gpu_bandwidth([{"name": "NVIDIA H205"}]) == (None, "the bandwidth of NVIDIA H205 is not known")
    assert gpu_bandwidth([]).value is None
    assert gpu_bandwidth([H200 | {"uuid": "MIG-1"}]).value is None
    slower = {"name": "NVIDIA L4"}
    assert gpu_bandwidth([H200, slower]).value == 300e9, "the slowest sets the pace"
    assert gpu_bandwidth([H200, {"name": "?"}]).value is None


# (name, bus width in bits, highest memory clock in MHz): as NVML gives them.
BUSES = [
    ("Tesla T4", 256, 5001), ("NVIDIA L4", 192, 6251), ("NVIDIA L40S", 384, 9001), ("NVIDIA A10", 384, 6251),
    ("NVIDIA A100-SXM4-80GB", 5120, 1593), ("NVIDIA H100 80GB HBM3", 5120, 2619), ("NVIDIA H200", 6144, 3201),
    ("NVIDIA GeForce RTX 4090", 384, 10501), ("NVIDIA B200", 8192, 3996),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bits", "mhz"), BUSES)
def test_the_table_and_the_formula_agree_where_both_are_known(name: str, bits: int, mhz: int) -> None:
    by_bus = gpu_bandwidth([{"name": "unknown", "memory_bus_bits": bits, "memory_max_mhz": mhz}]).value
    assert by_bus == pytest.approx(baseline.GPU_BANDWIDTH[name], rel=0.03)


def test_settings_that_keep_a_gpu_busy_are_read_from_what_is_in_effect() -> None:
    assert settings(SGLANG) == (True, True)
    assert settings(SGLANG | {"disable_overlap_schedule": True}).overlap is False
    assert settings(SGLANG | {"disable_cuda_graph": True}).cuda_graphs is False
    assert settings(SGLANG | {"disable_decode_cuda_graph": True}).cuda_graphs is False
    assert settings(SGLANG | {"cuda_graph_config": {"decode": {"backend": "disabled"}}}).cuda_graphs is False
    assert settings({"disable_cuda_graph": False}).cuda_graphs is True, "versions without the nested form"
    assert settings({}) == (None, None), "the embedded engine has neither"


def test_a_ceiling_joins_weights_and_bandwidth(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    ceiling = find(SGLANG | {"model_path": str(tmp_path)}, [H200])
    assert ceiling.tok_s == pytest.approx(4.8e12 / 15.16e9, rel=1e-3)
    assert find(SGLANG, []).tok_s is None and find(SGLANG, []).bandwidth_source == "no GPU could be asked"
    assert find({"device": "cpu"}, []).tok_s is None, "nothing is measured for weights of unknown size"


def test_a_model_whose_folder_is_elsewhere_has_no_config(tmp_path: Path) -> None:
    assert model_config({"model_path": "/in/a/container", "tokenizer_path": None}) is None
    (tmp_path / "config.json").write_text("{")
    assert model_config({"model_path": str(tmp_path)}) is None
    (tmp_path / "config.json").write_text("{}")
    assert model_config({"model_path": "by-name", "tokenizer_path": str(tmp_path)}) == {}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPEC_ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


CPU = {"device": "cpu", "threads": 1, "internal_states": [{"memory_usage": {"weight": 0.01}}]}


def test_reading_memory_is_measured_within_reason(cache: Path) -> None:
    assert 1e8 < read_bandwidth(32 * 2**20, 1) < 1e13, "bytes/s of a machine of this century"
    ceiling = find(CPU, [])
    source = "reading 64 MiB with 1 threads, best of 1 measurement on this machine"
    assert ceiling.bandwidth_source == source, "larger than a core's caches"
    assert ceiling.tok_s == ceiling_tok_s(0.01 * 2**30, ceiling.bandwidth_bytes_s or 0)


def seen(monkeypatch: pytest.MonkeyPatch, bandwidth: float, **identity: Any) -> tuple[float | None, str]:
    """What a start finds whose own measurement gives ``bandwidth``."""
    monkeypatch.setattr(baseline, "read_bandwidth", lambda size, threads: bandwidth)
    found = find(CPU | identity, [])
    return found.bandwidth_bytes_s, found.bandwidth_source


def test_the_best_bandwidth_that_a_machine_has_shown_counts(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(monkeypatch, 20e9)[0] == 20e9
    bandwidth, source = seen(monkeypatch, 2e9)
    assert bandwidth == 20e9 and source.endswith("best of 2 measurements on this machine"), "others ran meanwhile"
    assert seen(monkeypatch, 30e9) == (30e9, "reading 64 MiB with 1 threads, best of 3 measurements on this machine")
    assert [path.name for path in cache.iterdir()] == ["bandwidth.json"], "nothing half written is left"


def test_another_machine_or_number_of_threads_has_a_best_of_its_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(monkeypatch, 20e9)
    assert seen(monkeypatch, 10e9, threads=2)[0] == 10e9
    monkeypatch.setattr(baseline.hardware, "cpu", lambda: baseline.hardware.Cpu("another", 4, 8))
    assert seen(monkeypatch, 5e9) == (5e9, "reading 64 MiB with 1 threads, best of 1 measurement on this machine")
    assert len(json.loads((cache / "bandwidth.json").read_text())) == 3


@pytest.mark.parametrize("broken", ["", "[1]", '{"a": 1}', '{"a": {"best": "x", "times": 1}}', '{"a": {"best": 1}}'])
def test_a_file_that_is_not_whole_is_begun_anew(cache: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    cache.mkdir()
    (cache / "bandwidth.json").write_text(broken)
    assert seen(monkeypatch, 7e9)[1].endswith("best of 1 measurement on this machine")
    assert seen(monkeypatch, 6e9)[0] == 7e9


def test_a_cache_that_cannot_be_written_costs_the_memory_only(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file where the folder should be")
    assert seen(monkeypatch, 7e9)[0] == 7e9 and seen(monkeypatch, 6e9)[0] == 6e9
