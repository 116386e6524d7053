"""A server that someone else started: proven to be the one that is meant, measured, never stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from orchestrator.config.masking import mask
from orchestrator.load.get import get
from runners.base import ServerFailure, ServerHandle
from runners.hugging_face import found, looking
from runners.starting import answers, get_json, not_in_form

_ANSWER_S = 5.0
_LOOK_S = 60
_MODELS = "/v1/models"
"""A question that costs the server nothing: `/health` is a request of its own in SGLang."""


class AttachRunner:
    """``url``: where it answers. Nothing is started; what it is asked for beside the requests of the measurement is
    `/server_info`, `/metrics`, and `/flush_cache` between trials."""

    def __init__(self, url: str, here: bool) -> None:
        """``here``: it is on this machine."""
        self._url = url.rstrip("/")
        self._here = here

    def start(self, config: dict[str, Any], directory: Path, on_status: Callable[[str], None]) -> ServerHandle:
        """Raises ServerFailure (``unreachable``, ``identity``, ``tokenizer``)."""
        on_status("asking the server what it is")
        log = directory / "server.log"
        log.write_text(f"attached to {self._url}: its log is where it was started\n")
        try:
            identity = get_json(f"{self._url}/server_info")
        except (OSError, ValueError) as problem:
            raise ServerFailure(
                "unreachable", f"{self._url}/server_info fails ({problem}): is it running?"
            ) from problem
        try:
            wrong = _wrong(config, identity)
        except (TypeError, AttributeError, ValueError, KeyError) as problem:
            raise not_in_form(self._url, problem) from problem
        if wrong:
            told = f"{self._url} does not serve what this arm asks for: {'; '.join(wrong)}"
            raise ServerFailure("identity", told, log)
        tokenizer = _tokenizer(config, identity)
        pids = _listeners(urlsplit(self._url).port or 80) if self._here else []
        return ServerHandle(self._url, log, ["attach", self._url], mask(identity), tokenizer, tuple(pids))

    def stop(self, handle: ServerHandle) -> None:
        """It is not ours."""

    def failure(self, handle: ServerHandle) -> ServerFailure | None:
        if answers(self._url + _MODELS):
            return None
        return ServerFailure("unreachable", f"{self._url} no longer answers: see it where it was started", served=True)

    def peak_memory_bytes(self, handle: ServerHandle) -> int | None:
        """None: its peak may be from before."""
        return None


def unreachable(url: str) -> str | None:
    """Why no server is reached there; None where one answers."""
    try:
        get(url.rstrip("/") + _MODELS, _ANSWER_S)
    except OSError as problem:
        return str(problem)
    return None


def _listeners(port: int) -> list[int]:
    """Processes of this machine that listen on a port; [] where they cannot be told."""
    try:
        found = psutil.net_connections("tcp")
    except psutil.Error:
        return []
    mine = [one for one in found if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port]
    return sorted({one.pid for one in mine if one.pid})


def _wrong(config: dict[str, Any], identity: dict[str, Any]) -> list[str]:
    """What the server says of itself other than the arm asks for. Where its model lies is the server's own business."""
    if config["engine"] == "embedded":
        from runners.embedded import differences

        return [told for told in differences(config, identity, None) if not told.startswith("model_path:")]
    from runners.sglang.config import ServerConfig
    from runners.sglang.identity import identity as read
    from runners.sglang.identity import problems

    return problems(ServerConfig.model_validate(config), identity, read(identity, []))


def _tokenizer(config: dict[str, Any], identity: dict[str, Any]) -> Path:
    """Folder with the chat template: where the server says, or what the config names, or in the Hugging Face cache."""
    target = config["target"]
    told = (identity.get("tokenizer_path"), target.get("tokenizer_path"), target["path"])
    named = [name for name in told if name and isinstance(name, str)]
    for name in named:
        if (folder := Path(name).expanduser()).is_dir():
            return folder
    why = ""
    for name in dict.fromkeys(named):
        words = looking([sys.executable], name, target["revision"], online=False)
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_LOOK_S, check=False)
        except subprocess.TimeoutExpired:
            why = f"looking for it took longer than {_LOOK_S} s"
            continue
        if done.returncode == 0:
            return Path(found(done.stdout).folder)
        why = next(iter(done.stderr.strip().splitlines()[-1:]), "")
    raise ServerFailure(
        "tokenizer",
        f"the tokenizer of {', '.join(dict.fromkeys(named))} is not on this machine ({why}), and prompts are rendered "
        "here: give target.tokenizer_path=<folder with tokenizer_config.json>",
    )
