"""What is read of GPUs, with a fake of NVML at the import seam: there is no GPU here, and none refuses on demand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from runners.telemetry.gpu import Gpus

FAKE = Path(__file__).parents[1] / "fake_nvml/pynvml.py"


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("pynvml", FAKE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_a_gpu_is_described_and_read_in_plain_units(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_SERVER", "77")
    gpus = Gpus("all")
    assert gpus.absent is None and gpus.driver == "580.159.04"
    assert gpus.describe() == [
        {
            "asked": "0", "index": 0, "uuid": "GPU-0", "name": "NVIDIA H200", "memory_bytes": 143_771 * 2**20,
            "power_limit_w": 700.0, "power_is": "instant", "sm_max_mhz": 1980, "memory_max_mhz": 3201,
            "memory_bus_bits": 6144, "ecc": True, "mig": False, "persistence": True, "power_limit_default_w": 700.0,
            "numa_node": 1, "pcie_generation": 5, "pcie_width": 16, "nvlinks": 4,
        }
    ]  # fmt: skip
    (first,), (second,) = gpus.read(), gpus.read()
    assert second.pop("energy_j") > first.pop("energy_j") > 0
    assert first == {
        "used_bytes": 70_600 * 2**20, "processes": {"77": 70_000 * 2**20}, "utilisation": 0.93, "power_w": 300.0,
        "sm_mhz": 1755, "memory_mhz": 3201, "temperature_c": 54, "reasons": 0,
    }  # fmt: skip


ONE_FIELD = {
    "nvmlDeviceGetUtilizationRates": "utilisation",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_j",
    "nvmlDeviceGetClockInfo": "sm_mhz",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetMemoryInfo": "used_bytes",
}


@pytest.mark.parametrize("function", ONE_FIELD)
def test_a_field_that_a_gpu_refuses_is_none_and_costs_no_other(
    nvml: ModuleType, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    monkeypatch.setenv("FAKE_NVML_REFUSES", function)
    (reading,) = Gpus("all").read()
    refused = {name for name, value in reading.items() if value is None}
    assert refused == {ONE_FIELD[function]} | ({"memory_mhz"} if function == "nvmlDeviceGetClockInfo" else set())


def test_older_drivers_are_asked_in_their_own_words(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_REFUSES", "nvmlDeviceGetCurrentClocksEventReasons,nvmlDeviceGetFieldValues")
    monkeypatch.setattr(nvml, "reasons", 0x4)
    gpus = Gpus("0")
    assert gpus.describe()[0]["power_is"] == "average"
    (reading,) = gpus.read()
    assert (reading["reasons"], reading["power_w"]) == (0x4, 300.0)
    del nvml.nvmlMemory_v2  # a binding from before it
    assert Gpus("0").read()[0]["used_bytes"] == 71_200 * 2**20


def test_memory_of_processes_that_is_not_told_is_none(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [SimpleNamespace(pid=5, usedGpuMemory=None), SimpleNamespace(pid=6, usedGpuMemory=2**64 - 1)]
    monkeypatch.setitem(nvml._FUNCTIONS, "nvmlDeviceGetComputeRunningProcesses", lambda handle: listed)
    assert Gpus("all").read()[0]["processes"] == {"5": None, "6": None}
    monkeypatch.setenv(
        "FAKE_NVML_REFUSES", "nvmlDeviceGetComputeRunningProcesses,nvmlDeviceGetGraphicsRunningProcesses"
    )
    assert Gpus("all").read()[0]["processes"] is None


def test_a_gpu_that_is_lost_on_the_way_reads_as_nothing(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus("all")
    monkeypatch.setenv("FAKE_NVML_REFUSES", ",".join(nvml._FUNCTIONS))
    (reading,) = gpus.read()
    assert set(reading.values()) == {None}


def test_without_driver_or_binding_the_reason_is_a_fact(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_REFUSES", "nvmlInit")
    gpus = Gpus("all")
    assert (gpus.read(), gpus.absent) == ([], "NVML: Not Supported")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # what an import of a missing module finds
    gpus = Gpus("0,1")
    assert gpus.read() == [] and gpus.absent == "nvidia-ml-py is not installed where the server runs"


def test_gpus_are_chosen_by_index_or_uuid_and_none_is_no_lack(nvml: ModuleType) -> None:
    assert [gpu["asked"] for gpu in Gpus("1,GPU-7").describe()] == ["1", "GPU-7"]
    none = Gpus("none")
    assert (none.describe(), none.absent) == ([], None)
