"""This project's load client for compare.py: a closed loop whose records go to a file, as in a run. Prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import uvloop

from orchestrator.analysis.metrics import inter_token_gaps, percentile
from orchestrator.load.loops import closed_loop
from orchestrator.load.request import Endpoint, Limits, Request, Sampling
from orchestrator.load.self_check import Watch
from orchestrator.measuring.records import RecordFile, RequestRecord


def request(number: int, endpoint: Endpoint) -> Request:
    text = "hi " * 16
    return Request(
        text=text,
        # The server sends what it was started for; an answer below what was asked for would count as cut short.
        sampling=Sampling(max_new_tokens=1, ignore_eos=True),
        trial_key="benchmark",
        arm="plain",
        session_index=0,
        phase="measure",
        prompt_id=f"p{number}",
        category="benchmark",
        repeat=0,
        endpoint=endpoint,
        model="target",
        messages=({"role": "user", "content": text},),
    )


async def measure(url: str, streams: int, count: int, endpoint: Endpoint, folder: Path) -> None:
    file = RecordFile(folder / "records.jsonl")
    kept: list[RequestRecord] = []

    def keep(record: RequestRecord) -> None:
        file.append(record)
        kept.append(record)

    with Watch() as watch:
        await closed_loop(url, [request(n, endpoint) for n in range(count)], streams, Limits(300, 60), keep)
    file.close()
    assert all(record.outcome == "ok" for record in kept), {record.error for record in kept}
    gaps = sorted(gap for record in kept for gap, _ in inter_token_gaps(record))
    print(
        json.dumps({"mean_s": sum(gaps) / len(gaps), "p99_s": percentile(gaps, 99), **watch.usage(kept).model_dump()})
    )


if __name__ == "__main__":
    place, concurrency, number, output, path = sys.argv[1:]
    uvloop.run(measure(place, int(concurrency), int(number), path, Path(output)))  # type: ignore[arg-type]
