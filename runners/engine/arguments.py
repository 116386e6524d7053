"""The server's command line: what is wrong is refused before anything is loaded, with the nearest valid name."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

EXIT_BAD_ARGUMENTS = 2
EXIT_PORT_IN_USE = 3
EXIT_LOAD_FAILED = 4

DRAFTERS = ("none", "ngram", "dflash2", "dspine")
VERIFICATION_MODES = ("static", "dynamic", "relaxed")
_EPILOG = """exit codes: 0 stopped on request (SIGTERM, SIGINT, end of --parent-pid), 2 bad arguments,
3 host and port cannot be bound (nothing was loaded), 4 the model or the drafter cannot be loaded"""


class _Parser(argparse.ArgumentParser):
    def parse_args(self, args: Sequence[str] | None = None, namespace: None = None) -> argparse.Namespace:  # type: ignore[override]
        parsed, unknown = self.parse_known_args(args, namespace)
        for word in unknown:
            near = difflib.get_close_matches(word.split("=")[0], self._option_string_actions, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; see --help"
            self.error(f"unknown argument {word}{hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_ARGUMENTS)


class _OneOf:
    """An argparse type that accepts some words and names the nearest one otherwise."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, value: str) -> str:
        if value not in self.words:
            near = difflib.get_close_matches(value, self.words, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise argparse.ArgumentTypeError(f"{value!r} is not one of {', '.join(self.words)}{hint}")
        return value


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of at least 1")
    return int(value)


def _share(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number from 0 to 1")
    return number


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parsed and checked arguments; exits with 2 and a message otherwise."""
    parser = _Parser(
        prog="python -m runners.engine",
        allow_abbrev=False,
        epilog=_EPILOG,
        description="Speculative-decoding server on a CPU, speaking SGLang's HTTP dialect.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model-path", required=True, help="folder in Hugging Face's layout, or smollm2_135m (fetched once)")
    add("--served-model-name", help="name in /v1/models and responses; the model path where not given")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=_count, default=30000, help="port to listen on")
    add("--dtype", type=_OneOf("float32", "bfloat16"), default="float32", help="float32 or bfloat16, for every weight")
    add("--attention-backend", type=_OneOf("sdpa"), default="sdpa", help="sdpa")
    add("--drafter", type=_OneOf(*DRAFTERS), default="none", help=", ".join(DRAFTERS))
    add("--drafter-path", type=Path, help="folder of the drafter's checkpoint; the one shipped where not given")
    add("--block-size", type=_count, help="as the drafter's documentation counts it; its own default where not given")
    add("--ngram-min", type=_count, default=1, help="ngram: fewest last tokens looked up")
    add("--ngram-max", type=_count, default=3, help="ngram: most last tokens looked up")
    add(
        "--verification-mode",
        type=_OneOf(*VERIFICATION_MODES),
        default="static",
        help="static: verify every draft; dynamic: those the drafter is confident of; relaxed: lossy acceptance",
    )
    add(
        "--confidence-threshold",
        type=_share,
        default=0.3,
        help="dynamic: verify drafts whose chance to be reached and accepted is at least this",
    )
    add(
        "--accept-threshold-single",
        type=_share,
        default=0.3,
        help="relaxed: accept also a draft that the target gives at least this probability",
    )
    add("--max-running-requests", type=_count, default=8, help="requests in one batch; more wait")
    add("--context-length", type=_count, help="most tokens of prompt and output; the model's own where not given")
    add("--threads", type=_count, default=len(os.sched_getaffinity(0)), help="threads of the linear algebra")
    add("--random-seed", type=int, default=0, help="seed of requests that bring none")
    add("--parent-pid", type=int, help="stop when this is no longer the parent process")
    args = parser.parse_args(argv)
    if args.drafter == "none" and (args.drafter_path or args.block_size):
        parser.error("--drafter-path and --block-size need a --drafter other than none")
    if args.drafter == "none" and args.verification_mode != "static":
        parser.error(f"--verification-mode {args.verification_mode} needs a --drafter other than none")
    if args.ngram_min > args.ngram_max:
        parser.error(f"--ngram-min {args.ngram_min} is more than --ngram-max {args.ngram_max}")
    if args.block_size == 1:
        parser.error("--block-size 1 proposes nothing; give at least 2, or --drafter none")
    args.served_model_name = args.served_model_name or args.model_path
    return args
