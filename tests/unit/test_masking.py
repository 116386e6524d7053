"""Secrets in texts, and that a run leaves none of them in its folder or on the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import cli
from orchestrator.config.masking import MASK, mask, mask_command, mask_text
from orchestrator.planning import hardware, preflight
from runners.attach import AttachRunner
from runners.base import ServerFailure


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("+env.HF_TOKEN=abc", f"+env.HF_TOKEN={MASK}"),
        ("env={HF_TOKEN: abc, X: b}", f"env={{HF_TOKEN: {MASK}, X: b}}"),
        ('++env={"HF_TOKEN": "a,b"}', f'++env={{"HF_TOKEN": {MASK}}}'),
        ('arms.plain=["drafter=none","+env.MY_API_KEY=a b"]', f'arms.plain=["drafter=none","+env.MY_API_KEY={MASK}"]'),
        ("arms.p=['+env.SECRET_KEY=\\'a,b\\'','seed=1']", f"arms.p=['+env.SECRET_KEY={MASK}','seed=1']"),
        ("tracking.uri=postgresql://u:p@h/db", f"tracking.uri=postgresql://{MASK}@h/db"),
        ("+env.HTTPS_PROXY=http://u:p@proxy:3128", f"+env.HTTPS_PROXY=http://{MASK}@proxy:3128"),
        ("https://ghp_x@github.com/x", f"https://{MASK}@github.com/x"),
        ("http://x/?token=abc", f"http://x/?token={MASK}"),
    ],
)
def test_a_secret_inside_a_text_is_replaced(text: str, masked: str) -> None:
    assert mask_text(text) == masked
    assert mask_command([text]) == [masked]


@pytest.mark.parametrize(
    "text",
    ["proposed_tokens=7", "target.path=/a/token/b", "drafter.block_size=4,8", "ada@gpu-3", "http://127.0.0.1:80/a@b"],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask_text(text) == text and mask_command([text]) == [text]


def test_numbers_under_a_name_for_secrets_are_replaced_and_figures_are_not() -> None:
    assert mask({"db_password": 1234, "joules_per_token": 0.5, "use_auth": True}) == {
        "db_password": MASK,
        "joules_per_token": 0.5,
        "use_auth": True,
    }


@pytest.mark.parametrize("more", [[], ["-m", "suite.repeats=1,2"]])
def test_a_run_leaves_no_secret_behind(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(*_: object) -> None:
        raise ServerFailure("identity", "no")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "gpus", lambda: hardware.Gpus())
    monkeypatch.setattr(preflight, "check_machine", lambda experiment: None)
    monkeypatch.setattr(AttachRunner, "start", start)
    monkeypatch.setenv("FROM_HERE", "s3cret-4")
    arguments = [
        "preset=gpu", "target=qwen3_8b", "name=one", "suite=smoke_2", "tracking=none", "runner=attach",
        "runner.url=http://127.0.0.1:9", '+arms.plain=["drafter=none","+env.MY_API_KEY=s3cret-1"]',
        "+env.HF_TOKEN=s3cret-2", "++env={SECRET_KEY: s3cret-3, DB_TOKEN: '${oc.env:FROM_HERE}'}", *more,
    ]  # fmt: skip
    assert cli.main(arguments) == 1
    told = capfd.readouterr()
    assert "s3cret" not in told.out + told.err
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.name == "outcome.json" for file in files)
    assert [file for file in files if b"s3cret" in file.read_bytes()] == []


def test_an_error_does_not_repeat_a_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["preset=gpu", "name=one", "action=plan", '+arms.plain=["drafter=none"]']
    for wrong in (
        "env.HF_TOKEN=s3cret",
        "+env.HF_TOKEN=[s3cret]",
        "+env.HF_TOKEN=s3cret}",
        "+server_args.api-key=s3cret",
    ):
        assert cli.main([*base, wrong]) == 2
        told = capsys.readouterr().err
        assert "s3cret" not in told and ("HF_TOKEN" in told or "api-key" in told)
