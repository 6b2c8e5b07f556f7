"""The MXFP4 GEMM of ``kernels/w4_mma.cu`` for small M: its configuration, what is legal and why, macros and arguments.

No tensors and no compiler here: a problem and a configuration become macros, a grid and the constant part of the
arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from mxgemm.cuda import operands
from mxgemm.cuda.operands import (
    ARCH,
    CHUNK,
    SHARED_BYTES,
    a_vector,
    chunks,
    fragments,
    macros_of_a,
    operand_clauses,
    out_vector,
    rounded_values,
    strides_of,
    weight_vector,
)
from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.hip.kernarg import Layout
from mxgemm.mx.layouts import FRAGMENTS, round_up
from mxgemm.problem import Config, Problem, contiguity_refusal

SOURCE: Final = "w4_mma.cu"
KERNEL: Final = "w4_mma"
ROUND_SOURCE: Final = "round_a.cu"
ROUND_KERNEL: Final = "round_a"

POINTERS: Final = Layout("PPPPPP")
"""a, rounded a (or 0), weight, scales, bias, out."""
CONSTANTS: Final = Layout("q" * 15 + "i" * 6)
"""The rest of the kernel's ``Arguments``: strides, then sizes and dtypes."""

MAX_M: Final = 32
TILE_N: Final = 16
"""Rows of the matrix instruction, here of the weight."""
TILE_M: Final = 8
"""Its columns, here rows of A."""
LANES: Final = KNOWN_MACHINES[ARCH].wave_size
TILES: Final = (1, 2, 3, 4, 5, 6)
MAX_WARPS: Final = 24
MAX_DEPTH: Final = 4
MAX_CHUNKS: Final = 64
"""Of a warp: a bit each says whether it is left to the kernel's second loop."""
MAX_K: Final = CHUNK * MAX_CHUNKS * 12
"""With 12 warps along K there are registers for every M."""
MAX_N: Final = 1 << 30
REGISTERS: Final = 128 * KNOWN_MACHINES[ARCH].registers
"""Of a multiprocessor."""
MAX_REGISTERS: Final = 255
GRAIN: Final = 8
"""Registers of a lane are handed out by so many."""
_OTHER_REGISTERS: Final = 20
"""Decoded weights, counters, constants; this and the next three were seen in compiled code without spills."""
_STRIDES: Final = 16
"""Strides of weights as they lie, and what they are multiplied into, twice that for more than so many tiles."""
_FEW_TILES: Final = 4
_ROUNDING: Final = 6
"""Of A in registers."""
_ROUNDING_SHARED: Final = 26
"""And of a block in shared memory."""
_LEAST_REGISTERS: Final = 72
"""The second loop's, and what it takes more where K has a tail."""
_TAIL: Final = 4
_SPOTS: Final = 12
"""Where results lie, kept from the beginning, with some to spare: what has fewer computes that at the end."""
MAX_RESIDENT: Final = 8
MAX_SLOTS: Final = 8
MAX_SPLITS: Final = 8
"""Workgroups that any Hopper GPU can run as a cluster."""


@dataclass(frozen=True, slots=True)
class MmaConfig(Config):
    """How a workgroup divides its work.

    Attributes:
        tiles: tiles of 16 weight rows of a warp, which share what it rounded of A.
        warps_n: warps of a workgroup along N.
        warps_k: warps of a workgroup that share K; their sums are added in order.
        depth: chunks of the weight that a warp has in flight.
        a_ahead: A's chunks are in flight with them.
        overlap: the first launch may begin before earlier ones have ended and waits for them itself (programmatic
            dependent launch).
        warps_m: warps of a workgroup along M, which read the same weights.
        a_before: a launch of its own rounds A, once for all workgroups; the other overlaps it.
        a_codes: and makes e2m1 codes and scales of it, which each workgroup decodes, a quarter of the bytes of bf16.
        resident: workgroups for which a multiprocessor's registers must do, so that it hides loads behind more warps; 0
            leaves registers to the compiler.
        a_slots: chunks of A that a warp has in shared memory at once, 0 for none: rows are copied whole and rounded
            there, and what is in flight takes no registers. A is bf16 in contiguous rows then. Warps along N, which
            multiply the same chunks, share these and the work.
        prefetch: a workgroup calls all that it reads of the weight to L2 before anything else, also before it waits for
            earlier launches; of a weight in fragment order.
        splits: workgroups that share K, a cluster; each adds the sums of all for an equal part of results.
        in_turn: warps call for their first chunks four at a time, so that the first ones' come before the last ones'
            and are multiplied meanwhile.
    """

    tiles: int = 1
    warps_n: int = 1
    warps_k: int = 4
    depth: int = 2
    a_ahead: bool = True
    overlap: bool = False
    warps_m: int = 1
    a_before: bool = False
    a_codes: bool = False
    resident: int = 0
    a_slots: int = 0
    prefetch: bool = False
    splits: int = 1
    in_turn: bool = False

    @property
    def warps(self) -> int:
        """Warps of a workgroup."""
        return self.warps_n * self.warps_m * self.warps_k

    @property
    def along_k(self) -> int:
        """Warps that share K, of all the cluster's workgroups."""
        return self.warps_k * self.splits


def mma_refusal(problem: Problem, config: MmaConfig | None = None) -> Refusal | None:
    """Say why the kernel cannot take ``problem`` (with ``config``, if one is given), or None if it can.

    The machine and its compiler are not asked about: see ``mxgemm.routes.w4_mma``.
    """
    refusal = next(_problem_clauses(problem), None) or contiguity_refusal(problem)
    return refusal if refusal is not None or config is None else config_refusal(problem, config)


def config_refusal(problem: Problem, config: MmaConfig) -> Refusal | None:
    """Say why a problem that the kernel takes does not go with ``config``, or None if it does."""
    return next(_config_clauses(problem, config), None)


def _problem_clauses(p: Problem) -> Iterator[Refusal]:
    """Yield what no configuration can change."""
    yield from operand_clauses(p)
    if p.weight_layout == FRAGMENTS and not p.aligned:
        yield Refusal("b", "not aligned", "operands that begin at multiples of 16 bytes")
    if p.m > MAX_M:
        yield Refusal("m", p.m, f"at most {MAX_M}: sums of all rows are in registers")
    if p.k > MAX_K:
        yield Refusal("k", p.k, f"at most {MAX_K}: 12 warps of {MAX_CHUNKS} chunks of {CHUNK}")
    if p.n > MAX_N:
        yield Refusal("n", p.n, f"at most {MAX_N}: rows are counted in 32 bits")


def _config_clauses(p: Problem, c: MmaConfig) -> Iterator[Refusal]:
    if c.tiles not in TILES:
        yield Refusal("tiles", c.tiles, f"one of {', '.join(map(str, TILES))}")
        return
    for field, value, most in (("warps_n", c.warps_n, MAX_WARPS), ("warps_k", c.warps_k, MAX_WARPS)):
        if not 1 <= value <= most:
            yield Refusal(field, value, f"1 to {most}")
            return
    if c.warps_m not in (1, 2, 4) or c.warps_m > tiles_m(p):
        yield Refusal("warps_m", c.warps_m, f"a divisor of the {tiles_m(p)} tiles of A's rows")
        return
    if c.a_codes and not (c.a_before and p.a_format == "e2m1"):
        yield Refusal("a_codes", True, 'a_before and a_format "e2m1"')
    if not 0 <= c.a_slots <= MAX_SLOTS:
        yield Refusal("a_slots", c.a_slots, f"0 to {MAX_SLOTS}")
        return
    if c.a_slots and (c.a_before or not c.a_ahead or p.a_dtype != torch.bfloat16 or not a_vector(p)):
        yield Refusal("a_slots", c.a_slots, "a_ahead, not a_before, and aligned contiguous rows of A in bfloat16")
    if c.prefetch and not fragments(p):
        yield Refusal("prefetch", True, "a weight in fragment order: what a workgroup reads lies together")
    if c.in_turn and (c.warps_n > 1 or c.a_before or not c.a_ahead):
        yield Refusal("in_turn", True, "a_ahead, not a_before, and one warp along N, whose barriers others would be")
    if c.warps > MAX_WARPS:
        yield Refusal("warps", c.warps, f"at most {MAX_WARPS} of a workgroup")
    if not 1 <= c.depth <= MAX_DEPTH:
        yield Refusal("depth", c.depth, f"1 to {MAX_DEPTH}")
        return
    if not 1 <= c.splits <= min(MAX_SPLITS, chunks(p)):
        yield Refusal("splits", c.splits, f"1 to {MAX_SPLITS}, a chunk of {CHUNK} each at least")
        return
    if chunks(p) > MAX_CHUNKS * c.along_k:
        least = -(-chunks(p) // (MAX_CHUNKS * c.splits))
        yield Refusal("warps_k", c.warps_k, f"at least {least}: a warp has {MAX_CHUNKS} chunks")
    if not 0 <= c.resident <= MAX_RESIDENT:
        yield Refusal("resident", c.resident, f"0 to {MAX_RESIDENT}")
        return
    most = registers_allowed(c)
    if registers_needed(p, c) > most:
        yield Refusal("registers", registers_needed(p, c), f"at most {most} a lane with this many warps")
    if shared_bytes(p, c) > SHARED_BYTES // max(1, c.resident):
        needed = f"at most {SHARED_BYTES}, of all that are resident: the sums of each warp"
        yield Refusal("shared memory", f"{shared_bytes(p, c)} bytes", needed)


def tiles_m(p: Problem) -> int:
    """Return the tiles of 8 rows of A of an instance: 1, 2 or 4."""
    return 1 if p.m <= TILE_M else 2 if p.m <= 2 * TILE_M else 4


def at_once(p: Problem, c: MmaConfig) -> bool:
    """Say whether all chunks are in flight at once: no warp comes back for more."""
    return chunks(p) <= c.along_k * c.depth


def registers_needed(p: Problem, c: MmaConfig) -> int:
    """Return a bound of the registers of a lane: sums, what is in flight, A's words, places, decoded weights."""
    of_warp = tiles_m(p) // c.warps_m
    least = _LEAST_REGISTERS + (_TAIL if p.k % CHUNK else 0)
    if fragments(p) and c.a_slots and (c.depth == 1 or (c.depth == 2 and at_once(p, c))):
        return max(least, (9 * c.depth + 4 * of_warp) * c.tiles + _beside_slots(p, c, of_warp))
    weights = 9 * c.tiles if fragments(p) else 10 * c.tiles
    block = 5 if c.a_codes else 0 if c.a_slots else 16 if c.a_before else 8 * p.a_dtype.itemsize
    if c.a_slots:
        opened = 6 * of_warp if p.a_format == "bf16" else 4 * of_warp + _ROUNDING_SHARED
    else:
        opened = of_warp * ((4 if c.a_ahead else 9) if c.a_codes else 0 if c.a_before and c.a_ahead else 16)
    flight = weights + (of_warp * block if c.a_ahead else 0)
    places = (1 if c.a_before else 2) * of_warp + (2 * -(-c.tiles // 2) if fragments(p) else 8 * c.tiles)
    other = (
        _OTHER_REGISTERS
        + 2 * (c.tiles + c.depth - 1)
        + (0 if fragments(p) else _STRIDES if c.tiles <= _FEW_TILES else 2 * _STRIDES)
        + (0 if c.a_before else _ROUNDING)
    )
    sums = 4 * c.tiles * of_warp
    return max(least, sums + c.depth * flight + opened + places + other)


def _beside_slots(p: Problem, c: MmaConfig, of_warp: int) -> int:
    """Return what is needed beside sums and a weight in fragment order where A is in shared memory.

    Counted in 400 compiled instances; less than the parts would say, for the compiler holds them one after the other.
    """
    rounded = of_warp if p.a_format != "bf16" else 0
    if at_once(p, c):
        return 30 + 4 * of_warp if c.depth > 1 else 25 + 2 * of_warp + (22 if rounded > 2 else rounded > 0)
    return 30 + 3 * c.tiles + 4 * of_warp + (12 if rounded > 2 else 0)


def registers_allowed(c: MmaConfig) -> int:
    """Return how many registers a lane may have: of its scheduler's, by the warps that share them."""
    schedulers = KNOWN_MACHINES[ARCH].simds
    warps = -(-c.warps * max(1, c.resident) // schedulers)
    return min(MAX_REGISTERS, REGISTERS // schedulers // (LANES * warps) // GRAIN * GRAIN)


def shared_bytes(p: Problem, c: MmaConfig) -> int:
    """Return the bytes of shared memory of a workgroup: of each warp A's chunks, or its sums, which take their place.

    There is an fp32 sum for each row of A and weight row. Behind them are a barrier and sums of a
    cluster's other workgroups.
    """
    of_warp = tiles_m(p) // c.warps_m * TILE_M
    sums, of_a = 4 * of_warp * (TILE_N * c.tiles + 4), 2 * CHUNK * of_warp * c.a_slots
    received = 4 + round_up(TILE_N * c.tiles * c.warps_n * p.m, 4 * c.splits) if c.splits > 1 else 0
    return c.warps * max(sums, round_up(-(-of_a // c.warps_n), 64)) + 4 * received


def rounded_bytes(p: Problem, c: MmaConfig) -> int:
    """Return the scratch that rounded A takes."""
    values = rounded_values(p, round_up(p.m, TILE_M))
    return values * 17 // 32 if c.a_codes else 2 * values


def defines(p: Problem, c: MmaConfig) -> dict[str, int | str]:
    """Return the macros that make the kernel of a format, a dtype, a class of strides and a configuration."""
    return {
        **macros_of_a(p),
        "SATURATES": int(_saturates(p)),
        "MT": tiles_m(p) // c.warps_m,
        "TILES": c.tiles,
        "WARPS_N": c.warps_n,
        "WARPS_M": c.warps_m,
        "WARPS_K": c.warps_k,
        "DEPTH": c.depth,
        "A_AHEAD": int(c.a_ahead),
        "A_VECTOR": int(a_vector(p)),
        "W_VECTOR": int(weight_vector(p)),
        "OUT_VECTOR": int(p.n % 4 == 0 and out_vector(p) == 1),
        "SPOTS_FIRST": int(c.resident > 0 and registers_needed(p, c) + _SPOTS <= registers_allowed(c)),
        "TAIL": int(p.k % CHUNK != 0),
        "OVERLAP": int(c.overlap and not c.a_before),
        "A_BEFORE": int(c.a_before),
        "A_CODES": int(c.a_codes),
        "RESIDENT": c.resident,
        "SPLITS": c.splits,
        **dict.fromkeys(("FRAGMENTS", "NEIGHBOURS"), int(fragments(p))),
        "A_SLOTS": c.a_slots,
        "A_WHOLE": int(c.a_slots > 0 and chunks(p) <= c.a_slots * c.along_k),
        "PREFETCH": int(c.prefetch),
        "ONCE": int(at_once(p, c)),
        "IN_TURN": int(c.in_turn),
    }


def round_defines(p: Problem, c: MmaConfig) -> dict[str, int | str]:
    """Return the macros of the launch that rounds A."""
    return {
        **macros_of_a(p),
        "A_VECTOR": int(a_vector(p)),
        "A_CODES": int(c.a_codes),
        "NEIGHBOURS": int(fragments(p)),
        "OVERLAP": int(c.overlap),
    }


def _saturates(p: Problem) -> bool:
    """Say whether a scale rule leaves values above the format's largest, by more than rounding takes away.

    ``ceil`` and ``rceil`` leave none; ``even`` leaves 6.99 of e2m1, which rounds to 6, and 495 of e4m3, which would
    round to 480.
    """
    return p.scale_rounding == "floor" or (p.scale_rounding == "even" and p.a_format == "e4m3")


def constants(p: Problem) -> bytes:
    """Return all arguments but the pointers."""
    return CONSTANTS.pack(*strides_of(p).a, *operands.constants(p))


def grid(p: Problem, c: MmaConfig) -> tuple[int, int, int]:
    """Return the workgroups, all along N: those of a cluster, which have the same weight rows, side by side."""
    return -(-p.n // (TILE_N * c.tiles * c.warps_n)) * c.splits, 1, 1


def round_grid(p: Problem) -> tuple[int, int, int]:
    """Return the workgroups that round A."""
    return operands.round_grid(p, p.m)


def block(c: MmaConfig) -> tuple[int, int, int]:
    """Return the threads of a workgroup."""
    return LANES * c.warps, 1, 1
