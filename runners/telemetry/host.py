"""CPU time of the whole node and of the load client: what is left of it beside the server is other processes'."""

from __future__ import annotations

from typing import Any


class Host:
    """``cores`` is the node's number of logical cores; None without psutil, which is told of the processes already."""

    def __init__(self, client: int | None) -> None:
        """``client``: process id of whoever sends the requests, where that is on this node."""
        self.cores: int | None = None
        self._client: Any = None
        try:
            import psutil
        except ImportError:
            return
        self._psutil = psutil
        self.cores = psutil.cpu_count()
        if client is not None:
            try:
                self._client = psutil.Process(client)
            except psutil.Error:  # a container with process ids of its own
                return

    def read(self) -> dict[str, float | None] | None:
        """Seconds since the node started, over all cores: ``busy_s`` of anyone, ``client_cpu_s`` of the client itself.

        Time that a hypervisor gave to other guests counts as busy: the server did not have it. None where the node
        does not account for its cores (some sandboxes show zeros).
        """
        if self.cores is None:
            return None
        times = self._psutil.cpu_times()._asdict()
        # Linux counts the time of guests twice, as theirs and as user time.
        spare = ("idle", "iowait", "guest", "guest_nice")
        busy = sum(times.values()) - sum(times.get(name, 0.0) for name in spare)
        return {"busy_s": round(busy, 3), "client_cpu_s": self._client_cpu_s()} if busy > 0 else None

    def _client_cpu_s(self) -> float | None:
        """Without its children: those are the server, which is counted by itself, and others."""
        if self._client is None:
            return None
        try:
            times = self._client.cpu_times()
        except self._psutil.Error:
            return None
        return float(times.user + times.system)
