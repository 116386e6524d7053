"""Memory and CPU time of the server's processes, those that were named and all that they started; and CPU time of the
node and of the load client, for what is left of it is other processes'."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

_LOOK_S = 1.0
"""How often new children are looked for: that reads the whole process table."""


class Processes:
    """The watched process trees. ``absent`` says why nothing can be read."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.absent: str | None = None
        self._watched: dict[int, Any] = {}
        self._looked = 0.0
        try:
            import psutil
        except ImportError:
            self.absent = "psutil is not installed where the server runs"
        else:
            self._psutil = psutil
            self.watch(pids)

    def watch(self, pids: Iterable[int]) -> None:
        """Watch these trees instead of the ones before."""
        if self.absent:
            return
        self._looked = 0.0
        self._watched = {}
        for pid in pids:
            try:
                self._watched[pid] = self._psutil.Process(pid)
            except self._psutil.Error:
                continue

    def read(self) -> dict[str, Any] | None:
        """Process ids, resident bytes and CPU seconds of the trees; None where none of the processes lives.

        Memory is the sum of resident sizes (RSS): pages that processes share count once in each, so it is an upper
        bound. The proportional size (PSS) would be exact, but reading it walks the page tables under the server's own
        memory lock and needs its user's rights: too much to do to a server that is being measured.

        CPU seconds are user and system time of the processes with that of the children they have reaped, so that the
        sum does not fall when a child ends.
        """
        now = time.monotonic()
        if self._watched and now - self._looked >= _LOOK_S:
            self._looked = now
            self._add_children()
        pids: list[int] = []
        resident, seconds = 0, 0.0
        for pid, process in list(self._watched.items()):
            try:
                memory, times = process.memory_info(), process.cpu_times()
            except self._psutil.Error:
                if not process.is_running():
                    del self._watched[pid]
                continue
            seconds += times.user + times.system + times.children_user + times.children_system
            if memory.rss:  # a zombie, which has ended without being reaped, has none
                pids.append(pid)
                resident += memory.rss
        return {"pids": pids, "rss_bytes": resident, "cpu_s": seconds} if pids else None

    def _add_children(self) -> None:
        for process in list(self._watched.values()):
            try:
                for child in process.children(recursive=True):
                    self._watched.setdefault(child.pid, child)
            except self._psutil.Error:
                continue


class Host:
    """``cores`` is the node's number of logical cores; None without psutil, as ``Processes`` says."""

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
