"""SGLang as the software of a server: its command line for the version that is there, ready, identity, why it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.config.masking import mask
from orchestrator.config.names import ConfigError
from runners.base import Ask, Launch, ServerFailure
from runners.sglang import failures, flags, identity, ready, rules
from runners.sglang.config import ServerConfig
from runners.sglang.help_check import parse_help, problems
from runners.sglang.installed import Installed
from runners.starting import get_json, log_text, not_in_form, tail

PYTHON = ("python3",)
"""Of SGLang's images."""


class SglangSoftware:
    """One start of SGLang.

    ``command``: how the server is entered (``sglang serve``), flags excluded. ``python``: the interpreter that has it.
    """

    def __init__(
        self, config: dict[str, Any], command: Sequence[str] = flags.SERVE, python: Sequence[str] = PYTHON
    ) -> None:
        self._config = ServerConfig.model_validate(config)
        self._command = tuple(command)
        self._python = tuple(python)
        self._name = ready.served_name(self._config.target.name)
        self._port = 0
        self._lines: list[str] = []
        self._log = ready.StartLog()

    def launch(self, host: str, port: int, ask: Ask) -> Launch:
        """Raises ServerFailure (``argument``, ``setting``) for what the SGLang that is there would refuse, if only
        minutes later."""
        self._port = port
        installed = Installed(ask, self._python)
        version = installed.version
        try:
            made = flags.launch(self._config, version, host, port, self._name)
        except ConfigError as error:
            raise ServerFailure("argument", str(error)) from error
        words = made.words(self._command)
        known = parse_help(installed.help(self._command))
        if refused := problems(words[len(self._command) :], known):
            raise ServerFailure("argument", f"SGLang {version} would refuse its command line: {'; '.join(refused)}")
        if broken := rules.violations(self._config, version, 0.0, None, None):
            told = "; ".join(map(str, broken))
            raise ServerFailure("setting", f"SGLang {version}, as installed, would refuse: {told}")
        return Launch(words, {"PYTHONUNBUFFERED": "1", **made.env})

    def feed(self, lines: Iterable[str]) -> str:
        for line in lines:
            self._lines.append(line)
            self._log.feed(line)
        return self._log.stage

    def ready(self, url: str) -> bool:
        return self._log.ready

    def identify(self, url: str, pids: Sequence[int] | None) -> dict[str, Any]:
        """`/server_info`, and as ``server_log`` what only its log tells: memory by use (GiB), token capacity, the
        drafter's architecture, remarks. Keys to its API are masked."""
        try:
            info = get_json(f"{url}/server_info")
        except (OSError, ValueError) as problem:
            raise ServerFailure("identity", f"it is up, and /server_info fails: {problem}") from problem
        try:
            found = identity.identity(info, self._lines)
            wrong = ready.not_ours(info, self._log, self._name, self._port, self._config.seed, pids)
            wrong += identity.problems(self._config, info, found)
        except (TypeError, AttributeError, ValueError, KeyError) as problem:
            raise not_in_form(url, problem) from problem
        if wrong:
            raise ServerFailure("identity", "the server is not the one that was asked for: " + "; ".join(wrong))
        told = {
            "memory_gib": asdict(found.memory),
            "token_capacity": found.token_capacity,
            "max_running_requests": found.max_running_requests,
            "draft_architecture": found.draft_architecture,
            "remarks": list(found.remarks),
        }
        target = self._config.target
        return {"tokenizer_path": target.tokenizer_path or target.path, **mask(info), "server_log": told}

    def failure(self, code: int, log: Path, served: bool) -> ServerFailure:
        """From the log alone: SGLang's exit codes tell nothing."""
        found = failures.classify(log_text(log))
        return ServerFailure(found.cause, str(found), log, served or found.served, tail(log))
