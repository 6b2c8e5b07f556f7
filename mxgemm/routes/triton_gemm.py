"""What the Triton GEMM routes share: asking, guessing a tile, and launching one kernel or two."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from mxgemm import workspace
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.layouts import preshuffle_refusal
from mxgemm.native.program import BIAS, COUNTERS, OUT, SCRATCH, A, Program, fixed, joined
from mxgemm.problem import Config, Problem, contiguity_refusal
from mxgemm.routes.base import Launch, Operands, Route
from mxgemm.triton.launch import KernelCall, Launcher, hooks
from mxgemm.triton.releases import old_release
from mxgemm.triton.scaled_dot import first_tile
from mxgemm.triton.support import Kernels, interpreting, size_refusal, triton_missing, wide_offsets
from mxgemm.triton.tile import REDUCE_BLOCK_N, fill, tile_candidates, tile_refusal, tiles
from mxgemm.triton.tile_config import TileConfig


class TritonGemm(Route):
    """A route whose launch is one tiled kernel, and with split-K a second that adds the partial sums."""

    config_type = TileConfig
    kernels: ClassVar[Kernels] = "quantised"
    """Kind of A in the kernel's scaled dot."""

    @abstractmethod
    def format_refusal(self, problem: Problem) -> Refusal | None:
        """Say why the operands' formats are not this route's, or None."""

    @abstractmethod
    def main_call(self, problem: Problem, config: TileConfig) -> KernelCall:
        """Describe the GEMM kernel's launch."""

    def missing(self, machine: Machine) -> Refusal | None:
        """A GPU that Triton compiles a scaled dot for."""
        return triton_missing(machine, self.kernels)

    def can_implement(self, problem: Problem) -> Refusal | None:
        """Any shape and layout, in this route's formats."""
        refusal = self.format_refusal(problem) or size_refusal(problem)
        if refusal:
            return refusal
        if problem.weight_layout == "preshuffled":
            reason = preshuffle_refusal(problem.n, problem.k // problem.b.pack)
            if reason:
                return Refusal("weight_layout", "preshuffled", f"another shape: {reason}")
        return contiguity_refusal(problem) or self.check_config(problem, self.configs(problem)[0])

    def configs(self, problem: Problem) -> Sequence[TileConfig]:
        """Return a tile that fits the shape, and splits K where tiles are few and K is long."""
        if problem.arch == "gfx950":
            return [_guess_gfx950(problem)]
        guess = first_tile(problem)
        if guess is not None:
            return [guess]
        # Decoding to bf16 fills registers and shared memory with the decoded tile: keep it small.
        return [TileConfig(block_m=16 if problem.m <= 16 else 64, block_k=128)]

    def candidates(self, problem: Problem) -> Sequence[TileConfig]:
        """See :func:`mxgemm.triton.tile.tile_candidates`."""
        return tile_candidates(problem)

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """See :func:`mxgemm.triton.tile.tile_refusal`."""
        assert isinstance(config, TileConfig)
        return tile_refusal(problem, config)

    def calls(self, problem: Problem, config: TileConfig) -> list[KernelCall]:
        """Describe every launch of a problem, in order."""
        main = self.main_call(problem, config)
        if config.split_k == 1 or config.one_launch:
            return [main]
        return [main, _reduce_call(problem, config)]

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher."""
        assert isinstance(config, TileConfig)
        return _OneLaunch(self, problem, config) if config.split_k == 1 else _SplitLaunch(self, problem, config)


class _OneLaunch:
    """The one launch of a tile that does not split K."""

    def __init__(self, route: TritonGemm, problem: Problem, config: TileConfig) -> None:
        self._main, *self._rest = [Launcher(call) for call in route.calls(problem, config)]

    def __call__(self, operands: Operands) -> None:
        """Launch on the current stream of the operands' device."""
        a, a_scales, b, b_scales, bias, out, _ = operands
        left = (a,) if a_scales is None else (a, a_scales)
        self._main(*left, b, b_scales, out if bias is None else bias, out, out, out)  # no partials, no counters

    def program(self, operands: Operands) -> Program | None:
        """Describe the launch on such operands, once there has been one."""
        a, _, b, b_scales, bias, out, _ = operands
        tensors = a, b, b_scales, out if bias is None else bias, out, out, out
        weight = fixed(b.data_ptr()), fixed(b_scales.data_ptr())
        step = self._main.step(tensors, (A, *weight, OUT if bias is None else BIAS, OUT, OUT, OUT))
        return None if step is None else Program((step,), hooks=hooks())


class _SplitLaunch(_OneLaunch):
    """Partial sums in scratch, added by a launch of their own or by the last program of each tile."""

    def __init__(self, route: TritonGemm, problem: Problem, config: TileConfig) -> None:
        super().__init__(route, problem, config)
        self._nbytes = 4 * config.split_k * problem.m * problem.n
        self._counters = tiles(problem, config) if config.one_launch else 0

    def __call__(self, operands: Operands) -> None:
        """Launch on the current stream of the operands' device."""
        a, a_scales, b, b_scales, bias, out, _ = operands
        left = (a,) if a_scales is None else (a, a_scales)
        added = out if bias is None else bias
        with workspace.take(self._nbytes, out.device, counters=self._counters) as arena:
            partials = arena.memory.view(torch.float32)
            self._main(*left, b, b_scales, added, out, partials, arena.counters if self._counters else out)
            for reduce in self._rest:
                reduce(partials, added, out)

    def program(self, operands: Operands) -> Program | None:
        """Describe the launches."""
        a, _, b, b_scales, bias, out, _ = operands
        added, where = (out, OUT) if bias is None else (bias, BIAS)
        weight = fixed(b.data_ptr()), fixed(b_scales.data_ptr())
        with workspace.take(self._nbytes, out.device, counters=self._counters) as arena:
            partials = arena.memory.view(torch.float32)
            counters, counted = (arena.counters, COUNTERS) if self._counters else (out, OUT)
            steps = [
                self._main.step(
                    (a, b, b_scales, added, out, partials, counters), (A, *weight, where, OUT, SCRATCH, counted)
                ),
                *(reduce.step((partials, added, out), (SCRATCH, where, OUT)) for reduce in self._rest),
            ]
        return joined(steps, scratch_bytes=self._nbytes, counters=self._counters, hooks=hooks())


def tensor_dtypes(problem: Problem, config: TileConfig, bias: torch.dtype) -> tuple[torch.dtype, ...]:
    """Return the dtypes of a main kernel's tensors, in order: operands, bias, out, partials, counters."""
    a = (problem.a_dtype, torch.uint8) if problem.a_quantized else (problem.a_dtype,)
    split = config.split_k > 1
    return (
        *a,
        torch.uint8,
        torch.uint8,
        bias if problem.has_bias else problem.out_dtype,
        problem.out_dtype,
        torch.float32 if split else problem.out_dtype,
        torch.int32 if split and config.one_launch else problem.out_dtype,
    )


def _reduce_call(problem: Problem, config: TileConfig) -> KernelCall:
    from mxgemm.triton.kernels.split_k import reduce_partials_kernel

    strides = problem.strides
    assert strides is not None
    constants = {
        "SPLIT_K": config.split_k,
        "HAS_BIAS": problem.has_bias,
        "BLOCK_N": REDUCE_BLOCK_N,
        "WIDE": wide_offsets(problem),
        "INTERPRETED": interpreting(),
    }
    return KernelCall(
        reduce_partials_kernel,
        (torch.float32, torch.float32 if problem.has_bias else problem.out_dtype, problem.out_dtype),
        (problem.m, problem.n, *strides.out, strides.bias),
        constants,
        {"num_warps": 4},
        (problem.m, -(-problem.n // REDUCE_BLOCK_N), 1),
    )


def _guess_gfx950(problem: Problem) -> TileConfig:
    old = old_release(problem.arch)
    narrow = TileConfig(block_m=16, block_n=32, block_k=512)
    prepared = (problem.weight_layout, problem.scale_layout) == ("preshuffled", "shuffled")
    if (
        problem.k == narrow.block_k
        and prepared
        and problem.a_dtype == torch.bfloat16
        and problem.a_format == "e2m1"
        and tiles(problem, narrow) <= problem.machine.cu_count
        and (old is None or narrow.block_k == old.most("block_k", narrow.block_k))
    ):
        return narrow  # all of K in flight at once, on four times the CUs (docs/lab-notes.md)
    # 16 x 128 x 256 with four waves issues fewest instructions of the tiles that were compiled (docs/lab-notes.md):
    # each wave takes 32 columns, whose shuffled scales are one word a lane. More rows pay once tiles share a weight.
    block_m = 16 if problem.m <= 64 else 32
    block_k = 256 if problem.k >= 256 else 128
    # Room for four waves a SIMD, where that was seen to compile without spilling; else the compiler decides.
    two_bytes_to_fp4 = problem.a_format == "e2m1" and problem.a_dtype.itemsize == 2
    waves = (4 if block_m == 16 else 3) if two_bytes_to_fp4 else 0
    guess = TileConfig(block_m=block_m, block_n=128, block_k=block_k, waves_per_eu=waves)
    if old is not None:
        stages = old.quantized_stages if problem.a_quantized else old.num_stages
        guess = replace(guess, num_stages=stages, waves_per_eu=old.most("waves_per_eu", waves))
    return fill(problem, guess)
