"""From records to a Summary: what the table, the report and MLflow show.

Everything here can be computed again from the record files and the facts of the comparison; nothing is measured here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.analysis import acceptance, evidence, lossless, metrics, served, solved
from orchestrator.analysis.crossover import crossover
from orchestrator.analysis.facts import ArmFacts, Facts, SessionFacts, TrialFacts
from orchestrator.analysis.results import Arm, Lead, Memory, Point, PromptCell, PromptRow, Summary
from orchestrator.analysis.verdict import withhold
from orchestrator.config.masking import mask, mask_command
from orchestrator.findings.judge import judge
from orchestrator.load.window import full_load_tok_s
from orchestrator.measuring import server_totals
from orchestrator.measuring.records import RequestRecord
from orchestrator.stats import PairedRatio, Restarts, paired_ratio
from orchestrator.telemetry.pool import pool


def summarize(records: Iterable[RequestRecord], facts: Facts) -> Summary:
    """The result of one comparison.

    Raises ValueError for a record whose trial is not one of this comparison: pairing across comparisons is never done.
    """
    measured = [record for record in records if record.phase != "warmup"]
    foreign = sorted({record.trial_key for record in measured} - facts.trials.keys())
    if foreign:
        raise ValueError(f"records of trials that this comparison does not have: {', '.join(foreign)}")
    by_arm: defaultdict[str, list[RequestRecord]] = defaultdict(list)
    for record in measured:
        if record.phase == "measure":
            by_arm[record.arm].append(record)
    checked = _checked(measured, facts)
    arms = [_arm(arm, by_arm, checked.get(arm.name), facts) for arm in facts.arms]
    headline = _headline_records(by_arm, facts)
    times = [record.sent_wall_time for record in measured]
    summary = Summary(
        comparison=facts.comparison,
        experiment=facts.experiment,
        title=facts.title,
        description=facts.description,
        sweep=facts.sweep,
        status=facts.status,
        engine=facts.engine,
        target=facts.target,
        machine=facts.machine,
        setting=facts.setting,
        started=min(times, default=0.0),
        finished=max((record.sent_wall_time + (record.e2e_s or 0.0) for record in measured), default=0.0),
        order=[session.arm for session in facts.sessions],
        arms=arms,
        prompts=_prompts(headline, facts),
        findings=[],
        config=mask(facts.config),
        environment=mask(facts.environment),
        published=list(facts.published),
        lead=_lead(arms, headline, facts),
    )
    return withhold(summary.model_copy(update={"findings": judge(summary, facts, by_arm)}))


def _checked(records: Sequence[RequestRecord], facts: Facts) -> dict[str, lossless.Lossless]:
    """Token identity by arm; empty where it cannot be expected."""
    if facts.baseline is None or facts.temperature > 0:
        return {}
    tie = lossless.NEAR_TIE.get(str(facts.setting.get("dtype")), lossless.NEAR_TIE["float32"])
    return lossless.check(records, facts.baseline, tie)


def _arm(
    arm: ArmFacts, by_arm: Mapping[str, list[RequestRecord]], check: lossless.Lossless | None, facts: Facts
) -> Arm:
    sessions = [session for session in facts.sessions if session.arm == arm.name]
    points = _points(arm.name, by_arm, facts)
    return Arm(
        name=arm.name,
        baseline=arm.name == facts.baseline,
        missing=arm.missing,
        drafter=arm.drafter,
        block_size=arm.block_size,
        proposed_tokens=arm.proposed_tokens,
        verify_window=arm.verify_window,
        dynamic_window=arm.dynamic_window,
        lossy=arm.lossy or any(served.accepts_loosely(session.identity) for session in sessions),
        overrides=mask_command(list(arm.overrides)),
        points=points,
        lossless=check,
        memory=_memory(sessions, points, facts),
        sessions=len(sessions),
        command=mask_command(sessions[0].command) if sessions else [],
        identity=mask(sessions[0].identity) if sessions else {},
        capacity=served.capacity(sessions[0].identity) if sessions else None,
        crossover=crossover((p.concurrency, p.speedup.ratio) for p in points if p.concurrency and p.speedup),
        # Of several measurements of the memory's bandwidth the best: all else is noise from below.
        ceiling=max(
            (one.ceiling for one in sessions if one.ceiling), key=lambda ceiling: ceiling.tok_s or 0.0, default=None
        ),
    )


def _memory(sessions: Sequence[SessionFacts], points: Sequence[Point], facts: Facts) -> Memory | None:
    """On a CPU what the runner saw since the start; of a GPU, which no runner watches, the peak of the samples."""
    peaks: list[float] = [one.peak_memory_bytes for one in sessions if one.peak_memory_bytes is not None]
    if facts.memory_kind == "vram":
        used = (point.usage.vram_server_bytes or point.usage.vram_peak_bytes for point in points if point.usage)
        peaks = [peak for peak in used if peak is not None]
    if not peaks:
        return None
    return Memory(kind=facts.memory_kind, peak_bytes=int(max(peaks)), least_bytes=int(min(peaks)), sessions=len(peaks))


def _points(name: str, by_arm: Mapping[str, list[RequestRecord]], facts: Facts) -> list[Point]:
    arms = {arm: _by_load(records, facts) for arm, records in by_arm.items()}
    return [
        _point(name, load, {arm: loads[load] for arm, loads in arms.items() if load in loads}, facts)
        for load in sorted(arms.get(name, {}), key=_rising)
    ]


def _point(name: str, load: TrialFacts, arms: Mapping[str, list[RequestRecord]], facts: Facts) -> Point:
    """``arms``: requests of every arm under this load."""
    records = arms[name]
    plain = arms.get(facts.baseline or "") if name != facts.baseline else None
    restarts = evidence.restarts(arms, facts.comparison, evidence.whole)
    decode_restarts = evidence.restarts(arms, facts.comparison, evidence.decode)
    ok = metrics.measured(records)
    groups = _by_category(ok)
    plain_groups = _by_category(metrics.measured(plain or []))
    drafts = acceptance.independent(ok, facts.temperature)
    rates = [rate for record in ok if (rate := metrics.request_tok_s(record)) is not None]
    return Point(
        load=load.load,
        concurrency=load.concurrency,
        n_prompts=len({record.prompt_id for record in ok}),
        repeats=len({record.repeat for record in ok}),
        metrics=metrics.compute(records),
        output_tok_s=_rate(map(evidence.whole, ok)),
        decode_tok_s=_rate(map(evidence.decode, ok)),
        system_tok_s=_system_tok_s(ok),
        full_load_tok_s=full_load_tok_s(_by_trial(records).values(), load.concurrency),
        tok_s_by_category={
            category: rate for category, group in groups.items() if (rate := _rate(map(evidence.whole, group)))
        },
        tok_s_range=(min(rates), max(rates)) if rates else None,
        step_ms=_step_ms(ok),
        acceptance=acceptance.pooled(drafts),
        server_totals=server_totals.check(
            (group, facts.totals[key]) for key, group in _by_trial(records).items() if key in facts.totals
        ),
        streams=acceptance.check_streams(ok),
        acceptance_by_category=acceptance.by_category(drafts),
        speedup=_speedup(ok, plain, facts, evidence.whole, restarts),
        decode_speedup=_speedup(ok, plain, facts, evidence.decode, decode_restarts),
        speedup_by_category={
            category: ratio
            for category, group in groups.items()
            if (ratio := _speedup(group, plain_groups.get(category), facts, evidence.whole, restarts)) is not None
        },
        evidence=evidence.evidence(ok, facts.comparison, restarts),
        solved=solved.solved(records, facts.checks, {key: used.energy_j for key, used in facts.usage.items()}),
        usage=pool([facts.usage[key] for key in dict.fromkeys(r.trial_key for r in records) if key in facts.usage]),
    )


def _rate(spans: Iterable[tuple[int, float]]) -> float | None:
    pairs = [(tokens, seconds) for tokens, seconds in spans if tokens > 0 and seconds > 0]
    return sum(tokens for tokens, _ in pairs) / math.fsum(seconds for _, seconds in pairs) if pairs else None


def _step_ms(records: Sequence[RequestRecord]) -> float | None:
    """Time after the first chunk per verification step, or per token where the server does not speculate, ms."""
    steps, seconds = 0, 0.0
    for record in records:
        tokens, span = evidence.decode(record)
        if tokens:
            steps += record.spec.spec_verify_ct if record.spec else tokens
            seconds += span
    return 1000 * seconds / steps if steps else None


def _system_tok_s(records: Sequence[RequestRecord]) -> float | None:
    """All output tokens over the summed wall time of the trials (clocks are comparable inside one trial only)."""
    wall = math.fsum(metrics.wall_s(trial) or 0.0 for trial in _by_trial(records).values())
    return sum(record.completion_tokens or 0 for record in records) / wall if wall else None


def _speedup(
    records: Sequence[RequestRecord],
    plain: Sequence[RequestRecord] | None,
    facts: Facts,
    span: evidence.Span,
    restarts: Restarts | None = None,
) -> PairedRatio | None:
    if not plain:
        return None
    ours, theirs = (evidence.observations(group, facts.comparison, span) for group in (records, plain))
    return paired_ratio(ours, theirs, restarts)


def _lead(arms: Sequence[Arm], records: Mapping[str, list[RequestRecord]], facts: Facts) -> Lead | None:
    """``records``: of `_headline_records`."""
    found = [(arm.point.speedup.ratio, arm.name) for arm in arms if arm.point and arm.point.speedup]
    if len(found) < 2:
        return None
    (_, first), (_, second) = sorted(found, reverse=True)[:2]
    restarts = evidence.restarts(records, facts.comparison, evidence.whole)
    ratio = _speedup(records[first], records[second], facts, evidence.whole, restarts)
    return Lead(arm=first, over=second, ratio=ratio) if ratio else None


def _headline_records(by_arm: Mapping[str, list[RequestRecord]], facts: Facts) -> dict[str, list[RequestRecord]]:
    """Well-ended requests of each arm at its lowest load point."""
    found: dict[str, list[RequestRecord]] = {}
    for arm in facts.arms:
        loads = _by_load(by_arm.get(arm.name, []), facts)
        if loads:
            found[arm.name] = metrics.measured(loads[min(loads, key=_rising)])
    return found


def _prompts(headline: Mapping[str, list[RequestRecord]], facts: Facts) -> list[PromptRow]:
    """One row per prompt at each arm's headline load point, in the order of measurement."""
    plain = headline.get(facts.baseline or "", [])
    names = {record.prompt_id: record.category for group in headline.values() for record in group}
    rows = []
    for prompt, category in names.items():
        reference = [record for record in plain if record.prompt_id == prompt]
        cells = {
            arm: _cell([record for record in group if record.prompt_id == prompt], reference, arm, facts)
            for arm, group in headline.items()
        }
        rows.append(
            PromptRow(prompt_id=prompt, category=category, cells={arm: cell for arm, cell in cells.items() if cell})
        )
    return rows


def _cell(records: list[RequestRecord], plain: list[RequestRecord], arm: str, facts: Facts) -> PromptCell | None:
    if not records:
        return None
    first = min(records, key=lambda record: record.repeat)
    rates = [rate for record in records if (rate := metrics.request_tok_s(record)) is not None]
    drafts = acceptance.pooled(acceptance.independent(records, facts.temperature))
    paired = _speedup(records, plain, facts, evidence.whole) if arm != facts.baseline else None
    repeated, grams = metrics.ngram_counts(first.output_ids)
    identical = None
    if facts.temperature == 0 and plain and arm != facts.baseline:
        reference = min(plain, key=lambda record: record.repeat)
        if all(len(record.output_ids) == record.completion_tokens for record in [reference, *records]):  # ids are told
            identical = all(record.output_ids == reference.output_ids for record in records)
    return PromptCell(
        tok_s=math.exp(math.fsum(map(math.log, rates)) / len(rates)) if rates else None,
        repeat_spread=max(rates) / min(rates) if len(rates) > 1 else None,
        speedup=paired.ratio if paired else None,
        tau=drafts.tau if drafts else None,
        step_ms=_step_ms(records),
        output_tokens=first.completion_tokens,
        finish_reason=first.finish_reason,
        repeated_4grams=repeated / grams if grams else None,
        identical=identical,
        verdict=solved.verdict(first, facts.checks[first.prompt_id]) if first.prompt_id in facts.checks else None,
        text=first.text,
    )


def _rising(load: TrialFacts) -> tuple[bool, int, float]:
    """Order of load points: closed loops by concurrency, then open ones by rate."""
    return load.concurrency is None, load.concurrency or 0, load.rate or 0


def _by_load(records: Iterable[RequestRecord], facts: Facts) -> dict[TrialFacts, list[RequestRecord]]:
    groups: defaultdict[TrialFacts, list[RequestRecord]] = defaultdict(list)
    for record in records:
        groups[facts.trials[record.trial_key]].append(record)
    return dict(groups)


def _by_trial(records: Iterable[RequestRecord]) -> dict[str, list[RequestRecord]]:
    groups: defaultdict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        groups[record.trial_key].append(record)
    return dict(groups)


def _by_category(records: Iterable[RequestRecord]) -> dict[str, list[RequestRecord]]:
    groups: defaultdict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        groups[record.category].append(record)
    return dict(groups)
