"""What NVML says of the GPUs of one node. A field that a GPU refuses is None; nothing here raises for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MOST_LINKS = 18
_NO_BYTES = 2**64 - 1
"""NVML's "not available" for the memory of a process."""


class Gpus:
    """The chosen GPUs. ``absent`` says why there is none, where that is not what was asked for."""

    def __init__(self, chosen: str) -> None:
        """``chosen``: ``all``, ``none``, or indices and UUIDs with commas between them, as nvidia-smi gives them.

        NVML knows nothing of CUDA_VISIBLE_DEVICES: whoever starts the server knows which GPUs it has.
        """
        self.absent: str | None = None
        self.driver: str | None = None
        self.gpus: list[Gpu] = []
        if chosen == "none":
            return
        try:
            import pynvml as nvml
        except ImportError:
            self.absent = "nvidia-ml-py is not installed where the server runs"
            return
        try:
            nvml.nvmlInit()
            self.driver = _text(nvml.nvmlSystemGetDriverVersion())
            names = range(nvml.nvmlDeviceGetCount()) if chosen == "all" else chosen.split(",")
            self.gpus = [Gpu(nvml, _handle(nvml, str(name)), str(name)) for name in names]
        except nvml.NVMLError as problem:
            self.absent = f"NVML: {problem}"

    def describe(self) -> list[dict[str, Any]]:
        """What does not change, by GPU."""
        return [gpu.facts for gpu in self.gpus]

    def read(self) -> list[dict[str, Any]]:
        """One sample of every GPU."""
        return [gpu.read() for gpu in self.gpus]


class Gpu:
    """One GPU; ``facts`` is what does not change."""

    def __init__(self, nvml: Any, handle: Any, name: str) -> None:
        self._nvml = nvml
        self._handle = handle
        instant = _try(self._instant_power_w) is not None
        self._power_w = self._instant_power_w if instant else self._average_power_w
        self.facts: dict[str, Any] = {
            "asked": name,
            "index": self._get("nvmlDeviceGetIndex"),
            "uuid": _text(self._get("nvmlDeviceGetUUID")),
            "name": _text(self._get("nvmlDeviceGetName")),
            "memory_bytes": _try(lambda: int(self._memory().total)),
            "power_limit_w": _scaled(self._get("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            # The average is over one second on most GPUs since Ampere: too slow for a peak, right for a mean.
            "power_is": "instant" if instant else "average",
            "sm_max_mhz": self._get("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            "memory_max_mhz": self._get("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
            "memory_bus_bits": self._get("nvmlDeviceGetMemoryBusWidth"),
            **self._setup(),
        }

    def read(self) -> dict[str, Any]:
        """One sample: bytes, shares of 1, W, MHz, degrees C, J; ``reasons`` is NVML's mask of clocks event reasons."""
        nvml = self._nvml
        rates = self._get("nvmlDeviceGetUtilizationRates")
        reasons = self._get("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name in drivers before 535
            reasons = self._get("nvmlDeviceGetCurrentClocksThrottleReasons")
        return {
            "used_bytes": _try(lambda: int(self._memory().used)),
            "processes": self._processes(),
            "utilisation": _try(lambda: rates.gpu / 100),
            "power_w": _try(self._power_w),
            "energy_j": _scaled(self._get("nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
            "sm_mhz": self._get("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory_mhz": self._get("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "temperature_c": self._get("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "reasons": reasons,
        }

    def _setup(self) -> dict[str, Any]:
        """How the card is set up: what makes two cards of one name differ."""
        ecc, mig = self._get("nvmlDeviceGetEccMode"), self._get("nvmlDeviceGetMigMode")
        return {
            "ecc": _try(lambda: bool(ecc[0])),
            "mig": _try(lambda: bool(mig[0])),
            "persistence": _try(lambda: bool(self._get("nvmlDeviceGetPersistenceMode"))),
            "power_limit_default_w": _scaled(self._get("nvmlDeviceGetPowerManagementDefaultLimit"), 1e-3),
            "numa_node": self._get("nvmlDeviceGetNumaNodeId"),
            "pcie_generation": self._get("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": self._get("nvmlDeviceGetCurrPcieLinkWidth"),
            "nvlinks": self._nvlinks(),
        }

    def _nvlinks(self) -> int | None:
        """NVLinks that are up; None where the card has none."""
        states = [self._get("nvmlDeviceGetNvLinkState", link) for link in range(_MOST_LINKS)]
        known = [state for state in states if state is not None]
        return sum(map(bool, known)) if known else None

    def _get(self, function: str, *arguments: Any) -> Any:
        return _try(lambda: getattr(self._nvml, function)(self._handle, *arguments))

    def _memory(self) -> Any:
        """Version 2 leaves what the driver keeps for itself out of ``used``, as nvidia-smi does."""
        nvml = self._nvml
        newer = _try(lambda: nvml.nvmlDeviceGetMemoryInfo(self._handle, version=nvml.nvmlMemory_v2))
        return nvml.nvmlDeviceGetMemoryInfo(self._handle) if newer is None else newer

    def _instant_power_w(self) -> float:
        (value,) = self._nvml.nvmlDeviceGetFieldValues(self._handle, [self._nvml.NVML_FI_DEV_POWER_INSTANT])
        if value.nvmlReturn != self._nvml.NVML_SUCCESS:
            raise ValueError("not supported")
        return float(value.value.uiVal) / 1000

    def _average_power_w(self) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1000

    def _processes(self) -> dict[str, int | None] | None:
        """Process id -> bytes, None where NVML does not say how many. The ids are those of the host."""
        lists = [
            self._get(f"nvmlDeviceGet{kind}RunningProcesses") for kind in ("Compute", "Graphics")
        ]  # a process may be in both, with the same figure
        if all(found is None for found in lists):
            return None
        return {str(process.pid): _bytes(process.usedGpuMemory) for found in lists for process in found or []}


def _handle(nvml: Any, name: str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


def _try(read: Callable[[], Any]) -> Any:
    """None where the read fails for any reason: not supported, lost GPU, a binding that is older or newer than this.

    A sample with a hole is worth more than a sampler that died of one field.
    """
    try:
        return read()
    except Exception:
        return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _bytes(value: int | None) -> int | None:
    return None if value is None or value == _NO_BYTES else int(value)


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
