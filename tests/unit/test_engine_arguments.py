"""The server's command line: bad arguments are refused with what is allowed and the nearest name."""

from __future__ import annotations

import pytest

from runners.engine import arguments

MODEL = ["--model-path", "somewhere"]


def test_defaults() -> None:
    args = arguments.parse(MODEL)
    assert (args.served_model_name, args.drafter, args.verification_mode) == ("somewhere", "none", "static")
    assert args.threads >= 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--model-path"),
        (["--drafter", "dspin"], "did you mean dspine?"),
        (["--dtype", "float16"], "did you mean"),
        (["--attention-backend", "fa3"], "'fa3' is not one of sdpa"),
        (["--verification-mode", "dinamic"], "did you mean dynamic?"),
        (["--max-runing-requests", "4"], "did you mean --max-running-requests?"),
        (["--block", "4"], "unknown argument --block"),  # no abbreviations
        (["--port", "zero"], "whole number"),
        (["--confidence-threshold", "1.5"], "from 0 to 1"),
        (["--block-size", "8"], "need a --drafter"),
        (["--verification-mode", "dynamic"], "needs a --drafter"),
        (["--drafter", "ngram", "--block-size", "1"], "proposes nothing"),
        (["--drafter", "ngram", "--ngram-min", "4"], "--ngram-max"),
    ],
)
def test_bad_arguments(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        arguments.parse(argv if argv == [] else MODEL + argv)
    assert exit_.value.code == arguments.EXIT_BAD_ARGUMENTS
    assert message in capsys.readouterr().err
