"""Renders a conversation with the chat template of the target, as transformers' ``apply_chat_template`` does.

The client renders, not the server: every arm is then sent the same text, whatever its server's template settings are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateFailure(RuntimeError):
    """The target's folder holds no chat template, or the template refused the messages."""


class ChatTemplate:
    """The chat template of one model folder."""

    def __init__(self, folder: Path, file: Path | None = None) -> None:
        """Reads ``file`` if given, else ``chat_template.jinja``, else ``chat_template`` in ``tokenizer_config.json``.

        Raises TemplateFailure; OSError where ``file`` cannot be read.
        """
        config_path = folder / "tokenizer_config.json"
        config = json.loads(config_path.read_text()) if config_path.is_file() else {}
        separate = file or folder / "chat_template.jinja"
        source = separate.read_text() if file or separate.is_file() else config.get("chat_template")
        if isinstance(source, list):  # several named templates
            source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
        if not source:
            raise TemplateFailure(
                f"{folder} has no chat template: no chat_template.jinja, no chat_template in tokenizer_config.json"
            )
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._folder = folder
        self._tokens = {
            name: token["content"] if isinstance(token, dict) else token
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (token := config.get(name)) is not None
        }
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise TemplateFailure(f"the chat template of {folder} cannot be read: {error}") from error

    def render(self, messages: Sequence[Mapping[str, str]], enable_thinking: bool | None = None) -> str:
        """The prompt's text, up to where the answer begins. Raises TemplateFailure.

        ``enable_thinking`` is handed to the template; None leaves the template's own default.
        """
        extra = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._tokens,
                **extra,
            )
        except TemplateError as error:
            raise TemplateFailure(f"the chat template of {self._folder} refused the messages: {error}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes characters for HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise TemplateError(message)
