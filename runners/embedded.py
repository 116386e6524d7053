"""The embedded engine as the software of a server: its command line, its proof of identity, why it ended."""

from __future__ import annotations

import hashlib
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.planning import hardware
from runners.base import Ask, Launch, ServerFailure
from runners.starting import answers, get_json, log_lines, tail

_CAUSES: tuple[tuple[str, str, str], ...] = (
    # (cause, pattern in the log, what to do); the first that matches counts
    ("memory", r"MemoryError|can't allocate memory|out of memory", "free memory or take a smaller target"),
    ("weights", r"ModelUnavailable|No such file or directory|safetensors", "check the path it names"),
    ("argument", r"ValueError", "it refuses a setting"),
)
_EXIT_CAUSES = {
    # Exit codes of the engine (python -m runners.engine --help).
    2: ("argument", "it refuses a setting"),
    3: ("port_in_use", "another program took the port: leave runner.port=null"),
}


def threads(config: dict[str, Any]) -> int:
    """Threads of the engine: what the config says, else the physical cores of this machine."""
    return int(config["runner"]["threads"] or hardware.cpu().cores)


def command(config: dict[str, Any], host: str, port: int | str, python: str = sys.executable) -> list[str]:
    """Command line of the server for a server config (docs/reference/server_config.md); pure."""
    target, drafter, verification = config["target"], config["drafter"], config.get("verification", {})
    flags: dict[str, Any] = {
        "--model-path": target["path"],
        "--served-model-name": target["name"],
        "--host": host,
        "--port": port,
        "--dtype": target["dtype"],
        "--context-length": target["context_length"],
        "--max-running-requests": target["max_running_requests"],
        "--attention-backend": config["attention"]["backend"],
        "--threads": threads(config),
        "--random-seed": config["seed"],
        "--drafter": drafter["algorithm"] or "none",
        "--drafter-path": drafter.get("path"),
        "--block-size": drafter.get("block_size"),
        "--ngram-min": drafter.get("ngram_min"),
        "--ngram-max": drafter.get("ngram_max"),
        "--verification-mode": verification.get("mode"),
        "--confidence-threshold": verification.get("confidence_threshold"),
        "--accept-threshold-single": verification.get("accept_threshold_single"),
    }
    given = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    return [python, "-m", "runners.engine", *given]


class EmbeddedSoftware:
    """One start of the engine.

    ``parent``: process that it ends with, however that went; None where it is in another place. ``python``: where the
    engine is installed.
    """

    def __init__(self, config: dict[str, Any], parent: int | None = None, python: str = sys.executable) -> None:
        self._config = config
        self._parent = parent
        self._python = python

    def launch(self, host: str, port: int, ask: Ask) -> Launch:
        words = command(self._config, host, port, self._python)
        if self._parent is not None:
            words += ["--parent-pid", str(self._parent)]
        count = str(threads(self._config))
        environment = {
            "OMP_NUM_THREADS": count,
            "MKL_NUM_THREADS": count,
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        return Launch(words, environment)

    def feed(self, lines: Iterable[str]) -> str:
        return ""  # its log is for a failure; its lines would say nothing to who waits

    def ready(self, url: str) -> bool:
        return answers(f"{url}/ready")

    def identify(self, url: str, pids: Sequence[int] | None) -> dict[str, Any]:
        try:
            identity = get_json(f"{url}/server_info")
        except (OSError, ValueError) as problem:
            raise ServerFailure("identity", f"it is up, and /server_info fails: {problem}") from problem
        if wrong := differences(self._config, identity, pids):
            raise ServerFailure("identity", "the server is not the one that was asked for: " + "; ".join(wrong))
        return identity

    def failure(self, code: int, log: Path, served: bool) -> ServerFailure:
        """From its exit code and from what it said last."""
        lines = log_lines(log)[-60:]
        text = "\n".join(lines)
        cause, advice = "died", "see its log"
        if code == -signal.SIGKILL:
            # What the kernel does when memory is short cannot be told from what anyone may do by hand.
            cause, advice = "killed", "it was killed (signal 9): by the kernel when memory is short, or by someone"
        elif code in _EXIT_CAUSES:
            cause, advice = _EXIT_CAUSES[code]
        else:
            for name, pattern, what in _CAUSES:
                if re.search(pattern, text, re.IGNORECASE):
                    cause, advice = name, what
                    break
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        when = "while it served" if served else "before it was ready"
        said = next((f": {line.strip()}" for line in reversed(lines) if "error" in line.lower()), "")
        return ServerFailure(cause, f"the server ended {when} ({ended}{said}); {advice}", log, served, tail(log))


def fetch(model: str, on_status: Callable[[str], None]) -> Path:
    """Bring the target here before the server starts: its time does not count as the server's, and it shows how far
    it is."""
    from runners.engine.fetch import ModelUnavailable, ensure_model

    def report(text: str, share: float | None) -> None:
        on_status(text if share is None else f"{text} {share:.0%}")

    try:
        return ensure_model(model, report)
    except ModelUnavailable as problem:
        raise ServerFailure("model_fetch", str(problem)) from problem


def differences(config: dict[str, Any], identity: dict[str, Any], pids: Sequence[int] | None) -> list[str]:
    """What differs between what was asked for and what the server says of itself."""
    target, drafter = config["target"], config["drafter"]
    speculates = drafter["algorithm"] is not None
    asked = {
        "drafter": drafter["algorithm"] or "none",
        "speculative_num_draft_tokens": drafter["verify_window"] if speculates else None,
        "drafter_weights_sha256": _weights_sha256(drafter.get("path")),
        "verification_mode": config["verification"]["mode"] if speculates else "static",
        "dtype": target["dtype"],
        "context_length": target["context_length"],
        "max_running_requests": target["max_running_requests"],
        "attention_backend": config["attention"]["backend"],
        "threads": threads(config),
        "random_seed": config["seed"],
        "model_path": target["path"],
    }
    wrong = [
        f"{key}: asked {value!r}, serves {identity.get(key)!r}"
        for key, value in asked.items()
        if identity.get(key) != value
    ]
    if pids is not None and identity.get("pid") not in pids:
        wrong.append(f"pid: started {pids}, answers {identity.get('pid')!r}")
    return wrong


def _weights_sha256(folder: str | None) -> str | None:
    """sha256 of the weights file that the engine loads; None for a drafter without weights."""
    if folder is None:
        return None
    return hashlib.sha256((Path(folder) / "model.safetensors").read_bytes()).hexdigest()
