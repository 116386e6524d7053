"""The engine's server as a real process: its endpoints, and how it starts, fails and ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.acceptance import disagreement
from orchestrator.load.loops import closed_loop
from orchestrator.load.request import Limits, Request, Sampling
from orchestrator.measuring.records import RequestRecord
from runners.engine.arguments import EXIT_BAD_ARGUMENTS, EXIT_LOAD_FAILED, EXIT_PORT_IN_USE
from tests import tiny_llama
from tests.engine_process import START_S, Engine, free_port, launch, running

GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPT = "a bad cab abcdef "
LONG = 4000
"""Output tokens of a request that is still running whatever a test does meanwhile."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write(tmp_path_factory.mktemp("tiny"), max_position_embeddings=16384)


@pytest.fixture(scope="module")
def engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    log = tmp_path_factory.mktemp("plain") / "server.log"
    with running(folder, log, "--served-model-name", "tiny", "--max-running-requests", "4") as engine:
        yield engine


@pytest.fixture(scope="module")
def drafting(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    log = tmp_path_factory.mktemp("ngram") / "server.log"
    with running(folder, log, "--drafter", "ngram", "--block-size", "6") as engine:
        yield engine


def in_loop(test: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(test, START_S))


async def post(engine: Engine, path: str, body: Any) -> tuple[int, Any]:
    async with engine.client() as client, client.post(path, json=body) as response:
        text = await response.text()
        return response.status, json.loads(text) if text.startswith("{") else text


async def get(engine: Engine, path: str) -> tuple[int, str]:
    async with engine.client() as client, client.get(path) as response:
        return response.status, await response.text()


async def stream(engine: Engine, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with engine.client() as client, client.post(path, json=body | {"stream": True}) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        lines = [line async for raw in response.content if (line := raw.decode().strip())]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def generate(engine: Engine, tokens: int = 16, **body: Any) -> dict[str, Any]:
    sampling = GREEDY | {"max_new_tokens": tokens} | body.pop("sampling_params", {})
    status, answer = in_loop(post(engine, "/generate", {"text": PROMPT, "sampling_params": sampling} | body))
    assert status == 200, answer
    return dict(answer)


def test_generate_and_its_stream_agree(engine: Engine) -> None:
    whole = generate(engine)
    chunks = in_loop(stream(engine, "/generate", {"text": PROMPT, "sampling_params": GREEDY | {"max_new_tokens": 16}}))
    assert len(chunks) == 16  # one token a chunk without a drafter
    assert chunks[-1]["text"] == whole["text"] and chunks[-1]["output_ids"] == whole["output_ids"]
    for before, after in pairwise(chunks):  # cumulative
        assert after["text"].startswith(before["text"]) and after["output_ids"][:-1] == before["output_ids"]
    assert [chunk["meta_info"]["completion_tokens"] for chunk in chunks] == list(range(1, 17))
    meta = whole["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 16}
    assert meta["prompt_tokens"] > 0 and meta["cached_tokens"] == 0 and meta["e2e_latency"] > 0
    assert not [key for key in meta if key.startswith("spec_")]


def test_token_ids_in_place_of_text(engine: Engine) -> None:
    answer = generate(engine, text=None, input_ids=[5, 9, 33])
    assert answer["meta_info"]["prompt_tokens"] == 3


def test_a_drafter_changes_no_token_and_brings_counters(engine: Engine, drafting: Engine) -> None:
    plain, drafted = generate(engine, 64), generate(drafting, 64)
    assert plain["output_ids"] == drafted["output_ids"]
    meta = drafted["meta_info"]
    assert sum(meta["spec_correct_drafts_histogram"]) == meta["spec_verify_ct"] > 0
    assert len(meta["spec_correct_drafts_histogram"]) == 6
    correct = sum(i * n for i, n in enumerate(meta["spec_correct_drafts_histogram"]))
    assert correct == meta["spec_num_correct_drafts"] <= meta["spec_num_proposed_drafts"]
    assert meta["spec_accept_length"] == 64 / meta["spec_verify_ct"]
    info = json.loads(in_loop(get(drafting, "/server_info"))[1])
    assert info["speculative_algorithm"] == "NGRAM"
    assert info["speculative_num_draft_tokens"] == 6
    assert info["internal_states"][0]["avg_spec_accept_length"] == 1 + correct / meta["spec_verify_ct"]
    assert in_loop(post(drafting, "/flush_cache", {}))[0] == 200
    info = json.loads(in_loop(get(drafting, "/server_info"))[1])
    assert "avg_spec_accept_length" not in info["internal_states"][0]


def test_requests_together_are_answered_as_alone(engine: Engine) -> None:
    prompts = [[5 + i, 9, 33] * (i + 1) for i in range(6)]  # two more than run at once

    async def all_at_once() -> list[Any]:
        bodies = [{"input_ids": p, "sampling_params": GREEDY | {"max_new_tokens": 20}} for p in prompts]
        return list(await asyncio.gather(*(post(engine, "/generate", body) for body in bodies)))

    together = [answer["output_ids"] for _, answer in in_loop(all_at_once())]
    assert together == [generate(engine, 20, text=None, input_ids=p)["output_ids"] for p in prompts]


def test_a_seed_repeats_a_sampled_answer(engine: Engine) -> None:
    def sampled(seed: int) -> list[int]:
        params = {"temperature": 1.0, "top_p": 0.95, "sampling_seed": seed}
        return list(generate(engine, 12, sampling_params=params)["output_ids"])

    assert sampled(1) == sampled(1) != sampled(2)


def test_chat_and_completions(engine: Engine) -> None:
    body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    status, whole = in_loop(post(engine, "/v1/chat/completions", body))
    assert status == 200 and whole["object"] == "chat.completion" and whole["model"] == "tiny"
    assert whole["usage"]["completion_tokens"] == 8
    chunks = in_loop(stream(engine, "/v1/chat/completions", body | {"stream_options": {"include_usage": True}}))
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == whole["usage"]
    status, whole = in_loop(post(engine, "/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}))
    assert status == 200 and whole["object"] == "text_completion"


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_openai_endpoints_bring_counters_and_token_ids_to_the_load_client(drafting: Engine, endpoint: Any) -> None:
    request = Request(
        text=PROMPT, sampling=Sampling(64, ignore_eos=True), trial_key="t", arm="ngram", session_index=0,
        phase="measure", prompt_id="p", category="c", repeat=0, endpoint=endpoint, model="tiny",
        messages=({"role": "user", "content": PROMPT},),
    )  # fmt: skip
    kept: list[RequestRecord] = []
    in_loop(closed_loop(drafting.url, [request], 1, Limits(START_S, START_S), kept.append))
    (record,) = kept
    assert (record.outcome, record.error) == ("ok", None)
    assert len(record.output_ids) == record.completion_tokens == 64
    assert record.spec is not None and record.spec.spec_verify_ct > 0
    assert disagreement(record) is None, "a chunk for every step, also for one whose tokens have no text yet"
    if endpoint == "completions":
        assert record.output_ids == generate(drafting, 64)["output_ids"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/generate", {}, "Either text or input_ids"),
        ("/generate", {"text": "a", "sampling_params": {"temprature": 0}}, "did you mean temperature?"),
        ("/generate", [], "JSON object"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "temperature": -1}, "temperature"),
    ],
)
def test_bad_requests(engine: Engine, path: str, body: Any, message: str) -> None:
    status, answer = in_loop(post(engine, path, body))
    assert status == 400
    assert message in (answer["error"]["message"] if path == "/generate" else answer["message"])


def test_the_other_endpoints(engine: Engine, folder: Path) -> None:
    for path in ("/health", "/ready", "/health_generate", "/model_info", "/get_server_info"):
        assert in_loop(get(engine, path))[0] == 200, path
    assert in_loop(get(engine, "/nope"))[0] == 404
    models = json.loads(in_loop(get(engine, "/v1/models"))[1])
    assert models["data"][0]["id"] == "tiny" and models["data"][0]["max_model_len"] == 16384
    info = json.loads(in_loop(get(engine, "/server_info"))[1])
    assert info["engine"] == "embedded" and info["pid"] == engine.process.pid
    assert info["model_path"] == str(folder) and len(info["weights_sha256"]) == 64
    assert info["lossless"] is True and info["dtype"] == "float32" and info["threads"] == 1
    assert info["internal_states"][0]["memory_usage"]["weight"] > 0


def test_metrics_count_what_was_served(engine: Engine) -> None:
    def metric(name: str) -> float:
        lines = in_loop(get(engine, "/metrics"))[1].splitlines()
        (line,) = [line for line in lines if line.startswith(f"sglang:{name}{{")]
        return float(line.rsplit(" ", 1)[1])

    before = {name: metric(name) for name in ("generation_tokens_total", "num_requests_total")}
    in_loop(stream(engine, "/generate", {"text": PROMPT, "sampling_params": GREEDY | {"max_new_tokens": 7}}))
    assert metric("generation_tokens_total") == before["generation_tokens_total"] + 7
    assert metric("num_requests_total") == before["num_requests_total"] + 1
    assert metric("time_to_first_token_seconds_count") >= 1


async def start_long(engine: Engine, client: Any, **body: Any) -> Any:
    """A streaming response that has begun and will go on for long."""
    sampling = GREEDY | {"max_new_tokens": LONG}
    response = await client.post("/generate", json={"text": PROMPT, "sampling_params": sampling, "stream": True} | body)
    await response.content.readline()
    return response


async def idle_again(engine: Engine) -> None:
    while (await post(engine, "/flush_cache", {}))[0] != 200:  # refused while a request runs
        await asyncio.sleep(0.05)


def test_a_client_that_leaves_ends_its_request(engine: Engine) -> None:
    async def leave() -> None:
        async with engine.client() as client:
            response = await start_long(engine, client)
            assert (await post(engine, "/flush_cache", {}))[0] == 400
            response.close()
            await idle_again(engine)

    in_loop(leave())


def test_abort_request_ends_it_with_what_it_has(engine: Engine) -> None:
    async def abort() -> dict[str, Any]:
        async with engine.client() as client:
            response = await start_long(engine, client, rid="mine")
            assert (await post(engine, "/abort_request", {"rid": "mine"}))[0] == 200
            lines = [raw.decode().strip() async for raw in response.content if raw.strip()]
        assert lines[-1] == "data: [DONE]"
        return dict(json.loads(lines[-2].removeprefix("data: ")))

    last = in_loop(abort())
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(last["output_ids"]) < LONG


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_aborts_what_runs_and_exits_with_zero(folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    async def interrupt(engine: Engine) -> list[str]:
        async with engine.client() as client:
            response = await start_long(engine, client)
            engine.process.send_signal(number)
            return [raw.decode().strip() async for raw in response.content if raw.strip()]

    with running(folder, tmp_path / "server.log") as engine:
        lines = in_loop(interrupt(engine))
        started = time.monotonic()
        assert engine.process.wait(START_S) == 0
        assert time.monotonic() - started < 20
    assert lines[-1] == "data: [DONE]"
    reason = json.loads(lines[-2].removeprefix("data: "))["meta_info"]["finish_reason"]
    assert reason["type"] == "abort" and "shutting down" in reason["message"]


def test_a_port_in_use_is_refused_before_anything_is_loaded(engine: Engine, tmp_path: Path) -> None:
    second = launch("/no/such/model", tmp_path / "server.log", port=engine.port)
    assert second.process.wait(START_S) == EXIT_PORT_IN_USE
    said = second.log.read_text()
    assert f"127.0.0.1:{engine.port}" in said and "Nothing was loaded" in said


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    engine = launch("/no/such/model", tmp_path / "server.log")
    assert engine.process.wait(START_S) == EXIT_LOAD_FAILED
    assert "'/no/such/model' is neither a folder nor a known name (smollm2_135m)" in engine.log.read_text()
    assert "Traceback" not in engine.log.read_text()


def test_a_bad_argument_is_refused(folder: Path, tmp_path: Path) -> None:
    engine = launch(folder, tmp_path / "server.log", "--drafter", "dspin")
    assert engine.process.wait(START_S) == EXIT_BAD_ARGUMENTS
    assert "did you mean dspine?" in engine.log.read_text()


def test_it_ends_with_its_parent(folder: Path, tmp_path: Path) -> None:
    """A parent that is killed cannot stop its server; the server notices."""
    port, log = free_port(), tmp_path / "server.log"
    script = (
        "import os, subprocess, sys, time\n"
        "command = [sys.executable, '-m', 'runners.engine', *sys.argv[1:], '--parent-pid', str(os.getpid())]\n"
        "print(subprocess.Popen(command).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    flags = ["--model-path", str(folder), "--port", str(port), "--threads", "1"]
    with log.open("wb") as errors:
        parent = subprocess.Popen([sys.executable, "-c", script, *flags], stdout=subprocess.PIPE, stderr=errors)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + START_S
    while Path(f"/proc/{child}").exists() and not _is_zombie(child):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            pytest.fail(f"the server outlived its parent: {log.read_text()}")
        time.sleep(0.05)
    assert f"the parent process {parent.pid} ended" in log.read_text()


def _is_zombie(pid: int) -> bool:
    # Nobody may reap an orphan in a container without an init process.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
