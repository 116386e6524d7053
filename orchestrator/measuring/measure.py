"""One server session: start the server, warm it up, send the requests of its trials, stop it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from itertools import chain, cycle, islice, zip_longest
from pathlib import Path
from typing import Literal, TypeVar

from orchestrator.analysis import baseline
from orchestrator.load.arrivals import schedule
from orchestrator.load.http import Broken, call
from orchestrator.load.job import Job, Send
from orchestrator.load.loops import closed_loop
from orchestrator.load.remote import ClientLost, load_client
from orchestrator.load.request import Endpoint, Limits, Request, Sampling
from orchestrator.load.self_check import ClientUsage
from orchestrator.measuring import server_totals
from orchestrator.measuring.interrupt import Interrupt
from orchestrator.measuring.progress import Display, trial_line
from orchestrator.measuring.records import RequestRecord
from orchestrator.measuring.server_totals import TrialTotals
from orchestrator.measuring.store import ServerFacts, Store
from orchestrator.measuring.template import ChatTemplate, TemplateFailure
from orchestrator.planning.plan import ServerSession, Trial
from orchestrator.schema import ArmConfig, Prompt, Suite
from orchestrator.telemetry.sampler import COMMAND, Sampler, sampled_gpus
from orchestrator.telemetry.samples import beside
from runners.base import Runner, ServerFailure, ServerHandle

T = TypeVar("T")
_FLUSH_WAIT_S = 5.0
_DEATH_WAIT_S = 2.0
_OF_ONE_CARD = ("asked", "index", "uuid")


def measure(
    session: ServerSession, todo: Sequence[Trial], runner: Runner, store: Store, display: Display, interrupt: Interrupt
) -> None:
    """Measure the trials ``todo`` of a session. Raises ServerFailure and Interrupted; what had ended is kept.

    Whatever happens, the server is stopped before this returns.
    """
    arm = session.arm
    directory, file = store.open_session(session.index, arm.name)
    started, clock = time.time(), time.perf_counter()

    def on_status(text: str) -> None:
        interrupt.check()
        display.status(f"{arm.name}: {text}")

    with closing(file), ExitStack() as stack:
        gpus = sampled_gpus(arm)
        early = None
        if arm.node.kind == "local" and arm.runner.kind != "attach":  # what the GPUs held before the server came
            early = stack.enter_context(Sampler(beside(file.path), gpus))
        on_status("starting the server")
        handle = runner.start(session.server, directory, on_status)
        try:
            ready_s = time.perf_counter() - clock
            display.note(f"{arm.name}: server ready after {ready_s:.1f} s (start {session.index + 1}, {handle.url})")
            with _sampler(early, beside(file.path), gpus, handle) as sampler:
                sampler.synchronize()
                # The bandwidth of a processor is measured, so of this machine's only.
                unknown = bool(handle.sampler) and handle.identity.get("device") == "cpu"
                plain = not arm.drafter.speculates
                ceiling = baseline.find(handle.identity, sampler.gpus) if plain and not unknown else None
                texts = _texts(arm, handle)
                for trial in todo:
                    repeat = f"repeat {trial.repeat + 1} of {arm.suite.repeats}"
                    place = f"{arm.name} · {repeat} · {trial.load.shown}"
                    records: list[RequestRecord] = []

                    def keep(record: RequestRecord, into: list[RequestRecord] = records) -> None:
                        file.append(record)
                        into.append(record)
                        display.advance()
                        if record.outcome not in ("ok", "cancelled") and (failure := runner.failure(handle)):
                            raise failure

                    sampler.synchronize()
                    try:
                        totals, client = interrupt.run(
                            _sending(
                                handle.client,
                                partial(_trial, handle, trial, arm, texts, keep, partial(_status, display, place)),
                            )
                        )
                    except ServerFailure:
                        _raise_if_dead(runner, handle)  # then that is the reason, not what failed because of it
                        raise
                    except ClientLost as problem:
                        _raise_if_dead(runner, handle)
                        message = f"{problem}; what it measured is kept, the same command measures the rest"
                        raise ServerFailure("load_client", message, handle.log, served=True) from problem
                    sampler.synchronize()
                    measured = [record for record in records if record.phase == "measure"]
                    well = all(record.outcome == "ok" for record in measured)
                    if not well:
                        _raise_if_dead(runner, handle)
                    facts = ServerFacts(
                        session_index=session.index,
                        arm=arm.name,
                        command=handle.command,
                        identity={**handle.identity, **_gpu_setup(sampler.gpus)},
                        started=started,
                        ready_s=ready_s,
                        peak_memory_bytes=runner.peak_memory_bytes(handle),
                        totals=totals,
                        ceiling=ceiling,
                        client=client,
                    )
                    # What an attached server is, is not all known here: the next run measures it anew.
                    reusable = well and arm.runner.kind != "attach"
                    store.finish(trial.key, file, len(measured), facts, reusable=reusable, telemetry=sampler.path)
                    display.note(trial_line(place, measured))
        finally:
            try:
                display.status(f"{arm.name}: stopping the server")
            finally:  # a terminal that went away is no reason to leave a server
                runner.stop(handle)


def _gpu_setup(gpus: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """How the server's GPUs are set up (ECC, MIG, power limit, highest clocks, NUMA, links), compared across arms as
    all that is known of a server; which cards of one kind they are is not."""
    setup = [{name: value for name, value in gpu.items() if name not in _OF_ONE_CARD} for gpu in gpus]
    return {"gpu_setup": setup} if setup else {}


def _sampler(early: Sampler | None, path: Path, gpus: str, handle: ServerHandle) -> AbstractContextManager[Sampler]:
    """The sampler that watches the server: the one that runs already, unless the server is somewhere else."""
    if early is not None and not handle.sampler:
        early.watch(handle.pids)
        return nullcontext(early)
    if early is not None:  # the engine that answers here is another machine's
        early.close()
        path.unlink()
    return Sampler(path, gpus, handle.sampler or COMMAND, handle.pids)


def probe(
    session: ServerSession,
    limits: Mapping[str, int],
    runner: Runner,
    directory: Path,
    display: Display,
    interrupt: Interrupt,
    trial_key: str,
) -> list[RequestRecord]:
    """Start the plain server once more and ask it for the two likeliest tokens at each output position.

    ``limits``: prompt id -> tokens to generate. Not timed, so never mixed with what was measured.
    """
    arm = session.arm
    directory.mkdir(parents=True, exist_ok=True)

    def on_status(text: str) -> None:
        interrupt.check()
        display.status(f"margins of {arm.name}: {text}")

    handle = runner.start(session.server, directory, on_status)
    records: list[RequestRecord] = []
    try:
        texts = _texts(arm, handle)
        requests = [
            _request(arm, prompt, texts[prompt.id], 0, trial_key, session.index, "probe", limits[prompt.id])
            for prompt in arm.suite.prompts
            if prompt.id in limits
        ]

        async def ask() -> None:
            limits = Limits(arm.load.request_timeout_s, arm.load.stall_timeout_s)
            await closed_loop(handle.url, requests, 1, limits, records.append)

        interrupt.run(ask())
    finally:
        runner.stop(handle)
    return [record for record in records if record.outcome == "ok"]


def warmup_prompts(suite: Suite, count: int) -> list[Prompt]:
    """``count`` prompts that touch every category before any a second time."""
    categories: dict[str, list[Prompt]] = {}
    for prompt in suite.prompts:
        categories.setdefault(prompt.category, []).append(prompt)
    spread = [prompt for prompt in chain.from_iterable(zip_longest(*categories.values())) if prompt is not None]
    return list(islice(cycle(spread), count))


def request_seed(suite: Suite, prompt: Prompt, repeat: int) -> int:
    """Sampling seed of a request, equal in every arm and different for every prompt and repeat."""
    digest = hashlib.sha256(f"{suite.seed}/{prompt.id}/{repeat}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1  # servers take a positive 32-bit integer


async def _sending(command: Sequence[str], work: Callable[[Send], Awaitable[T]]) -> T:
    """``work`` with a load client (``ServerHandle.client``)."""
    async with load_client(command) as send:
        return await work(send)


async def _trial(
    handle: ServerHandle,
    trial: Trial,
    arm: ArmConfig,
    texts: Mapping[str, str],
    keep: Callable[[RequestRecord], None],
    status: Callable[[str], None],
    send: Send,
) -> tuple[TrialTotals, ClientUsage]:
    """Warm up, flush, measure; returns the server's own totals on both sides of what was measured, and what measuring
    took. Raises ServerFailure and ClientLost."""
    load = trial.load
    suite = arm.suite
    limits = Limits(load.request_timeout_s, load.stall_timeout_s)

    def requests(prompts: Sequence[Prompt], phase: Literal["warmup", "measure"]) -> Iterator[Request]:
        for prompt in prompts:
            limit = suite.token_limit(arm.target.name)
            text = texts[prompt.id]
            yield _request(arm, prompt, text, trial.repeat, trial.key, trial.session_index, phase, limit, load.endpoint)

    count = load.warmup_requests
    if count:
        status("warming up")
        warm: list[RequestRecord] = []

        def keep_warm(record: RequestRecord) -> None:
            warm.append(record)
            keep(record)

        batch = tuple(requests(warmup_prompts(suite, count), "warmup"))
        await send(Job(handle.client_url or handle.url, batch, limits, load.concurrency or count), keep_warm)
        if all(record.outcome != "ok" for record in warm):
            raise ServerFailure("warmup", f"no warm-up request ended well; the first: {warm[0].error}", handle.log)
    await _flush(handle)
    before = await server_totals.read(handle.url)
    status("measuring")
    kept: list[RequestRecord] = []

    def keep_measured(record: RequestRecord) -> None:
        kept.append(record)
        keep(record)

    measured = tuple(requests(suite.prompts, "measure"))
    times: tuple[float, ...] = ()
    if load.rate is not None and load.arrival != "closed":
        times = tuple(schedule(load.arrival, load.rate, len(measured), suite.seed, trial.repeat))
    usage = await send(Job(handle.client_url or handle.url, measured, limits, load.concurrency, times), keep_measured)
    ended = sum(record.outcome == "ok" for record in kept)
    after = await server_totals.read_after(handle.url, before, ended)
    return TrialTotals(before=before, after=after), usage


async def _flush(handle: ServerHandle) -> None:
    """Empty the prefix cache, so that no trial profits from the one before; refused while the server is not idle."""
    deadline = time.monotonic() + _FLUSH_WAIT_S
    while True:
        try:
            status, _ = await call(handle.url, "POST", "/flush_cache", max(deadline - time.monotonic(), 1.0))
            if status == 200:
                return
            said = f"HTTP {status}"
        except (Broken, TimeoutError) as problem:
            said = f"{type(problem).__name__}: {problem}"
        if time.monotonic() >= deadline:
            message = f"/flush_cache did not succeed within {_FLUSH_WAIT_S:g} s ({said})"
            raise ServerFailure("flush", message, handle.log)
        await asyncio.sleep(0.2)


def _request(
    arm: ArmConfig,
    prompt: Prompt,
    text: str,
    repeat: int,
    trial_key: str,
    session_index: int,
    phase: Literal["warmup", "measure", "probe"],
    limit: int,
    endpoint: Endpoint = "generate",
) -> Request:
    suite = arm.suite
    return Request(
        text=text,
        sampling=Sampling(
            max_new_tokens=limit,
            temperature=suite.temperature,
            top_p=suite.top_p,
            top_k=suite.top_k,
            seed=request_seed(suite, prompt, repeat),
            ignore_eos=suite.ignore_eos,
            stop=suite.stop,
        ),
        trial_key=trial_key,
        arm=arm.name,
        session_index=session_index,
        phase=phase,
        prompt_id=prompt.id,
        category=prompt.category,
        repeat=repeat,
        endpoint=endpoint,
        model=arm.target.name,
        messages=tuple(message.model_dump() for message in prompt.messages),
        template_kwargs={} if suite.enable_thinking is None else {"enable_thinking": suite.enable_thinking},
    )


def _texts(arm: ArmConfig, handle: ServerHandle) -> dict[str, str]:
    """Prompt id -> the text that is sent, rendered with the template of the tokenizer that the server loaded."""
    try:
        template = ChatTemplate(handle.tokenizer, Path(arm.target.chat_template) if arm.target.chat_template else None)
        return {
            prompt.id: template.render([message.model_dump() for message in prompt.messages], arm.suite.enable_thinking)
            for prompt in arm.suite.prompts
        }
    except (TemplateFailure, OSError) as problem:
        raise ServerFailure("chat_template", str(problem), handle.log) from problem


def _status(display: Display, place: str, text: str) -> None:
    display.status(f"{place}: {text}")


def _raise_if_dead(runner: Runner, handle: ServerHandle) -> None:
    """A connection breaks a moment before its process is gone: look again before blaming the requests."""
    deadline = time.monotonic() + _DEATH_WAIT_S
    while time.monotonic() < deadline:
        if failure := runner.failure(handle):
            raise failure
        time.sleep(0.1)
