"""Text to tokens and back, and the chat template, without loading transformers (whose import takes seconds)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as _Tokenizer
from tokenizers.decoders import DecodeStream


class Tokenizer:
    """The tokenizer of a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = _Tokenizer.from_file(str(folder / "tokenizer.json"))
        config_file, template_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        config: dict[str, Any] = json.loads(config_file.read_text()) if config_file.exists() else {}
        source = template_file.read_text() if template_file.exists() else config.get("chat_template")
        self._specials = {
            name: _content(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        }
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        self._template = environment.from_string(source) if isinstance(source, str) else None

    def encode(self, text: str) -> list[int]:
        """Token ids, with what the model's tokenizer puts around a text (for example its first token)."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids))
        return text

    def stream(self) -> TextStream:
        return TextStream(self._tokenizer)

    def encode_chat(self, messages: list[dict[str, Any]], variables: dict[str, Any] | None = None) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn. Raises ValueError where the template refuses."""
        if self._template is None:
            raise ValueError("this model has no chat template; use /generate or /v1/completions")
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=True, **self._specials, **(variables or {})
            )
        except TemplateError as error:
            raise ValueError(f"the chat template refused the messages: {error}") from error
        # The template writes the special tokens itself.
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class TextStream:
    """Text of a growing list of tokens; a character whose bytes are not complete yet is held back."""

    def __init__(self, tokenizer: _Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        """The text that this token adds, often empty."""
        return self._stream.step(self._tokenizer, token) or ""


def _content(token: Any) -> str | None:
    """A special token stands in tokenizer_config.json as a text or as a record with ``content``."""
    value: str | None = token["content"] if isinstance(token, dict) else token
    return value


def _refuse(message: str) -> None:
    raise TemplateError(message)
