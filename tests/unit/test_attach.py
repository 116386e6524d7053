"""Servers that someone else started, as far as no model is needed; real ones are in tests/integration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runners.attach import AttachRunner
from runners.base import ServerFailure
from tests.engine_process import free_port
from tests.unit.sglang_arms import server, server_info
from tests.unit.test_sglang_software import answering

CONFIG = server("target=qwen3_8b", "target.path=org/model")


def info(**more: Any) -> dict[str, Any]:
    """A recorded answer of a plain server with room enough."""
    return server_info("qwen3-8b-baseline") | {"max_running_requests": 64, "api_key": "s3cret"} | more


def attach(url: str, place: Path, config: dict[str, Any] = CONFIG) -> Any:
    return AttachRunner(url, here=False).start(config, place, lambda text: None)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in a Hugging Face cache, as it is laid out."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    model = tmp_path / "hf/hub/models--org--model"
    snapshot = model / "snapshots" / ("0123456789" * 4)
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer_config.json").write_text("{}")
    (model / "refs").mkdir()
    (model / "refs/main").write_text(snapshot.name)
    return snapshot


def test_it_is_taken_as_it_is_and_its_keys_are_no_part_of_the_record(tmp_path: Path) -> None:
    with answering(info(tokenizer_path=str(tmp_path))) as url:
        handle = attach(f"{url}/", tmp_path)
    assert handle.url == url and handle.command == ["attach", url] and handle.pids == ()
    assert handle.identity["api_key"] == "***" and handle.tokenizer == tmp_path
    assert url in handle.log.read_text()


@pytest.mark.parametrize("said", ["org/model", "/where/it/lies/there"])
def test_a_tokenizer_is_looked_for_in_the_cache(tmp_path: Path, cached: Path, said: str) -> None:
    with answering(info(tokenizer_path=said)) as url:
        assert attach(url, tmp_path).tokenizer == cached


def test_a_tokenizer_that_is_not_here_is_told_with_the_reason_and_the_key(tmp_path: Path, cached: Path) -> None:
    config = server("target=qwen3_8b", "target.path=org/other")
    with answering(info(tokenizer_path="org/other")) as url, pytest.raises(ServerFailure) as caught:
        attach(url, tmp_path, config)
    assert caught.value.cause == "tokenizer"
    assert "tokenizer of org/other is not on this machine" in str(caught.value)
    assert "LocalEntryNotFoundError" in str(caught.value) and "target.tokenizer_path=" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"speculative_algorithm": "DFLASH"}, "speculative_algorithm is DFLASH, asked for was None"),
        ({"internal_states": [{"effective_max_running_requests_per_dp": 1}]}, "it runs 1 requests at once"),
    ],
)
def test_one_that_serves_something_else_is_refused(tmp_path: Path, wrong: dict[str, Any], told: str) -> None:
    with answering(info(**wrong)) as url, pytest.raises(ServerFailure) as caught:
        attach(url, tmp_path)
    assert caught.value.cause == "identity" and told in str(caught.value)


def test_where_nothing_answers_is_told_by_its_url(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerFailure, match=f"{url}/server_info fails .*is it running") as caught:
        attach(url, tmp_path)
    assert caught.value.cause == "unreachable"
