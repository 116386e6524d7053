"""Linear layers for inference on a CPU, at the speed of memory from one row to about eight.

Where the compiled kernel (kernels.py) cannot run, the same classes use F.linear on the weights as they are.
Results of the kernel do not depend on how many rows are computed together, bit for bit; those of F.linear may.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from runners.engine.kernels import Kernel

_WORDS = {torch.float32: 1, torch.bfloat16: 2}  # numbers in a 32-bit word


def backend_name(dtype: torch.dtype = torch.float32) -> str:
    """What computes layers of this type here, and why when it is not the kernel."""
    kernel = _kernel(dtype)
    return kernel if isinstance(kernel, str) else f"{kernel.isa.name} kernel"


def pack(module: nn.Module) -> None:
    """Replace every bias-free nn.Linear inside `module` by a PackedLinear, in place; the originals are freed.

    An nn.Embedding tied to one of them becomes a view of the packed weights, so that the table is held once. The
    result serves inference only, on the CPU, and is not to be moved or cast. Layers with a bias are left alone.
    """
    children = [(parent, name, child) for parent in module.modules() for name, child in parent._modules.items()]
    slots: list[tuple[nn.Module, str, nn.Linear]] = [
        (p, name, c) for p, name, c in children if isinstance(c, nn.Linear) and c._parameters["bias"] is None
    ]
    weights = {id(linear.weight): linear.weight.detach() for _, _, linear in slots}
    tables = [(p, name, id(c.weight)) for p, name, c in children if isinstance(c, nn.Embedding)]
    del children
    arena = _Arena(sum(_packed_bytes(weight) for weight in weights.values()))
    packed: dict[int, PackedLinear] = {}
    while slots:  # emptied on the way, so that an original is freed before the next is copied
        parent, name, linear = slots.pop(0)
        key = id(linear.weight)
        if key not in packed:
            packed[key] = PackedLinear(weights.pop(key), arena)
        setattr(parent, name, packed[key])
    for parent, name, key in tables:
        if key in packed:
            setattr(parent, name, TiedEmbedding(packed[key]))
    _return_freed_memory()


class PackedLinear(nn.Module):
    """y = x @ weight.T without bias, for float32 and bfloat16 (products summed in float32)."""

    def __init__(self, weight: Tensor, arena: _Arena | None = None) -> None:
        """weight: [out_features, in_features]; `arena`: where the packed copy is put."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        kernel = _kernel_for(weight)
        # Not a buffer: module.to() would replace it, and the kernel works on its address.
        self.weight = weight if kernel is None else _packed(weight, kernel, arena or _Arena(_packed_bytes(weight)))
        self._kernel = kernel
        self._run = kernel.run if kernel else None
        self._address, self._dtype = self.weight.data_ptr(), weight.dtype
        self._words = self.in_features // _WORDS.get(weight.dtype, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]"""
        if self._run is None:
            return F.linear(x, self.weight)
        shape = x.shape
        if shape[-1] != self.in_features or x.dtype is not self._dtype:
            raise ValueError(f"{self}: input is {x.dtype} {list(shape)}, weights {self._dtype}")
        x = x.contiguous()
        y = x.new_empty((*shape[:-1], self.out_features))
        rows = x.numel() // self.in_features
        if rows:
            threads = torch.get_num_threads()
            scratch = x.new_empty((threads, *shape)) if rows > 1 else x
            addresses = x.data_ptr(), scratch.data_ptr(), self._address, y.data_ptr()
            self._run(*addresses, rows, self.out_features, self._words, threads)
        return y

    def weight_rows(self, ids: Tensor) -> Tensor:
        """[...] int64 -> [..., in_features]: the weights of these outputs, as an embedding table reads them."""
        if self._kernel is None:
            return F.embedding(ids, self.weight)
        size = self._kernel.isa.lanes
        panel = ids // size
        column = ids - (panel * size).clamp_(max=self.out_features - size)
        return self.weight[panel, :, column].flatten(-2)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {backend_name(self._dtype)}"


class TiedEmbedding(nn.Module):
    """An embedding that reads the weights of the head it is tied to."""

    def __init__(self, head: PackedLinear) -> None:
        super().__init__()
        self.head = head

    @property
    def weight(self) -> Tensor:
        """The head's storage: the dtype is the table's, the shape need not be."""
        return self.head.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head.weight_rows(ids)


class _Arena:
    """One allocation for all weights of a model, in huge pages where the system has them: with pages of 4 KiB, address
    translation makes a pass over the weights at one row up to 1.6 times as long."""

    def __init__(self, size: int) -> None:
        self._used = 0
        if size:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has small pages
            with suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._bytes = torch.frombuffer(memory, dtype=torch.uint8)  # keeps the memory alive

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        start, self._used = self._used, self._used + size
        return self._bytes[start : start + size].view(dtype).view(shape)


def _return_freed_memory() -> None:
    """glibc keeps blocks of up to 32 MiB that were freed, here the originals of most layers, for later use."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@cache
def _kernel(dtype: torch.dtype) -> Kernel | str:
    """The kernel for a type, or the reason why there is none."""
    if dtype not in _WORDS:
        return f"F.linear (the kernel does not compute {dtype})"
    try:
        from runners.engine import kernels

        return kernels.best(dtype is torch.bfloat16)
    except (ImportError, RuntimeError) as error:  # no llvmlite; Unavailable, or LLVM's own complaint
        return f"F.linear ({error})"


def _kernel_for(weight: Tensor) -> Kernel | None:
    kernel = _kernel(weight.dtype)
    if isinstance(kernel, str) or weight.device.type != "cpu":
        return None
    from runners.engine.kernels import BLOCK_WORDS

    out, inputs = weight.shape
    fits = out >= kernel.isa.lanes and inputs % (BLOCK_WORDS * _WORDS[weight.dtype]) == 0
    return kernel if fits else None


def _packed_shape(weight: Tensor, kernel: Kernel) -> tuple[int, int, int, int]:
    """[panel, word of in, output, number in word]; kernels.py describes the layout."""
    (out, inputs), numbers = weight.shape, _WORDS[weight.dtype]
    return (-(-out // kernel.isa.lanes), inputs // numbers, kernel.isa.lanes, numbers)


def _packed_bytes(weight: Tensor) -> int:
    kernel = _kernel_for(weight)
    return 0 if kernel is None else math.prod(_packed_shape(weight, kernel)) * weight.element_size()


def _packed(weight: Tensor, kernel: Kernel, arena: _Arena) -> Tensor:
    panels, words, size, numbers = shape = _packed_shape(weight, kernel)
    target = arena.take(shape, weight.dtype)
    full = len(weight) // size
    target[:full].copy_(weight[: full * size].view(full, size, words, numbers).transpose(1, 2))
    if full < panels:
        target[full].copy_(weight[-size:].view(size, words, numbers).transpose(0, 1))
    return target
