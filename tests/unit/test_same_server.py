"""The comparison of clients on a server that runs already: what is sent to it, and what is told."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from benchmarks.client import same_server
from orchestrator.measuring.records import RequestRecord
from tests import fake_server


def test_a_running_server_is_measured_and_left_running(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    kept: list[RequestRecord] = []
    with fake_server.serve(fake_server.Fake(delay_s=0.001)) as fake:
        arguments = Namespace(
            model=tmp_path, url=fake.url + "/", prompts=16, tokens=12, streams=8, rounds=2, ignore_eos=True,
            sglang=None, aiperf=None,
        )  # fmt: skip
        found = same_server.measure(arguments, kept)
    ((name, runs),) = found.items()
    assert name == same_server.OURS and [run["output tokens"] for run in runs] == [16 * 12] * 2
    assert len(fake.bodies) == 8 + 2 * 16 and fake.most_in_flight == 8 and fake.flushed == 2
    assert all(body["sampling_params"]["ignore_eos"] for body in fake.bodies)
    assert len(kept) == 32, "the warm-up is not among them"
    assert "output tok/s" in same_server.table(found)


def test_throughput_is_told_as_a_ratio_to_this_client() -> None:
    def runs(*values: float) -> list[same_server.Figures]:
        return [{same_server.THROUGHPUT: value} for value in values]

    told = same_server.ratios({same_server.OURS: runs(100.0, 102.0), "bench_serving": runs(99.0, 99.0)})
    assert told == "output tok/s, bench_serving / this client: 0.9802"
