"""One embedded server, measured by this client, SGLang's bench_serving and aiperf: the same prompts, side by side.

    python -m benchmarks.client.same_server --model FOLDER [--sglang PYTHON] [--aiperf COMMAND] [--rounds 2]

One request at a time, greedy, DFlash2 at block 8. The order of the clients turns round with every round; the prefix
cache is flushed between runs. What each reports under the name of a figure is told as it is; README.md explains what
differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median

import yaml
from tokenizers import Tokenizer

from orchestrator.analysis import acceptance, metrics
from orchestrator.load.loops import closed_loop
from orchestrator.load.request import Limits, Request, Sampling
from orchestrator.measuring.records import RequestRecord
from orchestrator.measuring.template import ChatTemplate
from orchestrator.paths import conf_dir

Figures = dict[str, float | None]
ROWS = (
    "requests",
    "output tokens",
    "TTFT mean, ms",
    "TPOT mean, ms",
    "ITL mean, ms",
    "output tok/s",
    "acceptance length",
)


def prompts(count: int) -> list[str]:
    suite = yaml.safe_load((conf_dir() / "suite" / "short_long_16.yaml").read_text())
    return [prompt["messages"][0]["content"] for prompt in suite["prompts"]][:count]


def ours(url: str, model: Path, texts: list[str], tokens: int, kept: list[RequestRecord] | None = None) -> Figures:
    """``kept`` gets the records."""
    template = ChatTemplate(model, None)
    requests = [
        Request(
            text=template.render([{"role": "user", "content": text}], None), sampling=Sampling(max_new_tokens=tokens),
            trial_key="same_server", arm="dflash2", session_index=0, phase="measure", prompt_id=f"p{number}",
            category="all", repeat=0, endpoint="generate", model="", messages=(),
        )
        for number, text in enumerate(texts)
    ]  # fmt: skip
    records: list[RequestRecord] = []
    asyncio.run(closed_loop(url, requests, 1, Limits(300, 60), records.append))
    if kept is not None:
        kept += records
    found, drafts = metrics.compute(records), acceptance.pooled(records)
    return {
        "requests": found.requests, "output tokens": found.output_tokens, "TTFT mean, ms": _ms(found.ttft_s.mean),
        "TPOT mean, ms": _ms(found.tpot_s.mean), "ITL mean, ms": _ms(found.itl_s.mean),
        "output tok/s": found.output_tok_s, "acceptance length": drafts.tau if drafts else None,
    }  # fmt: skip


def bench_serving(python: str, url: str, model: Path, texts: list[str], tokens: int, folder: Path) -> Figures:
    # Its own --apply-chat-template takes the beginning-of-sequence token out of the whole prompt, which for this target
    # is the token that opens every turn; so the template is applied here.
    template, answer = ChatTemplate(model, None), {"content": "word " * tokens}
    asked = [template.render([{"role": "user", "content": text}], None) for text in texts]
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"conversations": [{"content": text}, answer]}) + "\n" for text in asked))
    _run(
        [
            python, "-W", "ignore", "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", url,
            "--model", str(model), "--tokenizer", str(model), "--dataset-name", "custom", "--dataset-path", str(data),
            "--sharegpt-output-len", str(tokens), "--num-prompts", str(len(texts)),
            "--max-concurrency", "1", "--warmup-requests", "0", "--disable-ignore-eos", "--disable-tqdm",
            "--output-file", str(folder / "sglang.jsonl"),
        ]
    )  # fmt: skip
    found = json.loads((folder / "sglang.jsonl").read_text().splitlines()[-1])
    return {
        "requests": found["completed"], "output tokens": found["total_output_tokens"],
        "TTFT mean, ms": found["mean_ttft_ms"], "TPOT mean, ms": found["mean_tpot_ms"],
        "ITL mean, ms": found["mean_itl_ms"], "output tok/s": found["output_throughput"],
        "acceptance length": found.get("accept_length"),
    }  # fmt: skip


def aiperf(command: str, url: str, model: Path, texts: list[str], tokens: int, folder: Path) -> Figures:
    data = folder / "aiperf.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    _run(
        [
            command, "profile", "-m", "target", "--url", url, "--endpoint-type", "chat", "--streaming",
            "--tokenizer", str(model), "--concurrency", "1", "--request-count", str(len(texts)),
            "--input-file", str(data), "--custom-dataset-type", "single_turn", "--output-tokens-mean", str(tokens),
            "--extra-inputs", "temperature:0", "--ui", "none", "--artifact-dir", str(folder / "aiperf"),
        ]
    )  # fmt: skip
    found = json.loads((folder / "aiperf" / "profile_export_aiperf.json").read_text())

    def average(name: str) -> float | None:
        return found[name]["avg"] if name in found else None

    return {
        "requests": average("request_count"), "output tokens": average("total_output_tokens") or average("total_osl"),
        "TTFT mean, ms": average("time_to_first_token"), "TPOT mean, ms": average("inter_token_latency"),
        "ITL mean, ms": average("inter_chunk_latency"), "output tok/s": average("output_token_throughput"),
        "acceptance length": None,
    }  # fmt: skip


def definitions(records: list[RequestRecord], model: Path) -> str:
    """Markdown: the requests of this client by every tool's definitions, hence without the noise between runs."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    again = [len(tokenizer.encode(one.text, add_special_tokens=False).ids) for one in records]
    counted = [one.completion_tokens or 0 for one in records]
    first = [one.chunks[0][1] for one in records]
    decode = [one.chunks[-1][0] - one.chunks[0][0] for one in records]
    whole = [(one.e2e_s or 0.0) - one.chunks[0][0] for one in records]
    found = metrics.compute(records)
    lines = {
        "output tokens, counted by the server": sum(counted),
        "output tokens, text tokenized again (aiperf)": sum(again),
        "TPOT, ms: first to last chunk / tokens after the first chunk (this client)": _ms(found.tpot_s.mean),
        "TPOT, ms: first chunk to last byte / (tokens - 1) (`bench_serving`)": _ms(
            mean(spent / (tokens - 1) for spent, tokens in zip(whole, counted, strict=True) if tokens > 1)
        ),
        "the same by tokens of text tokenized again (aiperf's `inter_token_latency`)": _ms(
            mean(spent / (n - one) for spent, n, one in zip(decode, again, first, strict=True) if n > one)
        ),
        "ITL, ms: gap / its tokens, over tokens (this client, `bench_serving`)": _ms(found.itl_s.mean),
        "ITL, ms: gap between chunks (aiperf's `inter_chunk_latency`)": _ms(
            mean(gap for one in records for gap, _ in metrics.inter_token_gaps(one))
        ),
    }
    body = [f"| {name} | {_cell([value or 0])} |" for name, value in lines.items()]
    return "\n".join(["| this client's requests by each tool's definition | |", "| --- | ---: |", *body])


def measure(arguments: argparse.Namespace, kept: list[RequestRecord]) -> dict[str, list[Figures]]:
    """``kept`` gets the records of this client."""
    model: Path = arguments.model
    texts = prompts(arguments.prompts)
    clients: dict[str, Callable[[str, Path], Figures]] = {
        "this client": lambda url, folder: ours(url, model, texts, arguments.tokens, kept)
    }
    if python := arguments.sglang:
        clients["bench_serving"] = lambda url, folder: bench_serving(
            python, url, model, texts, arguments.tokens, folder
        )
    if command := arguments.aiperf:
        clients["aiperf"] = lambda url, folder: aiperf(command, url, model, texts, arguments.tokens, folder)
    found: dict[str, list[Figures]] = {name: [] for name in clients}
    with tempfile.TemporaryDirectory() as place:
        server, url = _serve(model, Path(place))
        try:
            ours(url, model, texts[:2], arguments.tokens)  # warm-up
            for number in range(arguments.rounds):
                names = list(clients) if number % 2 == 0 else list(clients)[::-1]
                for name in names:
                    urllib.request.urlopen(urllib.request.Request(f"{url}/flush_cache", method="POST")).close()
                    folder = Path(place) / f"{number}-{name.replace(' ', '-')}"
                    folder.mkdir()
                    found[name].append(clients[name](url, folder))
                    print(f"round {number}, {name}: load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
        finally:
            server.terminate()
            server.wait()
    return found


def table(found: dict[str, list[Figures]]) -> str:
    """Markdown: medians over rounds, and the least and the most where they differ."""
    rows = [["", *found], ["---", *("---:" for _ in found)]]
    for row in ROWS:
        cells = []
        for runs in found.values():
            values = [value for run in runs if (value := run[row]) is not None]
            cells.append(_cell(values) if values else "not reported")
        rows.append([row, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(values: list[float]) -> str:
    low, middle, high = (f"{value:,.2f}".removesuffix(".00") for value in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def _serve(model: Path, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    log = folder / "server.log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "runners.engine", "--model-path", str(model), "--port", str(port),
                "--drafter", "dflash2", "--served-model-name", "target",
            ],
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    while b"ready to roll" not in log.read_bytes():
        if process.poll() is not None:
            raise RuntimeError(log.read_text()[-2000:])
        time.sleep(0.05)
    return process, f"http://127.0.0.1:{port}"


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the target in Hugging Face's layout")
    parser.add_argument("--sglang", help="python of an environment with sglang")
    parser.add_argument("--aiperf", help="the aiperf command")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    arguments, kept = parser.parse_args(), list[RequestRecord]()
    print(table(measure(arguments, kept)), definitions(kept, arguments.model), sep="\n\n")


if __name__ == "__main__":
    main()
