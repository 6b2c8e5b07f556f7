"""Matrix instructions (CDNA3 ISA, chapter 7; CDNA4 ISA for the f8f6f4 forms).

Products and sums are float64 and rounded to float32 once an instruction: the hardware's order of rounding is not
public. Operands are decoded once per value of their registers and cached.

Layouts, with ``rows`` 16 or 32 and l the lane. A: lane l holds row l % rows, elements k from l // rows * depth on; B
alike by columns. Result register r of lane l is column l % rows and row 4 * (l // 16) + r, or for 32 rows
8 * (r // 4) + 4 * (l // 32) + r % 4. In f8f6f4 a lane's 32 elements are consecutive for 4 and 6 bits, and two runs of
16, half of K apart, for 8 bits; its scale byte is for 32 consecutive elements in every format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from gfx950emu.disassemble import Instruction
from gfx950emu.errors import UnsupportedInstruction
from gfx950emu.formats import BF8, E8M0, FP8, MATRIX_FORMATS, TWO_FP4, SmallFloat, unpack_codes
from gfx950emu.numeric import F16, F32, F64, I32, I64, U16, U32, Array, bf16_to_f32
from gfx950emu.operands import Operand
from gfx950emu.registers import Read, read
from gfx950emu.table import Step, define
from gfx950emu.waves import Group

Decode = Callable[[Array], Array]

PLAIN_TYPES: Final[dict[str, tuple[int, Decode]]] = {
    "bf16": (16, lambda raw: bf16_to_f32(raw.view(U16)).astype(F64)),
    "f16": (16, lambda raw: raw.view(F16).astype(F64)),
    "fp8": (8, lambda raw: FP8.values[raw.view(np.uint8)]),
    "bf8": (8, lambda raw: BF8.values[raw.view(np.uint8)]),
    "i8": (8, lambda raw: raw.view(np.int8).astype(F64)),
    "f32": (32, lambda raw: raw.view(F32).astype(F64)),
}
"""Bits of an element, and how to decode the dwords ``[W, 64, d]`` of a lane."""


def to_accumulators(product: Array) -> Array:
    """``[W, rows, rows]`` -> ``[registers, W, 64]``."""
    waves, rows, _ = product.shape
    if rows == 16:
        return product.reshape(waves, 4, 4, 16).transpose(2, 0, 1, 3).reshape(4, waves, 64)
    return product.reshape(waves, 4, 2, 4, 32).transpose(1, 3, 0, 2, 4).reshape(16, waves, 64)


def to_matrix(elements: Array, rows: int) -> Array:
    """``[W, 64, depth]`` -> ``[W, rows, K]``."""
    waves, _, depth = elements.shape
    groups = 64 // rows
    by_row = elements.reshape(waves, groups, rows, depth).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(by_row).reshape(waves, rows, groups * depth)


def decode_mx(raw: Array, fmt: SmallFloat) -> Array:
    """Dwords ``[W, 64, d]`` of a lane -> its 32 values in register order."""
    waves = raw.shape[0]
    if fmt.bits == 4:
        return np.take(TWO_FP4, raw.view(np.uint8)).view(F64)
    if fmt.bits == 8:
        return np.take(fmt.values, raw.view(np.uint8))
    return fmt.values[unpack_codes(raw.reshape(waves * 64, -1), 6, 32)].reshape(waves, 64, 32)


def mx_matrix(elements: Array, fmt: SmallFloat, rows: int, scales: Array | None) -> Array:
    """Values in register order and scale bytes ``[W, 64]`` -> ``[W, rows, K]``."""
    waves, groups = elements.shape[0], 64 // rows
    if fmt.bits == 8:
        runs = elements.reshape(waves, groups, rows, 2, 16).transpose(0, 2, 3, 1, 4)
        matrix = runs.reshape(waves, rows, groups, 32)
    else:
        matrix = elements.reshape(waves, groups, rows, 32).transpose(0, 2, 1, 3)
    if scales is not None:
        matrix = matrix * E8M0[scales].reshape(waves, groups, rows).transpose(0, 2, 1)[..., None]
    return np.ascontiguousarray(matrix).reshape(waves, rows, groups * 32)


def _registers(g: Group, first: int, count: int) -> Array:
    """Return dwords of a lane as ``[W, 64, count]``."""
    return np.ascontiguousarray(g.v[first : first + count].transpose(1, 2, 0))


def _cached(g: Group, key: tuple[int, ...], registers: list[int], make: Callable[[], Array]) -> Array:
    """Return ``make()``, or what it gave last time while the registers have not been written since."""
    versions = tuple(g.versions[register] for register in registers)
    found = g.matrix_cache.get(key)
    if found is None or found[0] != versions:
        found = g.matrix_cache[key] = versions, make()
    return found[1]


def _mx_operand(o: Operand, number: int, rows: int, scale: tuple[Operand, int] | None) -> Read:
    """Return a function that gives an f8f6f4 operand as a matrix, scaled by byte ``scale[1]`` of its scale register."""
    fmt, first = MATRIX_FORMATS[number], o.index
    count = fmt.bits
    if scale is None:
        key: tuple[int, ...] = (first, number, rows)
        registers = list(range(first, first + count))

        def plain(g: Group) -> Array:
            return _cached(
                g, key, registers, lambda: mx_matrix(decode_mx(_registers(g, first, count), fmt), fmt, rows, None)
            )

        return plain
    source, shift = read(scale[0], "u32"), U32(8 * scale[1])

    def scaled(g: Group) -> Array:
        scales = (np.broadcast_to(source(g), (g.width, 64)) >> shift) & U32(255)
        return mx_matrix(decode_mx(_registers(g, first, count), fmt), fmt, rows, scales)

    if not scale[0].is_vector:
        return scaled
    key = (first, number, rows, scale[0].index, scale[1])
    registers = [*range(first, first + count), scale[0].index]
    return lambda g: _cached(g, key, registers, lambda: scaled(g))


def _plain_operand(o: Operand, kind: str, rows: int, depth: int) -> Read:
    bits, decode = PLAIN_TYPES[kind]
    first, count = o.index, depth * bits // 32
    key, registers = (first, count, rows, list(PLAIN_TYPES).index(kind)), list(range(first, first + count))

    def get(g: Group) -> Array:
        return _cached(g, key, registers, lambda: to_matrix(decode(_registers(g, first, count)), rows))

    return get


def _multiply(i: Instruction, rows: int, a: Read, b: Read, integers: bool) -> Step:
    """Return the step: accumulators + A @ B."""
    count, first = rows * rows // 64, i.operands[0].index
    addend = i.operands[3]
    source = None if addend.is_constant else addend.index
    start = addend.value

    def step(g: Group) -> None:
        product: Array = to_accumulators(np.matmul(a(g), b(g).transpose(0, 2, 1)))
        if integers:
            old: Any = start if source is None else g.v[source : source + count].view(I32).astype(I64)
            g.v[first : first + count] = (product.astype(I64) + old).astype(U32)
        else:
            old = start if source is None else g.v[source : source + count].view(F32)
            g.v[first : first + count] = (product + old).astype(F32).view(U32)
        for register in range(first, first + count):
            g.versions[register] += 1
        g.mfma += g.width

    return step


def _mx(i: Instruction) -> Step:
    rows = 16 if "16x16" in i.name else 32
    scales: list[tuple[Operand, int] | None] = [None, None]
    if "scale" in i.name:
        low, high = i.modifiers.get("op_sel", [0, 0, 0]), i.modifiers.get("op_sel_hi", [1, 1, 1])
        scales = [(i.operands[4 + which], low[which] | high[which] << 1) for which in (0, 1)]
    numbers = i.modifiers.get("cbsz", 0), i.modifiers.get("blgp", 0)
    a, b = (_mx_operand(i.operands[1 + which], numbers[which], rows, scales[which]) for which in (0, 1))
    return _multiply(i, rows, a, b, integers=False)


def _plain(i: Instruction) -> Step:
    if any(i.modifiers.get(name) for name in ("cbsz", "abid", "blgp")):
        raise UnsupportedInstruction("cbsz, abid or blgp")
    _, _, out, size, *kinds = i.name.split("_")
    rows, _, depth = map(int, size.split("x"))
    per_lane = rows * depth // 64
    a, b = (_plain_operand(i.operands[1 + which], kinds[-which], rows, per_lane) for which in (0, 1))
    return _multiply(i, rows, a, b, integers=out == "i32")


for _size in ("16x16x128", "32x32x64"):
    define(f"v_mfma_f32_{_size}_f8f6f4 v_mfma_scale_f32_{_size}_f8f6f4")(_mx)
_SMALL_PAIRS = [f"{a}_{b}" for a in ("fp8", "bf8") for b in ("fp8", "bf8")]
for _size, _kinds in (
    ("16x16x32", ["bf16", "f16", *_SMALL_PAIRS]),
    ("32x32x16", ["bf16", "f16", *_SMALL_PAIRS]),
    ("16x16x16", ["bf16", "f16"]),
    ("32x32x8", ["bf16", "f16"]),
    ("16x16x4", ["f32"]),
    ("32x32x2", ["f32"]),
):
    define(" ".join(f"v_mfma_f32_{_size}_{kind}" for kind in _kinds))(_plain)
define(" ".join(f"v_mfma_i32_{size}_i8" for size in ("16x16x32", "32x32x16", "16x16x64", "32x32x32")))(_plain)
