"""The embedded engine's command line and its proof of identity."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from runners import embedded


def test_threads_are_those_of_the_config_or_the_physical_cores() -> None:
    assert embedded.threads({"runner": {"threads": 3}}) == 3
    assert embedded.threads({"runner": {"threads": None}}) >= 1


PLAIN: dict[str, Any] = {
    "target": {
        "name": "small", "path": "/models/small", "dtype": "float32", "context_length": 2048, "max_running_requests": 8,
    },
    "drafter": {"name": "none", "algorithm": None, "proposed_tokens": 0, "verify_window": 1},
    "attention": {"backend": "sdpa"},
    "runner": {"kind": "embedded", "threads": 2},
    "seed": 5,
}  # fmt: skip
DSPINE = PLAIN | {
    "drafter": {
        "name": "dspine", "algorithm": "dspine", "block_size": 16, "proposed_tokens": 15, "verify_window": 16,
        "path": "/weights/dspine", "revision": None,
    },
    "verification": {"mode": "dynamic", "confidence_threshold": 0.3},
}  # fmt: skip


def flags(command: list[str]) -> dict[str, str]:
    assert command[1:3] == ["-m", "runners.engine"]
    return dict(zip(command[3::2], command[4::2], strict=True))


def test_the_command_holds_what_the_arm_uses_and_nothing_else() -> None:
    plain = flags(embedded.command(PLAIN, "127.0.0.1", 1234))
    assert plain["--drafter"] == "none" and plain["--port"] == "1234" and plain["--threads"] == "2"
    assert not {"--block-size", "--drafter-path", "--verification-mode", "--ngram-min"} & set(plain)
    dspine = flags(embedded.command(DSPINE, "127.0.0.1", 1))
    assert dspine["--drafter"] == "dspine" and dspine["--block-size"] == "16"
    assert (dspine["--verification-mode"], dspine["--confidence-threshold"]) == ("dynamic", "0.3")
    differ = {flag for flag in dspine if dspine[flag] != plain.get(flag)}
    assert differ == {
        "--port", "--drafter", "--drafter-path", "--block-size", "--verification-mode", "--confidence-threshold",
    }  # fmt: skip


def identity(**changes: Any) -> dict[str, Any]:
    return {
        "drafter": "none", "speculative_num_draft_tokens": None, "drafter_weights_sha256": None,
        "verification_mode": "static", "dtype": "float32", "context_length": 2048, "max_running_requests": 8,
        "attention_backend": "sdpa", "threads": 2, "random_seed": 5, "model_path": "/models/small", "pid": 77,
    } | changes  # fmt: skip


def test_the_server_that_was_asked_for_passes(tmp_path: Path) -> None:
    assert embedded.differences(PLAIN, identity(), [76, 77]) == []
    assert embedded.differences(PLAIN, identity(), None) == [], "in a container it is numbered otherwise"
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    config = DSPINE | {"drafter": DSPINE["drafter"] | {"path": str(folder)}}
    good = identity(
        drafter="dspine", speculative_num_draft_tokens=16, verification_mode="dynamic",
        drafter_weights_sha256=hashlib.sha256(b"weights").hexdigest(),
    )  # fmt: skip
    assert embedded.differences(config, good, [77]) == []
    (folder / "other.safetensors").write_bytes(b"an earlier one that someone kept")
    assert embedded.differences(config, good, [77]) == []
    (folder / "model.safetensors").write_bytes(b"other weights")
    (told,) = embedded.differences(config, good, [77])
    assert told.startswith("drafter_weights_sha256: asked")


@pytest.mark.parametrize(
    "change",
    [{"drafter": "ngram"}, {"speculative_num_draft_tokens": 8}, {"dtype": "bfloat16"}, {"threads": 1}, {"pid": 78}],
)
def test_another_server_is_refused_by_what_differs(change: dict[str, Any]) -> None:
    (told,) = embedded.differences(PLAIN, identity(**change), [77])
    assert told.startswith(f"{next(iter(change))}: ")
