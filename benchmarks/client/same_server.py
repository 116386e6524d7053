"""One server, measured by this client, SGLang's bench_serving and aiperf: the same prompts, side by side.

    python -m benchmarks.client.same_server --model FOLDER [--sglang PYTHON] [--aiperf COMMAND] [--rounds 2]
    python -m benchmarks.client.same_server --model FOLDER --url http://127.0.0.1:30000 --ignore-eos --sglang PYTHON

Greedy, one request at a time unless --streams says otherwise. Without --url, the embedded engine serves (DFlash2 at
block 8); with it, whatever runs there is measured and left running. The order of the clients turns round with every
round; the prefix cache is flushed between runs. What each reports under the name of a figure is told as it is;
README.md explains what differs.
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
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
THROUGHPUT = "output tok/s"
OURS = "this client"
_FLUSH_S = 10.0
ROWS = (
    "requests",
    "output tokens",
    "TTFT mean, ms",
    "TPOT mean, ms",
    "ITL mean, ms",
    THROUGHPUT,
    "acceptance length",
)


@dataclass(frozen=True)
class Asked:
    """What every client sends."""

    texts: list[str]
    tokens: int
    """Most of an answer."""
    streams: int = 1
    """Requests in flight."""
    ignore_eos: bool = False
    """Every answer has ``tokens`` tokens."""


def prompts(count: int) -> list[str]:
    suite = yaml.safe_load((conf_dir() / "suite" / "short_long_16.yaml").read_text())
    return [prompt["messages"][0]["content"] for prompt in suite["prompts"]][:count]


def ours(url: str, model: Path, asked: Asked, kept: list[RequestRecord] | None = None) -> Figures:
    """``kept`` gets the records."""
    template = ChatTemplate(model, None)
    requests = [
        Request(
            text=template.render([{"role": "user", "content": text}], None),
            sampling=Sampling(max_new_tokens=asked.tokens, ignore_eos=asked.ignore_eos),
            trial_key="same_server", arm="same_server", session_index=0, phase="measure", prompt_id=f"p{number}",
            category="all", repeat=0, endpoint="generate", model="", messages=(),
        )
        for number, text in enumerate(asked.texts)
    ]  # fmt: skip
    records: list[RequestRecord] = []
    asyncio.run(closed_loop(url, requests, asked.streams, Limits(300, 60), records.append))
    if kept is not None:
        kept += records
    found, drafts = metrics.compute(records), acceptance.pooled(records)
    return {
        "requests": found.requests, "output tokens": found.output_tokens, "TTFT mean, ms": _ms(found.ttft_s.mean),
        "TPOT mean, ms": _ms(found.tpot_s.mean), "ITL mean, ms": _ms(found.itl_s.mean),
        "output tok/s": found.output_tok_s, "acceptance length": drafts.tau if drafts else None,
    }  # fmt: skip


def bench_serving(python: str, url: str, model: Path, asked: Asked, folder: Path) -> Figures:
    # Its own --apply-chat-template takes the beginning-of-sequence token out of the whole prompt, which for this target
    # is the token that opens every turn; so the template is applied here.
    template, answer = ChatTemplate(model, None), {"content": "word " * asked.tokens}
    texts = [template.render([{"role": "user", "content": text}], None) for text in asked.texts]
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"conversations": [{"content": text}, answer]}) + "\n" for text in texts))
    _run(
        [
            python, "-W", "ignore", "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", url,
            "--model", str(model), "--tokenizer", str(model), "--dataset-name", "custom", "--dataset-path", str(data),
            "--sharegpt-output-len", str(asked.tokens), "--num-prompts", str(len(texts)),
            "--max-concurrency", str(asked.streams), "--warmup-requests", "0", "--disable-tqdm",
            "--output-file", str(folder / "sglang.jsonl"), *([] if asked.ignore_eos else ["--disable-ignore-eos"]),
        ]
    )  # fmt: skip
    found = json.loads((folder / "sglang.jsonl").read_text().splitlines()[-1])
    return {
        "requests": found["completed"], "output tokens": found["total_output_tokens"],
        "TTFT mean, ms": found["mean_ttft_ms"], "TPOT mean, ms": found["mean_tpot_ms"],
        "ITL mean, ms": found["mean_itl_ms"], "output tok/s": found["output_throughput"],
        "acceptance length": found.get("accept_length"),
    }  # fmt: skip


def aiperf(command: str, url: str, model: Path, asked: Asked, folder: Path) -> Figures:
    data = folder / "aiperf.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in asked.texts))
    ends = [] if not asked.ignore_eos else ["--extra-inputs", "ignore_eos:true"]
    _run(
        [
            command, "profile", "-m", "target", "--url", url, "--endpoint-type", "chat", "--streaming",
            "--tokenizer", str(model), "--concurrency", str(asked.streams),
            "--request-count", str(len(asked.texts)), "--input-file", str(data),
            "--custom-dataset-type", "single_turn", "--output-tokens-mean", str(asked.tokens),
            "--extra-inputs", "temperature:0", *ends, "--ui", "none", "--artifact-dir", str(folder / "aiperf"),
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
    asked = Asked(prompts(arguments.prompts), arguments.tokens, arguments.streams, arguments.ignore_eos)
    clients: dict[str, Callable[[str, Path], Figures]] = {OURS: lambda url, folder: ours(url, model, asked, kept)}
    if python := arguments.sglang:
        clients["bench_serving"] = lambda url, folder: bench_serving(python, url, model, asked, folder)
    if command := arguments.aiperf:
        clients["aiperf"] = lambda url, folder: aiperf(command, url, model, asked, folder)
    found: dict[str, list[Figures]] = {name: [] for name in clients}
    with tempfile.TemporaryDirectory() as place, _served(arguments.url, model, Path(place)) as url:
        # A warm-up with as many in flight: a batch of another size is another kernel.
        few = asked.texts[: max(2, asked.streams)]
        ours(url, model, Asked(few, asked.tokens, asked.streams, asked.ignore_eos))
        for number in range(arguments.rounds):
            names = list(clients) if number % 2 == 0 else list(clients)[::-1]
            for name in names:
                _flush(url)
                folder = Path(place) / f"{number}-{name.replace(' ', '-')}"
                folder.mkdir()
                found[name].append(clients[name](url, folder))
                print(
                    f"round {number}, {name}: {found[name][-1][THROUGHPUT]:.1f} tok/s, "
                    f"load average {os.getloadavg()[0]:.1f}",
                    file=sys.stderr,
                )
    return found


def ratios(found: dict[str, list[Figures]]) -> str:
    """A line for each other client: its output tok/s over this client's, of the medians."""
    middle = {name: median(run[THROUGHPUT] or 0.0 for run in runs) for name, runs in found.items()}
    told = [f"{THROUGHPUT}, {name} / {OURS}: {middle[name] / middle[OURS]:.4f}" for name in middle if name != OURS]
    return "\n".join(told)


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


@contextmanager
def _served(url: str | None, model: Path, folder: Path) -> Iterator[str]:
    """``url`` as it is, or an embedded engine for as long as this lasts."""
    if url is not None:
        yield url.rstrip("/")
        return
    server, started = _serve(model, folder)
    try:
        yield started
    finally:
        server.terminate()
        server.wait()


def _flush(url: str) -> None:
    """SGLang refuses it for a moment after the last answer."""
    deadline = time.monotonic() + _FLUSH_S
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/flush_cache", method="POST"), timeout=30).close()
            return
        except urllib.error.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


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
    parser.add_argument("--url", help="a server that runs already, whose model has the tokenizer of --model")
    parser.add_argument("--sglang", help="python of an environment with sglang")
    parser.add_argument("--aiperf", help="the aiperf command")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--streams", type=int, default=1, help="requests in flight")
    parser.add_argument("--ignore-eos", action="store_true", help="every answer has --tokens tokens")
    arguments, kept = parser.parse_args(), list[RequestRecord]()
    found = measure(arguments, kept)
    told = [table(found), ratios(found), definitions(kept, arguments.model)]
    print("\n\n".join(part for part in told if part))


if __name__ == "__main__":
    main()
