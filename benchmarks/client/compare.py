"""CPU time per streamed chunk and truth of the stamps: this project's load client beside others, in one run.

    python -m benchmarks.client.compare --tokenizer FOLDER [--sglang PYTHON] [--aiperf COMMAND] [--guidellm COMMAND]

Every client reads the same streams from the same server (server.c, compiled on start). A client's cost is the CPU time
of its processes, as the scheduler counts it, while the middle 90% of the chunks are sent, over their number: start,
tokenizers and the final report are not in it, requests are. Rounds are interleaved, figures are medians over rounds;
a ratio is formed inside a round, so that a machine that is busy elsewhere moves both sides. README.md has the
commands for the other clients and what was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

HERE = Path(__file__).parent
TIMEOUT_S = 400
PERIOD_S = 0.1
MIDDLE = (0.05, 0.95)
OURS = "this client"


@dataclass(frozen=True)
class Point:
    """``streams`` at once, a chunk every ``interval_us`` on each; in all ``requests`` answers of ``chunks`` chunks."""

    streams: int
    interval_us: int
    chunks: int
    requests: int


POINTS = (Point(1, 1000, 1000, 8), Point(16, 5000, 500, 64), Point(64, 10000, 250, 256), Point(256, 40000, 125, 512))
RUST = """
import glob, importlib.machinery, importlib.util, sys
(folder,) = importlib.util.find_spec("sglang").submodule_search_locations
(path,) = glob.glob(folder + "/srt/rust_extensions/_bench*.so")
loader = importlib.machinery.ExtensionFileLoader("_bench", path)
module = importlib.util.module_from_spec(importlib.util.spec_from_loader("_bench", loader))
loader.exec_module(module)
module.run_argv(sys.argv[1:])
"""
Command = Callable[[str, Point, Path], list[str]]
"""(url, point, output folder) -> words"""
Gaps = Callable[[Path], tuple[float, float | None]]
"""Output folder -> mean and p99 of the gaps between the chunks of a request, s, as the client itself reports them."""


@dataclass(frozen=True)
class Client:
    name: str
    command: Command
    gaps: Gaps


def clients(arguments: argparse.Namespace) -> list[Client]:
    tokenizer = str(arguments.tokenizer)
    found = [
        Client(OURS, _own("own_client", "chat"), _printed),
        Client(f"{OURS}, /generate", _own("own_client", "generate"), _printed),
        Client("aiohttp, bare", _own("aiohttp_client"), _printed),
    ]
    if arguments.sglang:
        for name, module in (("SGLang, Rust", "rust_client"), ("SGLang, Python", "serving")):
            found.append(Client(name, _sglang(arguments.sglang, module, tokenizer), _sglang_gaps))
    if arguments.aiperf:
        found.append(Client("aiperf", _aiperf(arguments.aiperf, tokenizer), _aiperf_gaps))
    if arguments.guidellm:
        found.append(Client("guidellm", _guidellm(arguments.guidellm, tokenizer), _guidellm_gaps))
    return [client for client in found if not arguments.only or client.name in arguments.only]


def _own(module: str, *more: str) -> Command:
    words = [sys.executable, "-m", f"benchmarks.client.{module}"]
    return lambda url, point, out: [*words, url, str(point.streams), str(point.requests), str(out), *more]


def _printed(out: Path) -> tuple[float, float]:
    said = json.loads((out / "stdout").read_text())
    return said["mean_s"], said["p99_s"]


def _sglang(python: str, module: str, tokenizer: str) -> Command:
    # The Rust client is a file of its own inside the package, which would take ten seconds to import.
    start = ["-c", RUST, "sglang-bench"] if module == "rust_client" else ["-m", f"sglang.benchmark.{module}"]
    return lambda url, point, out: [
        python, "-W", "ignore", *start, "--backend", "sglang-oai-chat", "--base-url", url,
        "--model", "target", "--tokenizer", tokenizer, "--dataset-name", "random-ids", "--random-range-ratio", "1",
        "--random-input-len", "16", "--random-output-len", str(point.chunks), "--num-prompts", str(point.requests),
        "--max-concurrency", str(point.streams), "--warmup-requests", "0", "--disable-tqdm",
        "--output-file", str(out / "result.jsonl"),
    ]  # fmt: skip


def _sglang_gaps(out: Path) -> tuple[float, float]:
    result = json.loads((out / "result.jsonl").read_text())
    return result["mean_itl_ms"] / 1000, result["p99_itl_ms"] / 1000


def _aiperf(command: str, tokenizer: str) -> Command:
    return lambda url, point, out: [
        command, "profile", "-m", "target", "--url", url, "--endpoint-type", "chat", "--streaming",
        "--tokenizer", tokenizer, "--concurrency", str(point.streams), "--request-count", str(point.requests),
        "--synthetic-input-tokens-mean", "16", "--output-tokens-mean", str(point.chunks), "--ui", "none",
        "--artifact-dir", str(out),
    ]  # fmt: skip


def _aiperf_gaps(out: Path) -> tuple[float, float]:
    gaps = json.loads((out / "profile_export_aiperf.json").read_text())["inter_chunk_latency"]
    return gaps["avg"] / 1000, gaps["p99"] / 1000


def _guidellm(command: str, tokenizer: str) -> Command:
    return lambda url, point, out: [
        command, "run", "--backend", f"kind=openai_http,target={url},model=target",
        "--profile", f"kind=concurrent,streams={point.streams}",
        "--constraint", f"kind=max_requests,count={point.requests}",
        "--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={point.chunks}",
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
        "--output", f"kind=json,path={out / 'result.json'}", "--disable-console",
    ]  # fmt: skip


def _guidellm_gaps(out: Path) -> tuple[float, None]:
    """It keeps one mean per request, so there is no percentile over gaps."""
    metrics = json.loads((out / "result.json").read_text())["benchmarks"][0]["metrics"]
    return metrics["inter_token_latency_ms"]["successful"]["mean"] / 1000, None


class Server:
    """server.c, serving a point."""

    def __init__(self, program: Path, point: Point) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        words = [str(program), str(port), str(point.chunks), str(point.interval_us), "1"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self._process.stdout is not None and self._process.stdout.readline() == b"ready\n"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def cpu_s(process: psutil.Process) -> float:
    """CPU time of a process and its children so far, s; that of those that have ended is left out."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        for path in Path(f"/proc/{one.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(path.read_text().split()[0])
    return total / 1e9


def measure(client: Client, program: Path, point: Point) -> dict[str, Any]:
    """One run: the client's cost per chunk, and the gaps as they were and as it saw them."""
    server = Server(program, point)
    out = Path(tempfile.mkdtemp())
    samples: list[tuple[int, float]] = []
    start = time.perf_counter()
    try:
        with (out / "stdout").open("wb") as stdout, (out / "stderr").open("wb") as stderr:
            environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
            process = psutil.Popen(
                client.command(server.url, point, out), stdout=stdout, stderr=stderr, env=environment
            )
            while process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    samples.append((server.get("/count"), cpu_s(process)))
                if time.perf_counter() - start > TIMEOUT_S:
                    process.kill()
                time.sleep(PERIOD_S)
        if process.returncode:
            raise RuntimeError(f"ended with {process.returncode}: {(out / 'stderr').read_text()[-1000:]}")
        sent, (mean, p99) = server.get("/stats"), client.gaps(out)
    finally:
        server.stop()
        shutil.rmtree(out, ignore_errors=True)
    low, high = (share * point.requests * point.chunks for share in MIDDLE)
    inside = [sample for sample in samples if low <= sample[0] <= high]
    (first_chunks, first_cpu), (last_chunks, last_cpu) = inside[0], inside[-1]
    us = 1e6 * (last_cpu - first_cpu) / (last_chunks - first_chunks)
    return {"us_per_chunk": us, "wall_s": time.perf_counter() - start, **sent, "seen_mean_s": mean, "seen_p99_s": p99}


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs, one line each, in the order in which they were made."""
    program = Path(tempfile.mkdtemp()) / "server"
    subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / "server.c")], check=True)
    lines = []
    points = [point for point in POINTS if point.streams in arguments.streams]
    for round_ in range(arguments.rounds):
        for point in points:
            for client in clients(arguments):
                place = f"round {round_}, {point.streams} streams, {client.name}"
                try:
                    result = measure(client, program, point)
                except (RuntimeError, OSError, KeyError, IndexError, ValueError) as problem:
                    print(f"{place}: {type(problem).__name__}: {problem}", file=sys.stderr)
                    continue
                lines.append({"round": round_, "streams": point.streams, "client": client.name, **result})
                with arguments.out.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
                print(f"{place}: {result['us_per_chunk']:.1f} us", file=sys.stderr)
    return lines


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: cost per chunk and as a multiple of ours, then what the clients saw of the server's gaps."""
    streams = sorted({line["streams"] for line in lines})
    names = list(dict.fromkeys(line["client"] for line in lines))
    cost: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for line in lines:
        cost[line["client"], line["streams"]][line["round"]] = line["us_per_chunk"]
    rows = [["CPU us per chunk (x this client)", *(f"{count} streams" for count in streams)]]
    for name in names:
        rows.append([name, *(_cost(cost[name, count], cost[OURS, count]) for count in streams)])
    seen = [["gaps at 64 streams", "mean, off by", "p99, off by"]]
    for name in names:
        own = [line for line in lines if line["client"] == name and line["streams"] == 64]
        seen.append([name, *_truth(own)])
    return "\n\n".join("\n".join(_markdown(part)) for part in (rows, seen))


def _cost(own: dict[int, float], ours: dict[int, float]) -> str:
    if not own:
        return "-"
    ratios = [own[round_] / ours[round_] for round_ in own if round_ in ours]
    return f"{median(own.values()):.1f}" + (f" ({median(ratios):.2f}x)" if ratios else "")


def _truth(runs: Iterable[dict[str, Any]]) -> list[str]:
    runs = list(runs)
    means = [run["seen_mean_s"] / run["gap_mean_s"] - 1 for run in runs if run["seen_mean_s"] is not None]
    tails = [run["seen_p99_s"] - run["gap_p99_s"] for run in runs if run["seen_p99_s"] is not None]
    return [f"{median(means):+.2%}" if means else "-", f"{1000 * median(tails):+.2f} ms" if tails else "not reported"]


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="folder of a tokenizer, with which others make prompts")
    parser.add_argument("--sglang", help="Python that has sglang 0.5.23")
    parser.add_argument("--aiperf", help="the aiperf command")
    parser.add_argument("--guidellm", help="the guidellm command")
    parser.add_argument("--streams", type=int, nargs="+", default=[point.streams for point in POINTS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="CLIENT", help="names as in the table")
    parser.add_argument("--out", type=Path, default=Path("client_benchmark.jsonl"), help="every run, appended")
    parser.add_argument("--show", action="store_true", help="measure nothing; the table of what --out holds")
    arguments = parser.parse_args()
    if arguments.show:
        print(table([json.loads(line) for line in arguments.out.read_text().splitlines()]))
    else:
        print(table(run(arguments)))


if __name__ == "__main__":
    main()
