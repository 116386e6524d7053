"""NVML of a machine that does not exist, under the import name of nvidia-ml-py: GPUs cannot be had in these tests.

One "NVIDIA H200" draws 300 W and computes for the process in FAKE_NVML_SERVER (its id) and, where FAKE_NVML_OTHER is
set, for process 1 too. What FAKE_NVML_REFUSES names (with commas between) is refused; "nvmlInit" there is a machine
without a driver. tests/gpu/test_telemetry_gpu.py holds the real binding to the same names.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

NVML_SUCCESS = 0
NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
NVML_FI_DEV_POWER_INSTANT = 186
nvmlMemory_v2 = 0x02000028
WATTS = 300
MIB = 2**20

reasons = 0
"""Mask of clocks event reasons; tests set it."""


class NVMLError(Exception):
    pass


def __getattr__(name: str) -> Any:
    """Every function goes through here, so that any of them can be refused."""
    if name not in _FUNCTIONS:
        raise AttributeError(name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        if name in os.environ.get("FAKE_NVML_REFUSES", "").split(","):
            raise NVMLError("Not Supported")
        return _FUNCTIONS[name](*arguments, **keywords)

    return call


def _processes(handle: str) -> list[Any]:
    found = []
    if server := os.environ.get("FAKE_NVML_SERVER"):
        found.append(SimpleNamespace(pid=int(server), usedGpuMemory=70_000 * MIB))
    if os.environ.get("FAKE_NVML_OTHER"):
        found.append(SimpleNamespace(pid=1, usedGpuMemory=500 * MIB))
    return found


def _memory(handle: str, version: int | None = None) -> Any:
    return SimpleNamespace(total=143_771 * MIB, used=(70_600 if version else 71_200) * MIB)


def _fields(handle: str, fields: list[int]) -> list[Any]:
    assert fields == [NVML_FI_DEV_POWER_INSTANT]
    return [SimpleNamespace(nvmlReturn=NVML_SUCCESS, value=SimpleNamespace(uiVal=1000 * WATTS))]


_FUNCTIONS: dict[str, Any] = {
    "nvmlInit": lambda: None,
    "nvmlSystemGetDriverVersion": lambda: b"580.159.04",
    "nvmlDeviceGetCount": lambda: 1,
    "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
    "nvmlDeviceGetHandleByUUID": lambda uuid: f"handle {uuid}",
    "nvmlDeviceGetIndex": lambda handle: 0,
    "nvmlDeviceGetUUID": lambda handle: "GPU-0",
    "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
    "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
    "nvmlDeviceGetMaxClockInfo": lambda handle, clock: {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 3201}[clock],
    "nvmlDeviceGetMemoryBusWidth": lambda handle: 6144,
    "nvmlDeviceGetEccMode": lambda handle: [1, 1],
    "nvmlDeviceGetMigMode": lambda handle: [0, 0],
    "nvmlDeviceGetPersistenceMode": lambda handle: 1,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda handle: 700_000,
    "nvmlDeviceGetNumaNodeId": lambda handle: 1,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 5,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 16,
    "nvmlDeviceGetNvLinkState": lambda handle, link: 1 if link < 4 else 0,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=93, memory=61),
    "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: reasons,
    "nvmlDeviceGetTotalEnergyConsumption": lambda handle: int(WATTS * 1000 * time.monotonic()),
    "nvmlDeviceGetClockInfo": lambda handle, clock: {NVML_CLOCK_SM: 1755, NVML_CLOCK_MEM: 3201}[clock],
    "nvmlDeviceGetTemperature": lambda handle, sensor: 54,
    "nvmlDeviceGetPowerUsage": lambda handle: 1000 * WATTS,
    "nvmlDeviceGetFieldValues": _fields,
    "nvmlDeviceGetComputeRunningProcesses": _processes,
    "nvmlDeviceGetGraphicsRunningProcesses": lambda handle: [],
}
