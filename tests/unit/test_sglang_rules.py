"""What SGLang refuses, or silently does not do, is refused before anything is started, with a setting that runs."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.names import ConfigError
from runners.sglang.block_size import block
from runners.sglang.config import Drafter, Plugin
from runners.sglang.family import family
from runners.sglang.rules import violations
from runners.sglang.version import of
from tests.unit.sglang_arms import DRAFTERS, SMALL, config, refused

REPLAY = "+server_args.enable-linear-replayssm-spec=true"
DP = ("+server_args.enable-dp-attention=true",)
KDA = {"model_type": "kimi_linear", "num_hidden_layers": 48, "vocab_size": 163840, "hidden_size": 2304}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_shipped_arm_runs_on_the_newest_version(drafter: str) -> None:
    assert refused(drafter=drafter) == []


CASES: dict[str, tuple[dict[str, Any], list[str], str, str, str]] = {
    # name: arguments of `refused`, overrides, key, part of the reason, part of what runs
    "replayssm with dflash on qwen3.8": (
        {"drafter": "dflash2"},
        [REPLAY],
        "server_args.enable-linear-replayssm-spec",
        "DFLASH with it needs a KDA target, and this one is GDN (all of Qwen3.5 to 3.8); SGLang says so only after",
        "leave enable-linear-replayssm-spec out of this arm",
    ),
    "replayssm with dspark on qwen3.8": (
        {"drafter": "dspark"},
        [REPLAY],
        "server_args.enable-linear-replayssm-spec",
        "DSPARK with it needs a KDA target",
        "mtp runs with it",
    ),
    "replayssm without a check": (
        {"drafter": "dspark", "version": "0.5.16"},
        [REPLAY, "target.server_args.mamba-radix-cache-strategy=auto", "+server_args.linear-replayssm-cache-len=16"],
        "server_args.enable-linear-replayssm-spec",
        "0.5.16 has no check",
        "leave enable-linear-replayssm-spec out",
    ),
    "replayssm with a tree": (
        {"drafter": "mtp"},
        [REPLAY, "drafter.topk=2", "drafter.draft_tokens=6"],
        "server_args.enable-linear-replayssm-spec",
        "chain of drafts only",
        "drafter.topk=1",
    ),
    "replayssm with ngram": (
        {"drafter": "ngram"}, [REPLAY], "server_args.enable-linear-replayssm-spec", "proposes a tree", "leave",
    ),
    "replayssm with another decode backend": (
        {"drafter": "mtp"},
        [REPLAY, "+server_args.linear-attn-decode-backend=helion"],
        "server_args.enable-linear-replayssm-spec",
        "cannot run with linear-attn-decode-backend helion",
        "triton or flashinfer",
    ),
    "both replayssm": (
        {"drafter": "mtp"},
        [REPLAY, "+server_args.enable-linear-replayssm=true", "target.server_args.mamba-radix-cache-strategy=auto"],
        "server_args.enable-linear-replayssm",
        "share one ring",
        "leave enable-linear-replayssm out",
    ),
    "replayssm-decode with extra_buffer": (
        {"drafter": "none"},
        ["+server_args.enable-linear-replayssm=true"],
        "server_args.enable-linear-replayssm",
        "extra_buffer",
        "no_buffer",
    ),
    "ring of a kda target": (
        {"drafter": "mtp", "target": KDA},
        [REPLAY, "drafter.block_size=8"],
        "server_args.linear-replayssm-cache-len",
        "16 is not a power of two of at least twice the verify window, 18; SGLang says so only after",
        "32",
    ),
    "ring of the oldest": (
        {"drafter": "mtp", "version": "0.5.16"},
        [REPLAY, "+server_args.linear-replayssm-cache-len=12", "target.server_args.mamba-radix-cache-strategy=auto"],
        "server_args.linear-replayssm-cache-len",
        "12 is not a power of two",
        "8",
    ),
    "half-precision state of the oldest": (
        {"drafter": "mtp", "version": "0.5.16"},
        [REPLAY, "target.server_args={mamba-ssm-dtype: bfloat16}"],
        "server_args.mamba-ssm-dtype",
        "float32 only",
        "float32",
    ),
    "too few state slots": (
        {"drafter": "dspine"},
        ["drafter.server_args.max-mamba-cache-size=16"],
        "server_args.max-mamba-cache-size",
        "16 slots at 5 for each request hold 3 requests, not target.max_running_requests=4",
        "20",
    ),
    "no_buffer with overlap": (
        {"drafter": "none"},
        ["target.server_args.mamba-radix-cache-strategy=no_buffer"],
        "server_args.mamba-radix-cache-strategy",
        "overlap",
        "extra_buffer",
    ),
    "extra_buffer without a state": (
        {"drafter": "none"},
        [*SMALL, "+server_args.mamba-radix-cache-strategy=extra_buffer"],
        "server_args.mamba-radix-cache-strategy",
        "needs a target with a recurrent state",
        "auto",
    ),
    "track interval": (
        {"drafter": "mtp"},
        ["+server_args.mamba-track-interval=100", "+server_args.page-size=64"],
        "server_args.mamba-track-interval",
        "divisible by page-size (64)",
        "256",
    ),
    "dflash2 on an old version": (
        {"drafter": "dflash2", "version": "0.5.18"},
        [],
        "runner.image",
        "does not have the architecture of DFlash2 (DFlash2DraftModel), 0.5.19 and newer do",
        "an image of SGLang 0.5.23",
    ),
    "older than known": (
        {"drafter": "none", "version": "0.5.15"}, [], "runner.image", "0.5.15 is older than 0.5.16", "SGLang 0.5.23",
    ),
    "a name of a variable": (
        {"drafter": "dflash2"},
        ["+env.SGLANG_SIMULATE_ACC_LENGTH=3"],
        "env.SGLANG_SIMULATE_ACC_LENGTH",
        "reads no such variable and would ignore it silently",
        "SGLANG_SIMULATE_ACC_LEN",
    ),
    "a name of a flag": (
        {"drafter": "none"},
        ["+server_args.chunked-prefil-size=1"],
        "server_args.chunked-prefil-size",
        "is no flag of SGLang 0.5.23",
        "chunked-prefill-size",
    ),
    "pipelines": ({"drafter": "dspark"}, ["+server_args.pp-size=2"], "server_args.pp-size", "2 pipeline stages", "1"),
    "attention dp with ngram": (
        {"drafter": "ngram"}, [*DP], "server_args.enable-dp-attention", "NGRAM cannot run with", "leave it out",
    ),
    "attention dp with dflash": (
        {"drafter": "dflash", "version": "0.5.22"},
        [*DP, "+server_args.enable-dp-lm-head=true"],
        "server_args.enable-dp-attention",
        "in SGLang 0.5.22",
        "leave it out",
    ),
    "attention dp without its head": (
        {"drafter": "dspark"},
        ["+server_args.attn-dp-size=2"],
        "server_args.attn-dp-size",
        "needs enable-dp-lm-head",
        "+server_args.enable-dp-lm-head=true",
    ),
    "fa3 with e5m2": (
        {"drafter": "none"}, ["target.kv_cache_dtype=fp8_e5m2"], "target.kv_cache_dtype", "fa3 to triton", "fp8_e4m3",
    ),
    "ngram in pages": (
        {"drafter": "ngram"}, ["+server_args.page-size=16"], "server_args.page-size", "cannot verify in pages", "1",
    ),
    "relaxed and greedy": (
        {"drafter": "mtp"}, ["verification=relaxed"], "verification=relaxed", "at temperature 0", "suite.temperature",
    ),
    "relaxed dspark": (
        {"drafter": "dspark", "temperature": 1.0},
        ["verification=relaxed"],
        "verification=relaxed",
        "DSPARK verifies by rejection sampling",
        "verification=static",
    ),
    "relaxed dflash2": (
        {"drafter": "dflash2", "temperature": 1.0},
        ["verification=relaxed"],
        "verification=relaxed",
        "DFlash2 verifies by rejection sampling",
        "verification=static",
    ),
    "relaxed rejection sampling": (
        {"drafter": "mtp", "temperature": 1.0},
        ["verification=relaxed", "+server_args.speculative-use-rejection-sampling=true"],
        "verification=relaxed",
        "refuses both together",
        "verification=static",
    ),
    "dynamic without a switch": (
        {"drafter": "dspine"}, ["verification=dynamic"], "verification=dynamic", "nothing in env", "drafter.env.<",
    ),
    "a drafter's precision": (
        {"drafter": "dflash2"}, ["drafter.dtype=float16"], "drafter.dtype", "no flag for float16", "=bfloat16",
    ),
    "a window below the block": (
        {"drafter": "dflash2"}, ["drafter.draft_window=4"], "drafter.draft_window", "below the verify window, 8", "=8",
    ),
    "a window that dspark ignores": (
        {"drafter": "dspark"}, ["drafter.draft_window=512"], "drafter.draft_window", "DSPARK", "=null",
    ),
    "a window that mtp ignores": (
        {"drafter": "mtp", "version": "0.5.20"}, ["drafter.draft_window=64"], "drafter.draft_window", "0.5.20", "=null",
    ),
    "made-up acceptance of ngram": (
        {"drafter": "ngram"},
        ["+env.SGLANG_SIMULATE_ACC_LEN=3"],
        "env.SGLANG_SIMULATE_ACC_LEN",
        "NGRAM of SGLang 0.5.23 ignores it silently",
        "leave it out",
    ),
    "made-up acceptance of the oldest dflash": (
        {"drafter": "dflash", "version": "0.5.16"},
        ["+env.SGLANG_SIMULATE_ACC_LEN=3"],
        "env.SGLANG_SIMULATE_ACC_LEN",
        "DFLASH of SGLang 0.5.16 ignores it silently",
        "leave it out",
    ),
    "made-up acceptance in a cut window": (
        {"drafter": "dspark"},
        ["verification=cap_accept", "+env.SGLANG_SIMULATE_ACC_LEN=3"],
        "env.SGLANG_SIMULATE_ACC_LEN",
        "cuts the window itself",
        "verification=static",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_setting_is_refused_with_the_nearest_that_runs(case: str) -> None:
    arguments, overrides, key, reason, nearest = CASES[case]
    found = refused(*overrides, **arguments)
    (one,) = [violation for violation in found if violation.key == key]
    assert reason in one.reason
    assert nearest in one.nearest
    assert str(one) == f"{key}: {one.reason}; nearest that runs: {one.nearest}"


@pytest.mark.parametrize(
    ("drafter", "overrides", "arguments"),
    [
        ("mtp", (REPLAY,), {}),
        ("dspine", ("verification=dynamic", "+drafter.env.DSPINE_DYNAMIC=1"), {}),
        ("dspine", ("verification=dynamic", "+drafter.env.SGLANG_RAGGED_VERIFY_MODE=cap-accept"), {"target": KDA}),
        ("dspine", ("+env.SGLANG_DSPINE_X=1",), {}),
        ("dflash2", (REPLAY, "+server_args.linear-replayssm-cache-len=16"), {"target": KDA}),
        ("mtp", ("verification=relaxed",), {"temperature": 1.0}),
        ("mtp", ("drafter.draft_window=512",), {"version": "0.5.21"}),
        ("dflash", ("+env.SGLANG_SIMULATE_ACC_LEN=3",), {"version": "0.5.17"}),
        ("dspark", ("verification=cap_accept", "+env.SGLANG_SIMULATE_ACC_LEN=1.0"), {}),
        ("dflash", ("+env.SGLANG_SIMULATE_ACC_LEN=-1",), {"version": "0.5.16"}),
        ("dflash2", (), {"version": "0.5.19"}),
        ("dspine", ("drafter.server_args.max-mamba-cache-size=32", "+server_args.disable-overlap-schedule=true"), {}),
    ],
)
def test_and_what_runs_is_not_refused(drafter: str, overrides: tuple[str, ...], arguments: dict[str, Any]) -> None:
    """The neighbours of the cases above, so that a rule does not refuse too much."""
    found = refused(*overrides, drafter=drafter, **arguments)
    told = {violation.key for violation in found}
    assert told <= {"server_args.enable-linear-replayssm-spec"} if "cap-accept" in str(overrides) else told == set()


def draft(**changes: Any) -> dict[str, Any]:
    """A DFlash2 drafter that fits."""
    own = {
        "block_size": 8, "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16,
        "mask_token_id": 248070, "target_layer_ids": [5, 19, 33, 47, 61],
    }  # fmt: skip
    body = {
        "architectures": ["DFlash2DraftModel"],
        "hidden_size": 5120,
        "num_attention_heads": 32,
        "dflash_config": own,
    }
    for key, value in changes.items():
        (own if key in own else body)[key] = value
    return body


TARGET = {
    "model_type": "qwen3_5",
    "text_config": {"num_hidden_layers": 64, "vocab_size": 248320, "hidden_size": 5120},
}
DSPARK = {
    "architectures": ["Qwen3DSparkModel"], "hidden_size": 5120, "markov_rank": 256, "markov_head_type": "vanilla",
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 30]},
}  # fmt: skip


def test_checkpoints_that_fit() -> None:
    assert refused(drafter="dflash2", target=TARGET, draft=draft()) == []
    assert refused(drafter="dspark", target=TARGET, draft=DSPARK) == []
    assert refused(drafter="dspine", target=TARGET, draft={"architectures": ["Anything"]}) == [], (
        "the vendor's business"
    )
    assert refused(drafter="dflash2", draft=draft(target_layer_ids=[99])) == [], "the target's config is not at hand"


@pytest.mark.parametrize(
    ("drafter", "config_json", "told"),
    [
        ("dflash2", DSPARK, "a Qwen3DSparkModel, a drafter of DSPARK; DFLASH may serve it and accept nothing"),
        ("dspark", draft(), "a DFlash2DraftModel, a drafter of DFLASH"),
        ("dflash2", {"architectures": ["Qwen3ForCausalLM"]}, "a Qwen3ForCausalLM, no drafter of DFLASH"),
        ("dflash2", draft(target_layer_ids=[5, 64]), "reads layers [5, 64] of a target that has 64"),
        ("dflash2", draft(mask_token_id=248320), "mask token 248320 is outside the target's vocabulary of 248320"),
        ("dflash2", draft(hidden_size=4096), "hidden size is 4096, the target's 5120"),
        ("dflash2", draft(selector_rank=0), "one of selector_rank and selector_top_k without the other"),
        ("dflash2", draft(conv_group_size=48), "conv_group_size 48 does not divide hidden_size 5120"),
        ("dflash2", draft(quantization_config={}), "the weights are quantized"),
        ("dspark", {**DSPARK, "markov_rank": 0}, "no markov_rank above 0"),
        ("dspark", {**DSPARK, "markov_head_type": "new"}, "does not have its markov_head_type new"),
    ],
)
def test_checkpoints_that_do_not_fit(drafter: str, config_json: dict[str, Any], told: str) -> None:
    found = refused(drafter=drafter, target=TARGET, draft=config_json)
    assert [violation for violation in found if told in violation.reason], found
    assert {violation.key for violation in found} == {"drafter.checkpoints.qwen3_8_27b.path"}


def test_checkpoints_that_need_another_version_head_or_number_of_gpus() -> None:
    beam = draft(architectures=["DFlash2BeamDraftModel"])
    (old,) = refused(drafter="dflash2", version="0.5.20", draft=beam)
    assert "SGLang has from 0.5.23 on, not in 0.5.20" in old.reason
    blind = {**DSPARK, "enable_confidence_head": False}
    (cut,) = refused("verification=cap_accept", drafter="dspark", draft=blind)
    assert cut.key == "verification=cap_accept" and "no confidence head" in cut.reason
    assert refused(drafter="dspark", draft=blind) == []
    (ways,) = refused("target.tp_size=3", drafter="dflash2", draft=draft())
    assert ways.key == "target.tp_size" and "3 GPUs do not divide the drafter's num_attention_heads, 32" in ways.reason


def test_a_process_is_told_to_install_another_version() -> None:
    process = config(drafter="dflash2").model_copy(update={"runner": {"kind": "process"}})
    (old,) = violations(process, of("0.5.16"), 0.0)
    assert (old.key, old.nearest) == ("runner=process", "sglang==0.5.23 installed")


@pytest.mark.parametrize(
    ("path", "model_type", "found"),
    [
        ("Qwen/Qwen3.8-27B", None, "gdn"), ("/models/qwen3_6-35b", None, "gdn"), ("Qwen/Qwen3-8B", None, "attention"),
        ("Qwen/Qwen3-Next-80B", None, "gdn"), ("moonshotai/Kimi-Linear-48B", None, "kda"), ("/models/mine", None, None),
        ("/models/mine", "qwen3_5_moe", "gdn"), ("/models/qwen3.5", "llama", "attention"), ("/mine/", "new", None),
    ],
)  # fmt: skip
def test_the_attention_of_a_target(path: str, model_type: str | None, found: str | None) -> None:
    assert family(path, {"model_type": model_type} if model_type else None) == found


def drafter(algorithm: str, size: int, proposed: int, window: int, **more: Any) -> Drafter:
    made = {
        "name": "d",
        "algorithm": algorithm,
        "block_size": size,
        "proposed_tokens": proposed,
        "verify_window": window,
    }
    return Drafter(**(made | more))


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (drafter("DFLASH", 8, 7, 8), {"speculative-num-draft-tokens": 8}),
        (drafter("NGRAM", 8, 7, 8), {"speculative-num-draft-tokens": 8}),
        (drafter("DSPARK", 7, 7, 8), {"speculative-dspark-block-size": 7}),
        *(
            (
                drafter(name, 7, 7, 8, topk=1),
                {"speculative-num-steps": 7, "speculative-eagle-topk": 1, "speculative-num-draft-tokens": 8},
            )
            for name in ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
        ),
        (
            drafter("EAGLE3", 5, 7, 8, topk=4, draft_tokens=8),
            {"speculative-num-steps": 5, "speculative-eagle-topk": 4, "speculative-num-draft-tokens": 8},
        ),
    ],
)
def test_equal_windows_are_equal_work_whatever_the_block_size(given: Drafter, flags: dict[str, int]) -> None:
    made = block(given)
    assert (made.proposed, made.window, made.flags, made.assumption) == (7, 8, flags, None)


def test_a_vendor_s_block_size_is_an_assumption() -> None:
    made = block(drafter("DSPINE", 16, 15, 16, plugin=Plugin(image=None, entry_point="dspine")))
    assert (made.proposed, made.window) == (15, 16) and made.flags == {"speculative-num-draft-tokens": 16}
    assert made.assumption is not None and "a verify window of 16 is assumed" in made.assumption


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (drafter("DFLASH", 1, 0, 1), "1 proposes nothing"),
        (drafter("DSPARK", 7, 6, 7), "proposes 6 in a window of 7; SGLang's DSPARK proposes 7 in a window of 8"),
        (drafter("DFLASH", 8, 8, 9), r"hint: drafter.block_is=verify_window"),
        (drafter("EAGLE", 2, 11, 12, topk=3, draft_tokens=14), "a tree of 2 steps with topk 3 has 13 tokens"),
        (drafter("MEDUSA", 4, 3, 4), "MEDUSA is no algorithm of stock SGLang"),
    ],
)
def test_arithmetic_that_sglang_does_not_share_is_refused(given: Drafter, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        block(given)


def test_a_drafter_of_fewer_positions_than_the_context_has() -> None:
    short = {"architectures": ["LlamaForCausalLMEagle3"], "max_position_embeddings": 2048}
    (found,) = refused(drafter="eagle3", draft=short)
    assert found.key == "target.context_length" and found.reason.startswith("16384 is above the 2048 positions of")
    assert found.nearest.startswith("target.context_length=2048, or +drafter.env.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT")
    assert refused("target.context_length=2048", drafter="eagle3", draft=short) == []
    longer = "+drafter.env.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    assert refused(longer, drafter="eagle3", draft=short) == []
    scaled = {**short, "rope_scaling": {"rope_type": "yarn", "factor": 32.0}}
    assert refused(drafter="eagle3", draft=scaled) == [], "how far it then reaches is SGLang's to say"
