"""From arguments to a scheduler that is warm, and what the server says of itself."""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from runners.engine.fetch import ensure_model
from runners.engine.request import Output, Request
from runners.engine.sampling import SamplingParams
from runners.engine.scheduler import Scheduler, Verification

_GB = 2**30  # what SGLang calls GB
_WARM_UP_TOKENS = 8


def source_version() -> str:
    """Hash of the engine's own code, in place of a version: any change of it can change a figure."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.py"), *(folder / "drafters").glob("*.py")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return "embedded-" + digest.hexdigest()[:12]


def weights_sha256(folder: Path) -> str:
    """sha256 of a folder's weights: of the one file, or of the list of its files' hashes."""
    files = sorted(folder.glob("*.safetensors"))
    with ThreadPoolExecutor(2) as pool:
        digests = list(pool.map(_sha256, files))
    return digests[0] if len(files) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class Loaded:
    """What is known of the engine once it is loaded; filled by ``load``."""

    args: argparse.Namespace
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    """Different at every start, so that a client can tell that it talks to the process it started."""
    started: float = field(default_factory=time.time)
    facts: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Scheduler:
        """Raises ModelUnavailable, ValueError, OSError where the model or the drafter cannot be loaded."""
        args = self.args
        import torch

        from runners.engine.linear import backend_name, pack
        from runners.engine.llama import Llama
        from runners.engine.tokenizer import Tokenizer

        torch.set_num_threads(args.threads)
        folder = ensure_model(args.model_path)
        with ThreadPoolExecutor(1) as pool:
            digest = pool.submit(weights_sha256, folder)
            print(f"Load weight begin. {folder}", flush=True)
            target = Llama.load(folder, getattr(torch, args.dtype), args.context_length)
            tokenizer = Tokenizer(folder)
            weight_bytes = sum(p.nbytes for p in {p.data_ptr(): p for p in target.parameters()}.values())
            pack(target)
            drafter = None
            if args.drafter != "none":
                from runners.engine.drafters import load_drafter

                options = {"ngram_min": args.ngram_min, "ngram_max": args.ngram_max} if args.drafter == "ngram" else {}
                drafter = load_drafter(args.drafter, target, args.block_size, args.drafter_path, **options)
            print(
                f"Load weight end. type=LlamaForCausalLM, dtype={args.dtype}, mem usage={weight_bytes / _GB:.2f} GB",
                flush=True,
            )
            self.facts = {
                "folder": str(folder),
                "weights_sha256": digest.result(),
                "drafter_weights_sha256": drafter.weights_sha256 if drafter else None,
                "num_draft_tokens": drafter.proposed + 1 if drafter else None,
                "context_length": target.context_length,
                "weight_gb": weight_bytes / _GB,
                "torch": torch.__version__,
                "linear_backend": backend_name(target.dtype),
                "eos_token_ids": target.config.eos_token_ids,
                "vocab_size": target.config.vocab_size,
            }
        scheduler = Scheduler(
            target,
            tokenizer,
            drafter,
            Verification(args.verification_mode, args.confidence_threshold, args.accept_threshold_single),
            args.max_running_requests,
            args.random_seed,
        )
        _warm_up(scheduler)
        return scheduler

    def server_info(self, scheduler: Scheduler, throughput: float) -> dict[str, Any]:
        """``/server_info``: effective settings under SGLang's names where it has one."""
        args, facts, totals = self.args, self.facts, scheduler.recent
        state: dict[str, Any] = {
            "last_gen_throughput": throughput,
            "effective_max_running_requests_per_dp": args.max_running_requests,
            "memory_usage": {
                "weight": facts["weight_gb"],
                "kvcache": scheduler.cache_bytes / _GB,
                "token_capacity": args.max_running_requests * facts["context_length"],
                "process_rss": psutil.Process().memory_info().rss / _GB,
            },
        }
        if totals.verify_ct:
            state["avg_spec_accept_length"] = 1 + totals.correct / totals.verify_ct
        drafter = None if args.drafter == "none" else args.drafter
        return {
            "engine": "embedded",
            "version": source_version(),
            "torch_version": facts["torch"],
            "linear_backend": facts["linear_backend"],
            "status": "ready",
            "pid": os.getpid(),
            "start_nonce": self.nonce,
            "start_time": self.started,
            "model_path": args.model_path,
            "tokenizer_path": facts["folder"],  # a client reads the chat template there, also of a model given by name
            "served_model_name": args.served_model_name,
            "weights_sha256": facts["weights_sha256"],
            "host": args.host,
            "port": args.port,
            "device": "cpu",
            "dtype": args.dtype,
            "threads": args.threads,
            "attention_backend": args.attention_backend,
            "context_length": facts["context_length"],
            "max_running_requests": args.max_running_requests,
            "random_seed": args.random_seed,
            "disable_radix_cache": True,
            "speculative_algorithm": drafter.upper() if drafter else None,
            "speculative_draft_model_path": str(args.drafter_path) if args.drafter_path else None,
            "speculative_num_draft_tokens": facts["num_draft_tokens"],
            "speculative_accept_threshold_single": args.accept_threshold_single
            if args.verification_mode == "relaxed"
            else 1.0,
            "drafter": args.drafter,
            "drafter_weights_sha256": facts["drafter_weights_sha256"],
            "block_size": facts["num_draft_tokens"],
            "ngram_min": args.ngram_min if args.drafter == "ngram" else None,
            "ngram_max": args.ngram_max if args.drafter == "ngram" else None,
            "verification_mode": args.verification_mode,
            "confidence_threshold": args.confidence_threshold if args.verification_mode == "dynamic" else None,
            "lossless": args.verification_mode != "relaxed",
            "internal_states": [state],
        }


def _warm_up(scheduler: Scheduler) -> None:
    """Generate a little, greedy and sampled, so that the first client meets allocated memory and compiled kernels."""

    def ignore(output: Output) -> None: ...

    prompt = scheduler.tokenizer.encode("The quick brown fox jumps over the lazy dog.")
    for temperature in (0.0, 1.0):
        scheduler.add(Request("warm-up", prompt, SamplingParams(temperature), _WARM_UP_TOKENS, ignore))
        while not scheduler.idle:
            scheduler.step()
    scheduler.flush()
