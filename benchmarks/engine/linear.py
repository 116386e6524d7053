"""Time of all linear layers of SmolLM2-135M for 1 to 256 rows: the engine's kernel, oneDNN prepacked, F.linear.

    python -m benchmarks.engine.linear [--dtype bfloat16] [--seconds 60]

Every backend has its own copy of all 30 layers and the head (538 MB in float32), so that weights come from memory and
not from cache. A sample is one decoder layer or a sixteenth of the head; backends take turns in random order, always
on the next group of layers. Samples during which the system took a core away from this process are dropped: on a
shared machine only short samples survive. A pass is 30 median layers and 16 median slices of the head. "GB/s" is what
one row reads; the first line is what the same threads reach by only reading.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from math import nan
from statistics import median

import torch
from torch import Tensor, nn

from runners.engine.linear import backend_name, pack

Group = tuple[tuple[int, int], ...]
Samples = dict[tuple[str, int, Group], list[float]]  # seconds, by backend, rows and group

LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # [out, in] of q+k+v, o, gate+up, down
HEAD_SLICE = ((3072, 576),)
GROUPS = (*[LAYER] * 30, *[HEAD_SLICE] * 16)


class Prepacked(nn.Module):
    """oneDNN's product on weights in oneDNN's own order, as torch.compile uses it."""

    def __init__(self, linear: nn.Module, rows: int = 8) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.get_parameter("weight").detach(), rows)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")


def size(group: Sequence[tuple[int, int]]) -> int:
    """Weights of a group."""
    return sum(out * inputs for out, inputs in group)


def stack(dtype: torch.dtype) -> list[nn.ModuleList]:
    """The layers of a pass, by group."""
    return [
        nn.ModuleList(nn.Linear(inputs, out, bias=False, dtype=dtype) for out, inputs in group).requires_grad_(False)
        for group in GROUPS
    ]


def backends(dtype: torch.dtype) -> dict[str, list[nn.ModuleList]]:
    engine = stack(dtype)
    pack(nn.ModuleList(engine))
    prepacked = [nn.ModuleList(map(Prepacked, group)) for group in stack(dtype)]
    return {f"engine: {backend_name(dtype)}": engine, "oneDNN prepacked": prepacked, "F.linear": stack(dtype)}


def timed(work: Callable[[], object]) -> float | None:
    """Seconds, or None when the system took a core away meanwhile."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return seconds if resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == before else None


def measure(models: dict[str, list[nn.ModuleList]], dtype: torch.dtype, rows: list[int], seconds: float) -> Samples:
    samples: Samples = defaultdict(list)
    inputs = {(n, k): torch.randn(n, k).to(dtype) for n in rows for k in (576, 1536)}
    memory = torch.ones(len(GROUPS), size(LAYER) * dtype.itemsize // 4)  # as float32, which sum() reads fastest
    turn = 0

    def keep(key: tuple[str, int, Group], work: Callable[[], object]) -> None:
        taken = timed(work)
        if taken is not None:
            samples[key].append(taken)

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for n in rows:
            for name in random.sample(list(models), len(models)):
                turn += 1
                for index in (turn % 30, 30 + turn % 16):
                    group = GROUPS[index]
                    work = [(layer, inputs[n, k]) for layer, (_, k) in zip(models[name][index], group, strict=True)]
                    keep((name, n, group), partial(run, work))
        keep(("read", 0, LAYER), memory[turn % len(GROUPS)].sum)
    return samples


def run(work: list[tuple[nn.Module, Tensor]]) -> None:
    for layer, x in work:
        layer(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 12, 16])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    with torch.inference_mode():
        models = backends(dtype)
        samples = measure(models, dtype, args.rows, args.seconds)
    read = samples["read", 0, LAYER]
    speed = f"{size(LAYER) * dtype.itemsize / median(read) / 1e9:.0f} GB/s" if read else "never undisturbed"
    print(f"{args.dtype}, {args.threads} threads; plain read {speed}")
    print("| ms a pass (ratio to the first) | " + " | ".join(f"{n} rows" for n in args.rows) + " | GB/s | samples |")
    print("| --- |" + " --- |" * (len(args.rows) + 2))
    for name in models:
        parts = [[(count, samples[name, n, group]) for group, count in Counter(GROUPS).items()] for n in args.rows]
        passes = [sum(count * median(s) for count, s in row) * 1e3 if all(s for _, s in row) else nan for row in parts]
        cells = " | ".join(f"{ms:.1f} ({ms / passes[0]:.2f})" for ms in passes)
        fewest = min(len(s) for row in parts for _, s in row)
        gbs = sum(map(size, GROUPS)) * dtype.itemsize / passes[0] / 1e6
        print(f"| {name} | {cells} | {gbs:.0f} | {fewest} or more |")


if __name__ == "__main__":
    main()
