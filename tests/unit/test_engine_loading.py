"""What a loaded engine says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.engine import arguments, loading
from tests import tiny_llama


def test_a_model_given_by_name_tells_where_its_tokenizer_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_llama.write(tmp_path / "fetched")
    monkeypatch.setattr(loading, "ensure_model", {"tiny": folder}.__getitem__)
    loaded = loading.Loaded(arguments.parse(["--model-path", "tiny", "--threads", "1"]))
    info = loaded.server_info(loaded.load(), throughput=0.0)
    assert info["model_path"] == "tiny"
    assert info["tokenizer_path"] == str(folder)
