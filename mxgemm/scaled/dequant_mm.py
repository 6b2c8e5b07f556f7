"""Route ``dequant_mm`` of ``quant_gemm``: B times its E8M0 scales in bf16, by one launch, then the vendor's product.

A power of two changes no mantissa: the weight in bf16 is exact but for what leaves bf16's range.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mxgemm.ambient import plain_products
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.scaled.formats import FORMATS
from mxgemm.scaled.problem import Operands, QuantProblem
from mxgemm.scaled.route import Launch, QuantRoute
from mxgemm.triton.launch import KernelCall, Launcher
from mxgemm.triton.support import interpreting, next_power_of_two, triton_missing

_BLOCK: Final = 4096
"""Elements of a workgroup."""
_BLOCK_K: Final = 512


class DequantMM(QuantRoute):
    """A launch for B, then cuBLAS or hipBLASLt."""

    name = "dequant_mm"
    takes = "bf16 by bf16 or fp8 with E8M0 scales of one row, to bf16, on a GPU"

    def missing(self, machine: Machine) -> Refusal | None:
        """A GPU, and Triton."""
        if machine.arch == "cpu":
            return Refusal("arch", "cpu", "a GPU", "machine")
        return triton_missing(machine)

    def can_implement(self, problem: QuantProblem) -> Refusal | None:
        """Whole groups of single rows."""
        p, (n, k) = problem, problem.scheme.b_group
        if not p.scheme.b_powers or n != 1:
            return Refusal("scheme", p.scheme, "E8M0 scales of one row of B")
        if p.b_format not in ("bf16", "e4m3", "e5m2"):
            return Refusal("b.format", p.b_format, "bf16, e4m3 or e5m2")
        if p.groups:
            return Refusal("groups", p.groups, "one problem")
        if p.k % k:
            return Refusal("k", p.k, f"a multiple of the group, {k}")
        if p.out_dtype != torch.bfloat16 or p.bias_dtype is not None:
            return Refusal("out_dtype", p.out_dtype, "bf16 and no bias")
        return None

    def fills_output(self, problem: QuantProblem) -> bool:
        """The library's result is fresh memory of its own."""
        del problem
        return False

    def bind(self, problem: QuantProblem) -> Launch:
        """Return the launcher."""
        p, st = problem, problem.strides
        decode = Launcher(scale_call(p.n, p.k, p.b_format, p.scheme.b_group[1], st.b, st.b_scales))

        def launch(operands: Operands) -> Tensor:
            a, _, b, b_scales, _, _, _ = operands
            assert b_scales is not None
            weight = torch.empty((p.n, p.k), dtype=torch.bfloat16, device=b.device)
            decode(b, b_scales, weight)
            with plain_products("cuda"):
                return a @ weight.t()

        return launch


def scale_call(
    n: int, k: int, fmt: str, group: int, strides: tuple[int, int], scale_strides: tuple[int, int]
) -> KernelCall:
    """Return the launch that makes bf16 ``[n, k]``, contiguous, of elements, scales and fresh memory.

    Args:
        n: rows of B.
        k: elements of a row.
        fmt: "bf16", or an fp8 format as bytes.
        group: elements of a row that share a scale.
        strides: of the elements, in elements.
        scale_strides: of the E8M0 bytes ``[n, k/group]``.
    """
    from mxgemm.triton.kernels.scale_weight import scale_weight_kernel

    block_k = min(_BLOCK_K, next_power_of_two(k))
    block_n = min(_BLOCK // block_k, next_power_of_two(n))
    constants = {
        "TYPE": fmt,
        "GROUP": group,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "EVEN_N": n % block_n == 0,
        "EVEN_K": k % block_k == 0,
        "INTERPRETED": interpreting(),
    }
    dtypes = torch.bfloat16 if FORMATS[fmt].dtype == torch.bfloat16 else torch.uint8, torch.uint8, torch.bfloat16
    grid = (-(-n // block_n), -(-k // block_k), 1)
    return KernelCall(scale_weight_kernel, dtypes, (n, k, *strides, *scale_strides), constants, {"num_warps": 4}, grid)
