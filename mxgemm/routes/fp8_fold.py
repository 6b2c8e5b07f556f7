"""Route ``fp8_fold``: a4w4 at fp8 speed on Hopper, with the numbers of the MX definition.

A is quantised to MXFP4 and folded to e4m3 with a base a row (``mxgemm.mx.fold`` says when that is exact), the weight
was folded by ``prepare()``, the vendor's fp8 GEMM applies both bases, and a last kernel recomputes the rows of A that
do not fold; it leaves at once where there are none. Nothing is read back to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.ambient import plain_products
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.fold import FOLD_ROWS
from mxgemm.mx.formats import E2M1, scale_addend
from mxgemm.mx.layouts import round_up, scale_row
from mxgemm.native.program import BIAS, OUT, SCRATCH, A, Place, ProductStep, Program, Step, fixed, joined
from mxgemm.native.vendor import VendorError, VendorProduct, run
from mxgemm.notices import say_once
from mxgemm.problem import Config, Problem, contiguity_refusal
from mxgemm.routes.base import Launch, Operands, Route
from mxgemm.routes.decode import decode_call, decode_refusal, weight_slices
from mxgemm.routes.fold_forms import FP8_FOLD, FP8_FOLD_COMPACT, FP8_FOLD_FNUZ
from mxgemm.routes.torch_mx import torch_build, version_of
from mxgemm.triton.launch import KernelCall, Launcher, hooks, overlap_option, overlaps
from mxgemm.triton.support import interpreting, next_power_of_two, size_refusal, triton_missing, wide_offsets

MAX_FAST_ACCUMULATION_K: Final = 4096
"""Up to this K the tensor core's own sums (14 bits of fraction) pass both gates whatever the scales, see lab notes."""
MAX_K: Final = 32768
"""A program holds whole rows of A in registers."""

_WIDE_PROGRAMS: Final = 132 * 16
_ALIGN: Final = 256


HIP_TORCH: Final = (2, 7)
"""The first torch whose scaled product takes a scale a row on gfx942 (pull request 144432)."""


@dataclass(frozen=True, slots=True)
class FoldConfig(Config):
    """How the product is run.

    Attributes:
        fast_accumulation: let the tensor core keep its sums for all of K; faster, and less exact.
    """

    fast_accumulation: bool = True


class FP8Fold(Route):
    """Quantise and fold, vendor fp8 GEMM with row and column scales, recompute what did not fold."""

    name = "fp8_fold"
    takes = 'bf16, fp16 or fp32 A, a_format "e2m1"; an e2m1 weight after prepare(), whose rows all fold'
    forms = (FP8_FOLD, FP8_FOLD_FNUZ, FP8_FOLD_COMPACT)
    config_type = FoldConfig
    accumulate_bits = 13

    def missing(self, machine: Machine) -> Refusal | None:
        """An sm_90, a gfx942 whose torch has the product (or the interpreter, to test it)."""
        if machine.arch not in ("sm_90", "gfx942", "cpu"):
            return Refusal("arch", machine.arch, "sm_90 or gfx942, whose fp8 products it was written for", "machine")
        if machine.arch == "gfx942" and (not torch.version.hip or (version_of(torch.__version__) or (0,)) < HIP_TORCH):
            return Refusal("torch", torch_build(), "2.7 or newer, built for ROCm", "installation")
        return triton_missing(machine)

    def can_implement(self, problem: Problem) -> Refusal | None:
        """MXFP4 times a folded MXFP4 weight."""
        p = problem
        if p.a_quantized or p.a_format != "e2m1":
            what = "quantised already" if p.a_quantized else p.a_format
            return Refusal("a", what, 'activations in bf16, fp16 or fp32 and a_format "e2m1"')
        if p.derived not in (form.kind for form in self.forms if p.arch in (*form.archs, "cpu")):
            found = f"prepared as {p.derived}" if p.derived else "not prepared"
            return Refusal("b", found, "an MXTensor after prepare(), whose rows all fold (mxgemm.mx.fold)")
        if p.k > MAX_K:
            return Refusal("k", p.k, f"at most {MAX_K}")
        return size_refusal(problem) or decode_refusal(problem) or contiguity_refusal(problem)

    def configs(self, problem: Problem) -> Sequence[FoldConfig]:
        """Fast accumulation where it passes both gates, and there is another."""
        return [FoldConfig(problem.derived != FP8_FOLD_FNUZ.kind and problem.k <= MAX_FAST_ACCUMULATION_K)]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """Refuse fast accumulation for a K at which it misses a gate, and where sums are in fp32 anyway."""
        assert isinstance(config, FoldConfig)
        if config.fast_accumulation and problem.derived == FP8_FOLD_FNUZ.kind:
            return Refusal("fast_accumulation", True, "False: gfx942 sums in fp32")
        if config.fast_accumulation and problem.k > MAX_FAST_ACCUMULATION_K:
            return Refusal("fast_accumulation", True, f"K <= {MAX_FAST_ACCUMULATION_K}, here {problem.k}")
        return None

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher."""
        assert isinstance(config, FoldConfig)
        return _Launch(problem, config.fast_accumulation)


class _Launch:
    """The chain for one problem: scratch offsets and kernels bound once."""

    def __init__(self, problem: Problem, fast: bool) -> None:
        p = self.problem = problem
        self.fast = fast
        self.quantize = Launcher(quantize_fold_call(p))
        self.wide_rows = Launcher(wide_rows_call(p))
        self.compact = p.derived == FP8_FOLD_COMPACT.kind
        self.fp8 = torch.float8_e4m3fnuz if p.derived == FP8_FOLD_FNUZ.kind else torch.float8_e4m3fn
        # The vendor's call wants N % 16 == 0 and contiguous results, and adds a bias of the output's dtype only.
        assert p.strides is not None
        vendor_adds_bias = p.has_bias and p.bias_dtype == p.out_dtype == torch.bfloat16
        self.bias_after = p.has_bias and not vendor_adds_bias
        self.slices = weight_slices(p, 1) if self.compact else [(0, p.n)]
        whole = len(self.slices) == 1 and p.n % FOLD_ROWS == 0
        self.direct = whole and p.strides.out == (p.n, 1) and not self.bias_after
        sizes = {stop - start for start, stop in self.slices} if self.compact else set()
        self.decode = {rows: Launcher(decode_call(p, rows, to_fp8=True)) for rows in sizes}
        self.base_at = round_up(p.m * p.k, _ALIGN)
        self.wide_at = self.base_at + round_up(4 * p.m, _ALIGN)
        self.weight_at = self.wide_at + round_up(4 * p.m, _ALIGN)
        most = max(round_up(stop - start, FOLD_ROWS) for start, stop in self.slices)
        self.nbytes = self.weight_at + (round_up(most * p.k, _ALIGN) if self.compact else 0)
        self.vendor: VendorProduct | Literal[False] | None = None

    def __call__(self, operands: Operands) -> None:
        with workspace.take(self.nbytes, operands.a.device) as arena:
            self._launch(operands, arena.memory)

    def _launch(self, operands: Operands, memory: Tensor) -> None:
        a, _, b, b_scales, bias, out, derived = operands
        p = self.problem
        folded, base, wide = self._parts(memory)
        self.quantize(a, folded, base, wide)
        left = folded.view(self.fp8), base.view(p.m, 1)
        if self.compact:
            for start, stop in self.slices:
                right = self._decode_slice(b, b_scales, derived[0], start, stop, memory[self.weight_at :])
                self._multiply(left, right, None if bias is None else bias[start:stop], out[:, start:stop], start, stop)
        else:
            elements = derived[0].as_strided((round_up(p.n, FOLD_ROWS), p.k), (p.k, 1))
            self._multiply(left, (elements, derived[1]), bias, out, 0, p.n)
        right = (b, b_scales) if self.compact else (derived[0], derived[1])
        self.wide_rows(wide, a, *right, out if bias is None else bias, out)

    def program(self, operands: Operands) -> Program | None:
        """Describe the launches, where the vendor's product writes the result and gives torch's bits."""
        if not (self.direct and operands.a.is_cuda) or self.vendor is False:
            return None
        if self.fp8 != torch.float8_e4m3fn:  # which is AMD's, and asked of torch
            return None
        if self.vendor is None:
            self.vendor = self._vendor_product(operands)
            if not self.vendor:
                return None
        a, _, b, b_scales, bias, out, derived = operands
        n = self.problem.n
        wide_at, base_at, weight_at = (SCRATCH + at for at in (self.wide_at, self.base_at, self.weight_at))
        bases = _fp32_bases(derived[0], n) if self.compact else derived[1]
        weight = weight_at if self.compact else fixed(derived[0].data_ptr())
        product = self._product(self.vendor, a.device, weight, bases)
        nbytes = self.nbytes + product.memory_bytes
        with workspace.take(nbytes, a.device) as arena:
            folded, base, wide = self._parts(arena.memory)
            steps: list[Step | None] = [self.quantize.step((a, folded, base, wide), (A, SCRATCH, base_at, wide_at))]
            if self.compact:
                decoded = arena.memory[self.weight_at :]
                tensors = b, b_scales, derived[0]
                places = *(fixed(tensor.data_ptr()) for tensor in tensors), weight_at
                steps.append(self.decode[n].step((*tensors, decoded), places))
            steps.append(product)
            read = (b, b_scales) if self.compact else derived
            places = wide_at, A, *(fixed(tensor.data_ptr()) for tensor in read), OUT if bias is None else BIAS, OUT
            steps.append(self.wide_rows.step((wide, a, *read, out if bias is None else bias, out), places))
        return joined(steps, scratch_bytes=nbytes, hooks=hooks(), owned=(bases,))

    def _product(self, vendor: VendorProduct, device: torch.device, weight: Place, bases: Tensor) -> ProductStep:
        bias = BIAS if self.problem.has_bias else None
        base, memory = SCRATCH + self.base_at, SCRATCH + self.nbytes
        return vendor.step(device, weight, bases.data_ptr(), SCRATCH, base, bias, OUT, memory)

    def _vendor_product(self, operands: Operands) -> VendorProduct | Literal[False]:
        """Return the product asked of the library directly, if it gives the bits that it gives through torch."""
        p = self.problem
        a, _, b, b_scales, bias, _, derived = operands
        bias_dtype = None if bias is None else bias.dtype
        vendor = VendorProduct(p.m, p.n, p.k, self.fp8, p.out_dtype, bias_dtype, fast=self.fast)
        try:
            bases = _fp32_bases(derived[0], p.n) if self.compact else derived[1]
            step = self._product(vendor, a.device, SCRATCH, bases)
            with workspace.take(self.nbytes + step.memory_bytes, a.device) as arena:
                folded, base, wide = self._parts(arena.memory)
                self.quantize(a, folded, base, wide)
                if self.compact:
                    right = self._decode_slice(b, b_scales, derived[0], 0, p.n, arena.memory[self.weight_at :])
                else:
                    right = derived[0].as_strided((p.n, p.k), (p.k, 1)), bases
                ours, theirs = (torch.empty((p.m, p.n), dtype=p.out_dtype, device=a.device) for _ in range(2))
                self._multiply((folded.view(self.fp8), base.view(p.m, 1)), right, bias, theirs, 0, p.n)
                run(
                    step, right[0].data_ptr(), folded.data_ptr(), base.data_ptr(),
                    0 if bias is None else bias.data_ptr(), ours.data_ptr(), arena.address + self.nbytes,
                    workspace.raw_stream(a.device),
                )  # fmt: skip
        except VendorError as error:
            say_once(f"fp8_fold multiplies through torch at every call: {error}")
            return False
        same = torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        return vendor if same else False

    def _parts(self, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return A in e4m3, its bases and which of its rows do not fold."""
        p = self.problem
        return (
            memory[: p.m * p.k].view(p.m, p.k),
            memory[self.base_at : self.base_at + 4 * p.m].view(torch.float32),
            memory[self.wide_at : self.wide_at + 4 * p.m].view(torch.int32),
        )

    def _decode_slice(
        self, b: Tensor, b_scales: Tensor, base: Tensor, start: int, stop: int, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        k, rows = self.problem.k, stop - start
        padded = round_up(rows, FOLD_ROWS)
        weight = memory[: padded * k].view(padded, k)
        part = base[start:stop]
        self.decode[rows](b[start:stop], b_scales[scale_row(self.problem.scale_layout, start) :], part, weight)
        return weight, _fp32_bases(part, padded)

    def _multiply(
        self,
        left: tuple[Tensor, Tensor],
        right: tuple[Tensor, Tensor],
        bias: Tensor | None,
        out: Tensor,
        start: int,
        stop: int,
    ) -> None:
        """``out = left @ right.T + bias`` for one slice of columns."""
        p = self.problem
        data, base = left
        weight, scale = right[0].view(self.fp8), right[1].view(1, -1)
        if self.direct:
            with plain_products(data.device.type):
                torch._scaled_mm(
                    data, weight.t(), scale_a=base, scale_b=scale, bias=bias, out_dtype=p.out_dtype,
                    use_fast_accum=self.fast, out=out,
                )  # fmt: skip
            return
        vendor_bias = None if self.bias_after or bias is None else _padded(bias, weight.shape[0])
        dtype = torch.float32 if self.bias_after else p.out_dtype
        with plain_products(data.device.type):
            product = torch._scaled_mm(
                data, weight.t(), scale_a=base, scale_b=scale, bias=vendor_bias, out_dtype=dtype,
                use_fast_accum=self.fast,
            )[:, : stop - start]  # fmt: skip
        if self.bias_after and bias is not None:
            product += bias.to(torch.float32)
        out.copy_(product)


def _fp32_bases(base: Tensor, rows: int) -> Tensor:
    """Return exponent bytes as fp32, 1 for rows behind them."""
    scale = torch.ones(rows, dtype=torch.float32, device=base.device)
    scale[: len(base)] = (base.to(torch.int32) << 23).view(torch.float32)
    return scale


def quantize_fold_call(problem: Problem) -> KernelCall:
    """Describe the launch of ``quantize_fold_kernel``: x, folded, base, unfolded."""
    from mxgemm.triton.kernels.fold import quantize_fold_kernel

    p, s = problem, problem.strides
    assert s is not None
    block_k = max(32, next_power_of_two(p.k))
    block_m = max(1, min(next_power_of_two(p.m), 2048 // block_k))
    pairs = p.arch == "sm_90" and p.a_dtype == torch.bfloat16 and s.a[1] == 1 and s.a[0] % 2 == 0 and p.aligned
    # Sixty-four bf16 a lane were quickest of 8 to 64 (docs/lab-notes.md); fp32 arithmetic needs more registers each.
    elements_a_lane = 64 if pairs else 16
    constants = {
        "ADDEND": scale_addend(E2M1, p.scale_rounding),
        "PAIRS": pairs,
        "BLOCK_M": block_m,
        "BLOCK_K": block_k,
        "EVEN": p.k == block_k and p.m % block_m == 0,
        "WIDE": wide_offsets(p),
        "FNUZ": p.derived == FP8_FOLD_FNUZ.kind,
        "OVERLAP": overlaps(p.machine),
        "INTERPRETED": interpreting(),
    }
    warps = min(32, max(2, block_m * block_k // (32 * elements_a_lane)))
    return KernelCall(
        quantize_fold_kernel,
        (p.a_dtype, torch.uint8, torch.float32, torch.int32),
        (p.m, p.k, *s.a),
        constants,
        {"num_warps": warps, **overlap_option(p.machine)},
        (-(-p.m // block_m), 1, 1),
    )


def wide_rows_call(problem: Problem) -> KernelCall:
    """Describe the launch that recomputes wide rows: unfolded, a, weight, its scales or bases, bias, out."""
    from mxgemm.triton.kernels.fold import wide_rows_folded_kernel, wide_rows_kernel

    p, s = problem, problem.strides
    assert s is not None
    compact = p.derived == FP8_FOLD_COMPACT.kind
    addend, wide = scale_addend(E2M1, p.scale_rounding), {"WIDE": wide_offsets(p)}
    tail = {"OVERLAP": overlaps(p.machine), "INTERPRETED": interpreting()}
    if compact:
        block_m, block_n = 64, 64
        layouts = {"PRESHUFFLED": p.weight_layout == "preshuffled", "SCALE_ORDER": p.scale_layout}
        blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": 128, "EVEN_N": p.n % block_n == 0}
        constants = {"ADDEND": addend, **layouts, "HAS_BIAS": p.has_bias, **blocks, **wide, **tail}
        scalars: tuple[int, ...] = (p.m, p.n, p.k, *s.a, *s.b, *s.b_scales, *s.out, s.bias)
    else:
        block_m, block_n = 64, 128
        blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": 64}
        fnuz = {"FNUZ": p.derived == FP8_FOLD_FNUZ.kind}
        constants = {"ADDEND": addend, "HAS_BIAS": p.has_bias, **blocks, **wide, **fnuz, **tail}
        scalars = (p.m, p.n, p.k, *s.a, *s.out, s.bias)
    row_tiles = -(-p.m // block_m)
    # Mostly these programs look at their flags and leave: no more of them than run at once.
    programs = max(1, min(-(-p.n // block_n), _WIDE_PROGRAMS // row_tiles))
    return KernelCall(
        wide_rows_kernel if compact else wide_rows_folded_kernel,
        (
            *(torch.int32, p.a_dtype, torch.uint8, torch.uint8 if compact else torch.float32),
            *(p.bias_dtype if p.has_bias else p.out_dtype, p.out_dtype),
        ),
        scalars,
        constants,
        {"num_warps": 4, **overlap_option(p.machine)},
        (row_tiles, programs, 1),
    )


def _padded(bias: Tensor, size: int) -> Tensor:
    return bias if bias.numel() == size else torch.nn.functional.pad(bias, (0, size - bias.numel()))
