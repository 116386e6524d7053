"""The estimate of memory against what real servers on one H200 took."""

from __future__ import annotations

import re

import pytest

from runners.sglang.memory_estimate import GIB, Checkpoint, Estimate, estimate, free_gib
from tests.unit.sglang_arms import LOGS, config
from tests.unit.sglang_shapes import CONFIGS

H200 = 139.09
"""GiB free before anything was loaded, by the logs."""
SHAPES = {
    "qwen3_8b": "Qwen/Qwen3-8B",
    "dflash": "z-lab/Qwen3-8B-DFlash-b16",
    "dspark": "deepseek-ai/dspark_qwen3_8b_block7",
    "qwen3_8_27b": "Qwen/Qwen3.8-27B",
}


def recorded(name: str) -> tuple[list[float], int, int | None]:
    """(GiB of each checkpoint's weights, tokens, slots of recurrent states) of a start that was recorded."""
    text = (LOGS / f"ready-{name}.log").read_text()
    weights = [float(size) for size in re.findall(r"Load weight end\..*mem usage=([\d.]+) GB", text)]
    tokens = re.findall(r"max_total_num_tokens=(\d+)", text)[-1]
    slots = re.search(r"max_mamba_cache_size: (\d+)", text)
    return weights, int(tokens), int(slots[1]) if slots else None


def estimated(target: str, drafter: str, weights: list[float], *overrides: str) -> Estimate:
    shapes = [CONFIGS[SHAPES[name]] for name in (target, drafter) if name in SHAPES]
    made = [Checkpoint(int(size * GIB), shape) for size, shape in zip(weights, shapes, strict=True)]
    asked = config(f"target={target}", *overrides, drafter=drafter)
    found = estimate(asked, made[0], made[1] if len(made) > 1 else None, H200)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "drafter", "fraction"),
    [
        ("qwen3-8b-baseline", "none", 0.907),
        ("qwen3-8b-dflash", "dflash", 0.907),
        ("qwen3-8b-dspark", "dspark", 0.8),
        ("fa3-8b-base", "none", 0.8),
        ("fa3-8b-dflash", "dflash", 0.8),
        ("fa3-8b-dspark", "dspark", 0.8),
    ],
)
def test_the_room_for_tokens_is_that_of_real_starts(name: str, drafter: str, fraction: float) -> None:
    weights, tokens, _ = recorded(name)
    found = estimated("qwen3_8b", drafter, weights, f"target.mem_fraction_static={fraction}")
    assert found.tokens == pytest.approx(tokens, rel=0.01) and not found.short


def test_recurrent_states_are_counted_too() -> None:
    weights, tokens, slots = recorded("qwen35-27b-hybrid-baseline")
    found = estimated(
        "qwen3_8_27b", "none", weights,
        "target.mem_fraction_static=0.8", f"target.server_args.max-mamba-cache-size={slots}",
    )  # fmt: skip
    assert found.states == pytest.approx(29.82, rel=0.02) and found.tokens == pytest.approx(tokens, rel=0.1)


def test_speculation_keeps_a_state_for_each_token_of_each_window_unless_replayed() -> None:
    dspine = ("drafter.plugin.image=dspine:1", "drafter.checkpoints.qwen3_8_27b.path=/models/dspine")
    shapes = Checkpoint(int(50 * GIB), CONFIGS["Qwen/Qwen3.8-27B"]), Checkpoint(int(3 * GIB), CONFIGS["/models/dspine"])
    replayed = estimate(config(*dspine, drafter="dspine"), *shapes, H200)
    copied = config(*dspine, "drafter.server_args.enable-linear-replayssm-spec=null", drafter="dspine")
    kept = estimate(copied, *shapes, H200)
    assert replayed is not None and kept is not None
    requests, window, state = copied.target.max_running_requests, 16, 0.1437
    assert kept.states - replayed.states == pytest.approx((requests + 1) * window * state, rel=0.02)


def test_what_does_not_fit_says_by_how_much() -> None:
    found = estimated("qwen3_8b", "none", [15.28], "target.mem_fraction_static=0.1")
    assert found.short == pytest.approx(15.28 - 13.9, abs=0.1)
    assert found.told(16384) == "does not fit: weights 15.3 of 13.9 GiB, short of 1.4 GiB"
    fits = estimated("qwen3_8b", "none", [15.28])
    assert re.search(r"weights 15\.3 of 111\.3 GiB; room for about 698,\d{3} tokens, 42\.\d x", fits.told(16384))


def test_gpus_are_known_by_a_part_of_their_name() -> None:
    assert free_gib("NVIDIA H100 80GB HBM3") == 78.3 and free_gib("NVIDIA H100 NVL") == 92.0
    assert free_gib("NVIDIA H200") == pytest.approx(H200, abs=0.1) and free_gib("NVIDIA T4") is None
