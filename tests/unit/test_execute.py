"""The run loop against servers in a thread: what is measured, taken over, given up, and said."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator import report
from orchestrator.analysis.results import Summary, read_summary
from orchestrator.measuring import execute, measure, store
from orchestrator.measuring.measure import request_seed, warmup_prompts
from orchestrator.measuring.records import read_records
from orchestrator.schema import ArmConfig
from runners.base import ServerFailure, ServerHandle
from tests.fake_server import Fake, serve
from tests.plan_factory import arm, comparison, load, suite


class FakeRunner:
    """Serves an arm with a server in a thread. ``starts`` lists the arms in the order of their starts."""

    def __init__(self, arm_name: str, world: World) -> None:
        self.arm_name, self.world = arm_name, world

    def start(self, config: dict[str, Any], directory: Path, on_status: Callable[[str], None]) -> ServerHandle:
        self.world.starts.append(self.arm_name)
        on_status("loading")
        if (failure := self.world.refuses.get(self.arm_name)) is not None:
            raise failure
        fake = self.world.fakes[self.arm_name]
        self.context = self.world.stack.enter_context(ExitStack())
        self.context.enter_context(serve(fake))
        self.world.running += 1
        return ServerHandle(
            fake.url, directory / "server.log", ["serve", self.arm_name], {}, tokenizer=self.world.tokenizer
        )

    def stop(self, handle: ServerHandle) -> None:
        self.context.close()
        self.world.running -= 1

    def failure(self, handle: ServerHandle) -> ServerFailure | None:
        return self.world.died.get(self.arm_name)

    def peak_memory_bytes(self, handle: ServerHandle) -> int | None:
        return 1000 + len(self.world.starts)


class World:
    """The servers of a test, by arm."""

    def __init__(self, tokenizer: Path, stack: ExitStack) -> None:
        self.tokenizer, self.stack = tokenizer, stack
        # Without a delay speeds would be noise, and one above tau refuses the comparison.
        speculating = {name: Fake(drafts=3, delay_s=0.003) for name in ("ngram", "other")}
        self.fakes = {"plain": Fake(delay_s=0.003), **speculating}
        self.refuses: dict[str, ServerFailure] = {}
        self.died: dict[str, ServerFailure] = {}
        self.starts: list[str] = []
        self.running = 0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<a>")
    with ExitStack() as stack:
        made = World(folder, stack)

        def make_runner(config: ArmConfig) -> FakeRunner:
            return FakeRunner(config.name, made)

        monkeypatch.setattr(execute, "make_runner", make_runner)
        # Plots take seconds and have tests of their own.
        monkeypatch.setattr(report, "write", lambda summary, directory: None)
        monkeypatch.setattr(measure, "_DEATH_WAIT_S", 0.05)
        yield made
        assert made.running == 0, "a server was left running"


@pytest.fixture
def arms() -> list[ArmConfig]:
    return [arm(name, suite(), load()) for name in ("plain", "ngram")]


def run(tmp_path: Path, arms: list[ArmConfig], name: str = "one", tag: str = "") -> tuple[int, Summary | None]:
    code = execute.run(*comparison(tmp_path, *arms, tag=tag), tmp_path / name)
    path = tmp_path / name / "summary.json"
    return code, read_summary(path) if path.exists() else None


def test_a_run_measures_every_trial_once_in_plan_order(
    tmp_path: Path, world: World, arms: list[ArmConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    code, summary = run(tmp_path, arms)
    assert code == 0 and summary is not None and summary.status == "finished"
    assert world.starts == ["plain", "ngram", "plain"]
    entries, records = store.load(tmp_path / "one")
    assert [entry.key for entry in entries] == ["plain-c1-r0", "ngram-c1-r0", "ngram-c1-r1", "plain-c1-r1"]
    assert len(records) == 4 * 4
    assert [record.prompt_id for record in records[:4]] == ["p0", "p1", "p2", "p3"]
    warm = [
        record
        for path in sorted((tmp_path / "one").glob("sessions/*/records.jsonl"))
        for record in read_records(path)
        if record.phase == "warmup"
    ]
    assert len(warm) == 2 * 4, "before each trial one of each category"
    assert {record.category for record in warm} == {"short", "long"}
    assert world.fakes["plain"].flushed == 2 and world.fakes["ngram"].flushed == 2
    assert world.fakes["plain"].bodies[0]["text"].startswith("<user>prompt")
    assert entries[1].server.peak_memory_bytes == 1002 and entries[1].server.command == ["serve", "ngram"]
    assert {"config.yaml", "plan.json", "environment.json", "summary.json"} <= set(os.listdir(tmp_path / "one"))
    by_name = {one.name: one for one in summary.arms}
    assert by_name["ngram"].point is not None and by_name["ngram"].point.acceptance is not None
    assert by_name["ngram"].point.acceptance.tau == 4.0
    assert by_name["ngram"].lossless is not None and by_name["ngram"].lossless.identical == 8
    assert "ngram · repeat 2 of 2 · 1 in flight" in capsys.readouterr().out


def test_a_second_run_measures_nothing_says_so_and_shows_the_same(
    tmp_path: Path, world: World, arms: list[ArmConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    _, first = run(tmp_path, arms)
    starts = len(world.starts)
    capsys.readouterr()
    code, second = run(tmp_path, arms, "two")
    assert code == 0 and len(world.starts) == starts
    assert "4 of 4 trials are measured already" in capsys.readouterr().out
    assert first is not None and second is not None
    assert [one.point for one in second.arms] == [one.point for one in first.arms]
    assert [one.memory for one in second.arms] == [one.memory for one in first.arms]


def test_only_what_is_missing_is_measured(tmp_path: Path, world: World, arms: list[ArmConfig]) -> None:
    run(tmp_path, arms)
    (tmp_path / "index/ngram-c1-r1.json").unlink()
    world.starts.clear()
    world.fakes["ngram"].bodies.clear()
    code, _ = run(tmp_path, arms, "two")
    assert code == 0 and world.starts == ["ngram"]
    assert len(world.fakes["ngram"].bodies) == 2 + 4


def test_an_arm_that_does_not_start_is_named_and_the_others_are_measured(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.refuses["ngram"] = ServerFailure("weights", "weights/x is missing", tmp_path / "server.log")
    code, summary = run(tmp_path, [arm(name, suite(), load()) for name in ("plain", "ngram", "other")])
    assert code == 1 and summary is not None and summary.status == "failed"
    assert world.starts == ["plain", "ngram", "other", "plain"], "ngram is not tried a second time"
    out = capsys.readouterr().out
    assert "ngram: weights/x is missing" in out and "server.log" in out
    assert {one.name: one.missing for one in summary.arms}["ngram"] == "weights/x is missing"
    assert {one.name: bool(one.points) for one in summary.arms} == {"plain": True, "ngram": False, "other": True}


def test_a_cause_that_no_arm_can_escape_ends_the_run(
    tmp_path: Path, world: World, arms: list[ArmConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    world.refuses["plain"] = ServerFailure("model_fetch", "no network")
    code, summary = run(tmp_path, arms)
    assert code == 1 and world.starts == ["plain"] and summary is None
    out = capsys.readouterr().out
    assert "plain: no network" in out and "Nothing was measured" in out


def test_a_server_that_dies_is_one_failure_and_not_one_error_per_request(
    tmp_path: Path, world: World, arms: list[ArmConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    fake = world.fakes["ngram"]

    def dies(body: dict[str, Any]) -> str | None:
        if len(fake.bodies) > 4:
            world.died["ngram"] = ServerFailure("died", "exit code -9", served=True)
            return "drop"
        return None

    fake.fault = dies
    code, summary = run(tmp_path, arms)
    assert code == 1 and summary is not None
    assert len(fake.bodies) == 5, "nothing more was sent to the dead server"
    assert capsys.readouterr().out.count("exit code -9") >= 1
    keys = {entry.key for entry in store.load(tmp_path / "one")[0]}
    assert keys == {"plain-c1-r0", "plain-c1-r1"}
    kept = list(read_records(tmp_path / "one/sessions/01-ngram/records.jsonl"))
    assert [record.outcome for record in kept] == ["ok"] * 4 + ["truncated"]


def test_what_fails_because_the_server_died_is_not_given_as_the_reason(
    tmp_path: Path, world: World, arms: list[ArmConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    world.fakes["ngram"].fault = lambda body: "drop"

    def notice_late(*_: object) -> ServerFailure | None:
        asked.append(1)
        return ServerFailure("died", "exit code -9", served=True) if len(asked) > 2 else None

    asked: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeRunner, "failure", notice_late)
        patch.setattr(measure, "_DEATH_WAIT_S", 1.0)
        assert run(tmp_path, arms)[0] == 1
    out = capsys.readouterr().out
    assert "exit code -9" in out and "no warm-up request" not in out


def test_a_failed_request_fails_the_run_and_its_trial_is_measured_again(
    tmp_path: Path, world: World, arms: list[ArmConfig]
) -> None:
    fake = world.fakes["ngram"]
    fake.fault = lambda body: "error_event" if body["text"].endswith("xxx<a>") else None
    code, summary = run(tmp_path, arms)
    assert code == 1 and summary is not None and summary.status == "finished"
    fake.fault = lambda body: None
    world.starts.clear()
    assert run(tmp_path, arms, "two")[0] == 0
    assert world.starts == ["ngram"]


def test_a_warm_up_that_never_succeeds_is_a_failure(
    tmp_path: Path, world: World, arms: list[ArmConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    world.fakes["ngram"].fault = lambda body: "http"
    assert run(tmp_path, arms)[0] == 1
    assert "no warm-up request ended well; the first: HTTP 400: too long" in capsys.readouterr().out
    assert world.starts == ["plain", "ngram", "plain"]


def fork(at: int, to: int) -> Callable[[list[int], dict[str, Any]], list[int]]:
    """Changes one token of the longest prompt."""

    def change(ids: list[int], body: dict[str, Any]) -> list[int]:
        return [*ids[:at], to, *ids[at + 1 :]] if body["text"].endswith("xxx<a>") else ids

    return change


def test_an_output_that_differs_fails_the_run_and_the_margin_is_asked_for_once(
    tmp_path: Path, world: World, arms: list[ArmConfig]
) -> None:
    world.fakes["ngram"].change = fork(3, 7)
    code, summary = run(tmp_path, arms)
    assert code == 1 and summary is not None
    assert world.starts == ["plain", "ngram", "plain", "plain"], "the last start asks for the margins"
    probe = world.fakes["plain"].bodies[-1]
    assert probe["top_logprobs_num"] == 2 and probe["sampling_params"]["max_new_tokens"] == 4
    (result,) = [one.lossless for one in summary.arms if one.name == "ngram"]
    assert result is not None and not result.ok
    assert [(one.prompt_id, one.position, one.margin) for one in result.forks] == [("p3", 3, 2.5)] * 2
    world.starts.clear()
    assert run(tmp_path, arms, "two")[0] == 1
    assert world.starts == [], "the margins were kept with the trial"


def test_a_near_tie_of_the_plain_target_is_excused(tmp_path: Path, world: World, arms: list[ArmConfig]) -> None:
    plain = world.fakes["plain"]
    plain.runner_up = -0.5004
    length = len("<user>prompt xxx<a>")
    world.fakes["ngram"].change = fork(3, length + 3 + 1)  # the server's runner-up is the next token id
    code, summary = run(tmp_path, arms)
    assert code == 0 and summary is not None
    (result,) = [one.lossless for one in summary.arms if one.name == "ngram"]
    assert result is not None and [tie.position for tie in result.near_ties] == [3, 3]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_server_keeps_the_records_and_says_how_to_go_on(
    tmp_path: Path, world: World, arms: list[ArmConfig], capsys: pytest.CaptureFixture[str], signum: int
) -> None:
    fake = world.fakes["ngram"]
    fake.fault = lambda body: "stall" if len(fake.bodies) == 4 else None

    def send() -> None:
        while len(fake.bodies) < 4:
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signum)

    before = signal.getsignal(signum)
    sender = threading.Thread(target=send, daemon=True)  # a run that fails early must not leave it waiting for good
    sender.start()
    code, summary = run(tmp_path, arms)
    sender.join(30)
    assert code == 128 + signum and summary is None
    assert signal.getsignal(signum) is before
    kept = list(read_records(tmp_path / "one/sessions/01-ngram/records.jsonl"))
    assert [record.outcome for record in kept] == ["ok"] * 3 + ["cancelled"]
    out = capsys.readouterr().out
    assert "1 of 4 trials are finished" in out and "every record is kept" in out
    world.starts.clear()
    assert run(tmp_path, arms, "two")[0] == 0
    assert world.starts == ["ngram", "plain"], "the plain arm's first session is kept"


def test_a_signal_while_a_server_starts_is_acted_on(tmp_path: Path, world: World, arms: list[ArmConfig]) -> None:
    class Slow(FakeRunner):
        def start(self, config: dict[str, Any], directory: Path, on_status: Callable[[str], None]) -> ServerHandle:
            os.kill(os.getpid(), signal.SIGTERM)
            while True:
                on_status("loading")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "make_runner", lambda config: Slow(config.name, world))
        assert run(tmp_path, arms)[0] == 128 + signal.SIGTERM


def test_concurrency_is_a_load_point_of_the_same_session(tmp_path: Path, world: World) -> None:
    for fake in world.fakes.values():
        fake.delay_s = 0.005
    code, summary = run(tmp_path, [arm(name, suite(), load((1, 3))) for name in ("plain", "ngram")])
    assert code == 0 and summary is not None
    assert world.fakes["plain"].most_in_flight == 3
    assert [point.concurrency for point in summary.arms[0].points] == [1, 3]


def test_an_open_loop_sends_at_a_rate_and_says_what_it_took_of_the_client(tmp_path: Path, world: World) -> None:
    for fake in world.fakes.values():
        fake.delay_s = 0.1  # an answer takes 0.7 s or, with drafts, 0.3 s; one arrives every 0.05 s
    changes = {"name": "rate", "arrival": "constant", "concurrency": None, "rate": (20.0,)}
    code, summary = run(
        tmp_path, [arm(name, suite(), load().model_copy(update=changes)) for name in ("plain", "ngram")]
    )
    assert summary is not None, code
    assert world.fakes["plain"].most_in_flight == 4, "nothing waited for an answer"
    assert [point.load for point in summary.arms[0].points] == ["20 requests/s, constant arrivals"]
    entries, records = store.load(tmp_path / "one")
    assert len(entries) == 4 and all(entry.server.client and entry.server.client.late_max_s for entry in entries)
    late = [record.late_s for record in records]
    assert len(late) == 16 and all(one is not None and one >= 0 for one in late)


def test_warm_up_touches_every_category_first() -> None:
    chosen = warmup_prompts(suite(prompts=6), 5)
    assert [prompt.category for prompt in chosen] == ["long", "short", "long", "short", "long"]
    assert len({prompt.id for prompt in chosen}) == 5
    assert len(warmup_prompts(suite(prompts=2), 7)) == 7


def test_warm_up_fills_a_batch_unless_it_is_off(tmp_path: Path) -> None:
    _, plan = comparison(tmp_path, arm("plain", suite(8), load((8,))))
    trial = plan.trials[0]
    assert trial.load.warmup_requests == 8
    off = load((8,)).model_copy(update={"warmup_requests": 0})
    assert comparison(tmp_path, arm("plain", suite(8), off))[1].trials[0].load.warmup_requests == 0


def test_sampling_seeds_are_the_same_in_every_arm_and_differ_by_prompt_and_repeat() -> None:
    one = suite()
    seeds = [request_seed(one, prompt, repeat) for prompt in one.prompts for repeat in (0, 1)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert request_seed(suite(), one.prompts[0], 0) == seeds[0]


def test_reuse_false_measures_anew_and_becomes_what_is_found(
    tmp_path: Path, world: World, arms: list[ArmConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, arms)
    starts = len(world.starts)
    experiment, plan = comparison(tmp_path, *arms)
    assert execute.run(experiment.model_copy(update={"reuse": False}), plan, tmp_path / "anew") == 0
    assert len(world.starts) == 2 * starts
    assert "measured already" not in capsys.readouterr().out
    run(tmp_path, arms, "third")
    entries, _ = store.load(tmp_path / "third")
    assert {entry.source for entry in entries} == {"../anew"}
