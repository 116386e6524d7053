"""A server's processes end with the orchestrator that started them, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

from runners.guard import Guard

ORCHESTRATOR = """
import subprocess, sys, time
from runners.guard import Guard
# A server that ignores being asked, with a child of its own.
code = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
    "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True); time.sleep(60)"
server = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
guard = Guard(server.pid)
print(server.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_group_ends_with_the_process_that_guards_it(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORCHESTRATOR], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as orchestrator:
        assert orchestrator.stdout is not None
        left = [psutil.Process(int(orchestrator.stdout.readline())) for _ in range(2)]
        assert all(process.is_running() for process in left)
        orchestrator.send_signal(how)
        _, alive = psutil.wait_procs(left, timeout=10)
        assert alive == []


def test_a_guard_that_is_closed_ends_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as server:
        try:
            Guard(server.pid).close()
            time.sleep(0.2)
            assert server.poll() is None
            assert psutil.Process().children() == [psutil.Process(server.pid)]
        finally:
            server.kill()
