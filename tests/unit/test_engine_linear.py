"""The linear layers of the embedded engine: right, the same in any batch, and replaced in place."""

from __future__ import annotations

import builtins
import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runners.engine import kernels, linear
from runners.engine.linear import PackedLinear, TiedEmbedding, backend_name, pack

SHAPES = [(960, 576), (576, 1536), (100, 64), (16, 32)]  # [out, in]; 100 is no multiple of a panel
ROWS = [*range(1, 18), 33]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=kernels.usable(), ids=lambda isa: isa.name)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> kernels.Isa:
    """Each instruction set of this machine in turn; without any there is nothing to test but the fallback."""
    monkeypatch.setattr(linear, "_kernel", lambda dtype: kernels.build(request.param, dtype is torch.bfloat16))
    return request.param


@pytest.fixture
def no_llvmlite(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "runners.engine" and "kernels" in args[2]:
            raise ModuleNotFoundError("No module named 'llvmlite'")
        return real(name, *args, **kwargs)

    linear._kernel.cache_clear()
    monkeypatch.setattr(builtins, "__import__", refuse)
    yield
    monkeypatch.undo()
    linear._kernel.cache_clear()


def sample(out: int, inputs: int, dtype: torch.dtype, rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(out * inputs)
    weight = torch.randn(out, inputs, generator=generator).mul_(0.05).to(dtype)
    return weight, torch.randn(rows, inputs, generator=generator).to(dtype)


def rounding_bound(weight: Tensor, x: Tensor) -> Tensor:
    """The most that a float32 sum of these products may be off by: Higham, Accuracy and Stability, section 4.2.

    A chain of n terms loses at most n units of 2^-24 of the sum of magnitudes; rounding to bfloat16 adds 2^-8."""
    magnitudes = x.double().abs() @ weight.double().abs().T
    longest = 2 * kernels.SUM_WORDS + weight.shape[1] // kernels.SUM_WORDS + 2
    bound = magnitudes * longest * 2.0**-24
    if weight.dtype is torch.bfloat16:
        bound += (x.double() @ weight.double().T).abs() * 2.0**-8
    return bound


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("out", "inputs"), SHAPES)
def test_every_row_count_is_exact_to_rounding(isa: kernels.Isa, out: int, inputs: int, dtype: torch.dtype) -> None:
    weight, x = sample(out, inputs, dtype, max(ROWS))
    layer = PackedLinear(weight)
    assert layer._run is not None
    exact, bound = x.double() @ weight.double().T, rounding_bound(weight, x)
    for rows in ROWS:
        y = layer(x[:rows])
        assert y.dtype is dtype and y.shape == (rows, out)
        assert ((y - exact[:rows]).abs() <= bound[:rows]).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("out", "inputs"), SHAPES)
def test_row_is_bitwise_the_same_alone_and_in_any_batch(
    isa: kernels.Isa, out: int, inputs: int, dtype: torch.dtype
) -> None:
    weight, x = sample(out, inputs, dtype, max(ROWS))
    layer = PackedLinear(weight)
    alone = torch.cat([layer(row[None]) for row in x])
    for rows in ROWS:
        assert torch.equal(layer(x[-rows:]), alone[-rows:])
        assert torch.equal(layer(x[-rows:]), layer(x[-rows:]))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_the_result(isa: kernels.Isa, threads: int) -> None:
    weight, x = sample(100, 64, torch.float32, 5)
    layer = PackedLinear(weight)
    before = torch.get_num_threads()
    expected = layer(x)
    try:
        torch.set_num_threads(threads)
        assert torch.equal(layer(x), expected)
    finally:
        torch.set_num_threads(before)


def test_calls_from_several_threads_do_not_mix(isa: kernels.Isa) -> None:
    weight, x = sample(96, 64, torch.float32, 40)
    layer = PackedLinear(weight)
    expected = layer(x)
    with ThreadPoolExecutor(3) as pool:
        for start, y in zip(range(32), pool.map(lambda i: layer(x[i : i + 8]), range(32)), strict=True):
            assert torch.equal(y, expected[start : start + 8])


def test_inputs_of_any_layout(isa: kernels.Isa) -> None:
    weight, x = sample(96, 64, torch.float32, 24)
    layer, expected = PackedLinear(weight), PackedLinear(weight)(x)
    assert torch.equal(layer(x.view(2, 3, 4, 64)), expected.view(2, 3, 4, 96))
    assert torch.equal(layer(x[::2]), expected[::2])
    assert torch.equal(layer(x.T.contiguous().T), expected)
    assert torch.equal(layer(x[3]), expected[3])
    assert layer(x[:0]).shape == (0, 96)


def test_special_values_stay_in_their_outputs(isa: kernels.Isa) -> None:
    for dtype in DTYPES:
        weight, x = sample(96, 64, dtype, 3)
        weight[5, 0], x[1, 7] = torch.inf, torch.nan
        y = PackedLinear(weight)(x)
        assert y[1].isnan().all() and not y[0].isnan().any() and not y[2].isnan().any()
        assert y[0].isinf().nonzero().tolist() == [[5]]


def test_wrong_input_is_refused(isa: kernels.Isa) -> None:
    layer = PackedLinear(sample(96, 64, torch.float32, 1)[0])
    for wrong in (torch.zeros(2, 32), torch.zeros(2, 64, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="in_features=64"):
            layer(wrong)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("out", "inputs"), SHAPES)
def test_weight_rows_are_the_weights(isa: kernels.Isa, out: int, inputs: int, dtype: torch.dtype) -> None:
    weight, _ = sample(out, inputs, dtype, 1)
    ids = torch.randint(out, (3, 5))
    layer = PackedLinear(weight)
    assert torch.equal(layer.weight_rows(ids), weight[ids])
    assert torch.equal(layer.weight_rows(torch.arange(out)), weight)


class Model(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.inner = nn.Sequential(nn.Linear(64, 96, bias=False), nn.SiLU(), nn.Linear(96, 64, bias=False))
        self.narrow = nn.Linear(64, 8, bias=False)
        self.biased = nn.Linear(64, 64)
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.embed.weight
        self.to(dtype)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(ids)
        x = x + self.biased(self.inner(x))
        return self.head(x), self.narrow(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pack_replaces_in_place_and_computes_the_same(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, ids = Model(dtype), torch.arange(12)
    with torch.inference_mode():
        expected = model(ids)
        pack(model)
        results = model(ids)
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted)
    kinds = [type(m) for m in (model.embed, model.inner[0], model.inner[2], model.narrow, model.biased, model.head)]
    assert kinds == [TiedEmbedding, PackedLinear, PackedLinear, PackedLinear, nn.Linear, PackedLinear]
    assert (model.head.in_features, model.head.out_features) == (64, 100)
    assert model.embed.weight.dtype is dtype


def test_pack_frees_the_originals_and_holds_a_shared_weight_once(isa: kernels.Isa) -> None:
    model = Model()
    model.inner.append(model.inner[0])
    originals = [weakref.ref(weight) for weight in (model.head.weight, model.inner[0].weight)]
    pack(model)
    gc.collect()
    assert [ref() for ref in originals] == [None, None]
    assert model.embed.head is model.head
    assert model.inner[3] is model.inner[0]


def test_without_llvmlite_f_linear_computes_and_says_why(no_llvmlite: None) -> None:
    assert backend_name() == "F.linear (No module named 'llvmlite')"
    model, ids = Model(), torch.arange(7)
    with torch.inference_mode():
        expected = model(ids)
        pack(model)
        for result, wanted in zip(model(ids), expected, strict=True):
            torch.testing.assert_close(result, wanted)
    weight, x = sample(100, 64, torch.float32, 5)
    layer = PackedLinear(weight)
    assert layer.weight is weight and torch.equal(layer(x), F.linear(x, weight))


def test_processor_without_the_instructions_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.llvm, "get_host_cpu_features", dict)
    with pytest.raises(kernels.Unavailable, match="neither avx512 nor avx2"):
        kernels.best(False)


def test_torch_on_another_openmp_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise OSError("libgomp.so.1: cannot open shared object file")

    monkeypatch.setattr(kernels.ctypes, "CDLL", missing)
    with pytest.raises(kernels.Unavailable, match="libgomp"):
        kernels._bind_openmp()


def test_types_the_kernel_does_not_compute_use_f_linear() -> None:
    weight, x = sample(96, 64, torch.float64, 3)
    assert torch.equal(PackedLinear(weight)(x), F.linear(x, weight))
    assert backend_name(torch.float64) == "F.linear (the kernel does not compute torch.float64)"
