"""A matrix product for few rows that reads its weights once, compiled by LLVM in this process.

Why not a library: at one row a layer is as fast as its weights come from memory, and up to about eight rows the
arithmetic fits into the same time. F.linear and the prepacked products of oneDNN and MKL do not get there (their
tiles are made for many rows), and nothing that pip installs offers better. The kernel is the textbook outer product
with every accumulator in a register; llvmlite turns it into machine code in about 0.1 s, so no compiler is needed.

Layout. Weights [out, in] are cut into panels of as many outputs as a vector has lanes, and stored as
[panel][in][output], so that a thread reads one unbroken stream. Inputs are handled as 32-bit words: one float32, or two
neighbouring bfloat16 that one dot instruction consumes. When the last panel is not full, it overlaps the one before.

Order of summation. Every output is one chain of multiply-adds over `in`, in partial sums of SUM_WORDS words, whatever
the number of rows, threads or its place in the batch. So a row's result is bitwise the same alone and in any batch.

Threads. The kernel runs on torch's own OpenMP threads (GOMP_parallel of the libgomp that torch has loaded); a second
pool would compete with torch's spinning threads for the cores.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

BLOCK_WORDS = 16  # words of a row that lie together in the packed input; `in` must be a multiple
SUM_WORDS = 192  # words of a partial sum: long chains lose digits, and this many cost nothing
# From this many rows on, arithmetic slows the stream so much that the processor's own prefetching falls behind, and
# asking for weights this many bytes ahead pays (8 rows: -25 %); below, it delays the stream (4 rows: +30 %).
PREFETCH_ROWS, PREFETCH_BYTES = 6, 8192

I16, I32, I64, F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
VOID, PTR = ir.VoidType(), ir.PointerType()


class BFloat16(ir.Type):  # type: ignore[misc]
    """The LLVM type bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat16)

    def __hash__(self) -> int:
        return hash(BFloat16)


@dataclass(frozen=True)
class Isa:
    """An instruction set, the processor features it needs, its vectors, and the rows it computes in one go."""

    name: str
    needs: tuple[str, ...]
    lanes: int  # 32-bit lanes of a vector: the outputs of a panel
    rows: int  # of the largest tile; one register each


ISAS = (Isa("avx512", ("avx512f",), lanes=16, rows=16), Isa("avx2", ("avx2", "fma"), lanes=8, rows=8))


@dataclass(frozen=True)
class Kernel:
    """A compiled product: run(x, scratch, weights, y, rows, out, words, threads), four addresses and four counts.

    x: [rows, in]; scratch: [threads, rows, in], not used at one row; y: [rows, out]; words: 32-bit words of a row of x.
    rows >= 1, out >= isa.lanes, words a multiple of BLOCK_WORDS, weights 64-byte aligned: the caller checks.
    """

    isa: Isa
    bfloat16: bool
    run: Callable[[int, int, int, int, int, int, int, int], None]
    engine: Any  # owns the machine code


class Unavailable(RuntimeError):
    """The kernel cannot run on this machine; the message says why."""


def usable() -> list[Isa]:
    """The instruction sets this processor has, best first."""
    features = llvm.get_host_cpu_features()
    return [isa for isa in ISAS if all(features.get(need) for need in isa.needs)]


def best(bfloat16: bool) -> Kernel:
    """The kernel for this processor. Raises Unavailable."""
    isas = usable()
    if not isas:
        raise Unavailable(f"the processor has neither {' nor '.join(isa.name for isa in ISAS)}")
    return build(isas[0], bfloat16)


@cache
def build(isa: Isa, bfloat16: bool) -> Kernel:
    """Compiles the kernel for float32 or bfloat16 (sums in float32, rounded once). Raises Unavailable."""
    _bind_openmp()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    # LLVM splits 512-bit vectors in two on processors it knows to lower their clock for them; here they pay.
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten() + ",-prefer-256-bit", opt=3
    )
    dot_bf16 = bfloat16 and isa.name == "avx512" and bool(features.get("avx512bf16"))
    module = llvm.parse_assembly(str(_Emitter(isa, bfloat16, dot_bf16).module))
    module.verify()
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()  # accumulators become registers
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options())
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 3, ctypes.c_int32)
    return Kernel(isa, bfloat16, signature(engine.get_function_address("linear")), engine)


def _bind_openmp() -> None:
    try:
        gomp = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)  # torch's, or none: never a second copy
        for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"):
            llvm.add_symbol(name, ctypes.cast(getattr(gomp, name), ctypes.c_void_p).value)
    except (OSError, AttributeError) as error:
        raise Unavailable("torch does not run on libgomp here") from error


def _i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def _words(b: ir.IRBuilder, base: ir.Value, offset: ir.Value) -> ir.Value:
    return b.gep(base, [offset], source_etype=I32)


def _least(b: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    return b.select(b.icmp_unsigned("<", left, right), left, right)


@contextmanager
def _loop(b: ir.IRBuilder, stop: ir.Value, step: int = 1) -> Iterator[ir.Value]:
    """for i in range(0, stop, step), with stop > 0."""
    before, body = b.block, b.append_basic_block()
    b.branch(body)
    b.position_at_end(body)
    index = b.phi(I64)
    index.add_incoming(_i64(0), before)
    yield index
    following = b.add(index, _i64(step))
    index.add_incoming(following, b.block)
    after = b.append_basic_block()
    b.cbranch(b.icmp_unsigned("<", following, stop), body, after)
    b.position_at_end(after)


class _Emitter:
    """Writes the LLVM module: tile1..tileR, the share of one thread, and `linear`, which starts the threads."""

    def __init__(self, isa: Isa, bfloat16: bool, dot_bf16: bool) -> None:
        self.isa, self.bfloat16, self.dot_bf16 = isa, bfloat16, dot_bf16
        self.out = BFloat16() if bfloat16 else F32
        self.floats, self.ints = ir.VectorType(F32, isa.lanes), ir.VectorType(I32, isa.lanes)
        self.module = ir.Module()
        self.fma = self._declare(f"llvm.fma.v{isa.lanes}f32", self.floats, [self.floats] * 3)
        self.prefetch = self._declare("llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])
        if dot_bf16:
            self.pairs = ir.VectorType(BFloat16(), 2 * isa.lanes)
            name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * isa.lanes}"
            self.dot = self._declare(name, self.floats, [self.floats, self.pairs, self.pairs])
        tiles = [self._tile(rows) for rows in range(1, isa.rows + 1)]
        self._linear(self._share(tiles))

    def _declare(self, name: str, returns: ir.Type, takes: list[ir.Type]) -> ir.Function:
        return ir.Function(self.module, ir.FunctionType(returns, takes), name)

    def _splat(self, value: int) -> ir.Constant:
        return ir.Constant(self.ints, [value] * self.isa.lanes)

    def _multiply_add(self, b: ir.IRBuilder, total: ir.Value, w: ir.Value, x: ir.Value) -> ir.Value:
        """total + w * x for vectors of words."""
        if self.dot_bf16:
            return b.call(self.dot, [total, b.bitcast(w, self.pairs), b.bitcast(x, self.pairs)])
        if not self.bfloat16:
            return b.call(self.fma, [b.bitcast(w, self.floats), b.bitcast(x, self.floats), total])
        # a bfloat16 is the upper half of a float32: the two of a word become floats by a shift and a mask
        low, high = self._splat(16), self._splat(0xFFFF0000)
        for w_half, x_half in ((b.shl(w, low), b.shl(x, low)), (b.and_(w, high), b.and_(x, high))):
            total = b.call(self.fma, [b.bitcast(w_half, self.floats), b.bitcast(x_half, self.floats), total])
        return total

    def _rounded(self, b: ir.IRBuilder, value: ir.Value) -> ir.Value:
        """float32 to the output type; to bfloat16 by round-half-even."""
        if not self.bfloat16:
            return value
        if self.dot_bf16:
            return b.fptrunc(value, ir.VectorType(self.out, self.isa.lanes))
        bits = b.bitcast(value, self.ints)
        odd = b.and_(b.lshr(bits, self._splat(16)), self._splat(1))
        bits = b.lshr(b.add(bits, b.add(odd, self._splat(0x7FFF))), self._splat(16))
        return b.trunc(bits, ir.VectorType(I16, self.isa.lanes))

    def _tile(self, rows: int) -> ir.Function:
        """tile(x, w, y, words, stride of y): `rows` packed rows times one panel, the sums in registers."""
        lanes = self.isa.lanes
        tile = self._declare(f"tile{rows}", VOID, [PTR, PTR, PTR, I64, I64])
        tile.linkage = "internal"
        x, w, y, words, stride = tile.args
        b = ir.IRBuilder(tile.append_basic_block())
        partial, total = ([b.alloca(self.floats) for _ in range(rows)] for _ in range(2))
        zero = ir.Constant(self.floats, [0.0] * lanes)
        for r in range(rows):
            b.store(zero, total[r])
        with _loop(b, words, SUM_WORDS) as summed:
            for r in range(rows):
                b.store(zero, partial[r])
            with _loop(b, _least(b, b.sub(words, summed), _i64(SUM_WORDS)), BLOCK_WORDS) as block:
                done = b.add(summed, block)
                x_block = _words(b, x, b.mul(done, _i64(rows)))
                w_block = _words(b, w, b.mul(done, _i64(lanes)))
                with _loop(b, _i64(BLOCK_WORDS)) as k:
                    w_k = _words(b, w_block, b.mul(k, _i64(lanes)))
                    if rows >= PREFETCH_ROWS:
                        ahead = _words(b, w_k, _i64(PREFETCH_BYTES // 4))
                        # to read, kept in the second-level cache, data
                        b.call(self.prefetch, [ahead, *(ir.Constant(I32, n) for n in (0, 2, 1))])
                    weights = b.load(w_k, typ=self.ints, align=4 * lanes)
                    for r in range(rows):
                        word = b.load(_words(b, x_block, b.add(k, _i64(r * BLOCK_WORDS))), typ=I32, align=4)
                        lane0 = b.insert_element(ir.Constant(self.ints, ir.Undefined), word, ir.Constant(I32, 0))
                        spread = b.shuffle_vector(lane0, lane0, self._splat(0))
                        so_far = b.load(partial[r], typ=self.floats)
                        b.store(self._multiply_add(b, so_far, weights, spread), partial[r])
            for r in range(rows):
                both = b.fadd(b.load(total[r], typ=self.floats), b.load(partial[r], typ=self.floats))
                b.store(both, total[r])
        for r in range(rows):
            target = b.gep(y, [b.mul(stride, _i64(r))], source_etype=self.out)
            b.store(self._rounded(b, b.load(total[r], typ=self.floats)), target, align=2 if self.bfloat16 else 4)
        b.ret_void()
        return tile

    def _parts(self, b: ir.IRBuilder, rows: ir.Value) -> ir.Value:
        """Into how many tiles the rows are split."""
        return b.udiv(b.add(rows, _i64(self.isa.rows - 1)), _i64(self.isa.rows))

    @contextmanager
    def _each_part(self, b: ir.IRBuilder, rows: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
        """(first row, rows) of each tile, as even as can be."""
        parts = self._parts(b, rows)
        with _loop(b, parts) as i:
            first = b.udiv(b.mul(i, rows), parts)
            yield first, b.sub(b.udiv(b.mul(b.add(i, _i64(1)), rows), parts), first)

    def _share(self, tiles: list[ir.Function]) -> ir.Function:
        """share(arguments): the panels of the calling thread. A panel stays in cache while its tiles use it."""
        table_type = ir.ArrayType(PTR, len(tiles))
        table = ir.GlobalVariable(self.module, table_type, "tiles")
        table.linkage, table.global_constant, table.initializer = "internal", True, ir.Constant(table_type, tiles)
        thread_num = self._declare("omp_get_thread_num", I32, [])
        num_threads = self._declare("omp_get_num_threads", I32, [])
        share = self._declare("share", VOID, [PTR])
        share.linkage = "internal"
        b = ir.IRBuilder(share.append_basic_block())
        given = [b.load(b.gep(share.args[0], [_i64(i)], source_etype=I64), typ=I64) for i in range(7)]
        x, scratch, w, y = (b.inttoptr(address, PTR) for address in given[:4])
        rows, out, words = given[4:]
        panel = _i64(self.isa.lanes)
        panels = b.udiv(b.add(out, _i64(self.isa.lanes - 1)), panel)
        thread, threads = (b.zext(b.call(f, []), I64) for f in (thread_num, num_threads))
        first = b.udiv(b.mul(panels, thread), threads)
        count = b.sub(b.udiv(b.mul(panels, b.add(thread, _i64(1))), threads), first)
        several = b.icmp_unsigned(">", rows, _i64(1))
        own = _words(b, scratch, b.mul(thread, b.mul(rows, words)))
        with b.if_then(several):
            self._pack_rows(b, x, own, rows, words)
        x = b.select(several, own, x)
        with b.if_then(b.icmp_unsigned(">", count, _i64(0))), _loop(b, count) as i:
            index = b.add(first, i)
            w_panel = _words(b, w, b.mul(index, b.mul(words, panel)))
            y_panel = b.gep(y, [_least(b, b.mul(index, panel), b.sub(out, panel))], source_etype=self.out)
            with self._each_part(b, rows) as (row, size):
                entry = b.gep(table, [_i64(0), b.sub(size, _i64(1))], source_etype=table_type)
                tile = b.load(entry, typ=tiles[0].function_type.as_pointer())
                y_tile = b.gep(y_panel, [b.mul(row, out)], source_etype=self.out)
                b.call(tile, [_words(b, x, b.mul(row, words)), w_panel, y_tile, words, out])
        b.ret_void()
        return share

    def _pack_rows(self, b: ir.IRBuilder, x: ir.Value, packed: ir.Value, rows: ir.Value, words: ir.Value) -> None:
        """Copies x to [tile][block][row][word]. Rows at their natural distance would fall into few sets of the
        first-level cache and evict each other. Every thread makes its own copy: fetching lines that another core
        has just written costs more than copying."""
        block_type = ir.VectorType(I32, BLOCK_WORDS)
        with self._each_part(b, rows) as (first, size):
            source, target = (_words(b, base, b.mul(first, words)) for base in (x, packed))
            with _loop(b, size) as r, _loop(b, words, BLOCK_WORDS) as k:
                block = b.load(_words(b, source, b.add(b.mul(r, words), k)), typ=block_type, align=2)
                b.store(block, _words(b, target, b.add(b.mul(r, _i64(BLOCK_WORDS)), b.mul(k, size))), align=2)

    def _linear(self, share: ir.Function) -> None:
        """linear(...), see Kernel.run."""
        parallel = self._declare("GOMP_parallel", VOID, [PTR, PTR, I32, I32])
        linear = self._declare("linear", VOID, [PTR, PTR, PTR, PTR, I64, I64, I64, I32])
        *pointers, rows, out, words, threads = linear.args
        b = ir.IRBuilder(linear.append_basic_block())
        arguments = b.alloca(I64, 7)
        for i, value in enumerate([*(b.ptrtoint(p, I64) for p in pointers), rows, out, words]):
            b.store(value, b.gep(arguments, [_i64(i)], source_etype=I64))
        b.call(parallel, [share, arguments, threads, ir.Constant(I32, 0)])
        b.ret_void()
