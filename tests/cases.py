"""Operands for tests: random data whose block scales differ, oracle results, and where to run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.cpu import build
from mxgemm.device import Machine, machine_of
from mxgemm.errors import Refusal
from mxgemm.mx import layouts, oracle
from mxgemm.mx.accuracy import compare
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Problem, Strides
from mxgemm.routes import ROUTES, Config, Operands
from mxgemm.triton.support import interpreting, triton_version

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

OUT_DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def skip_without_kernels(device: str) -> None:
    """Skip a Triton test where neither a GPU nor a capable interpreter runs it, and say what is missing."""
    version = triton_version()
    if version is None:
        pytest.skip("triton is not installed")
    if device == "cpu" and not interpreting():
        pytest.skip("TRITON_INTERPRET=1 is not set: kernels go to the GPU in this process")
    if device == "cpu" and version < (3, 9):
        pytest.skip(f"the interpreter of triton {version} has no dot_scaled")


def cpu_route() -> str:
    """The route that a CPU's call with e2m1 activations takes here."""
    return "reference" if isinstance(build.library(), Refusal) else "cpu_native"


def spread(rows: int, k: int, dtype: torch.dtype = torch.float32, octaves: int = 6, seed: int = 0) -> Tensor:
    """N(0, 1) times a power of two drawn for each block of 32, so that no two scales need be equal."""
    generator = torch.Generator().manual_seed(seed * 7919 + rows * 31 + k)
    x = torch.randn(rows, k, generator=generator)
    powers = torch.randint(-octaves, octaves + 1, (rows, k // 32), generator=generator).float()
    return (x * torch.exp2(powers).repeat_interleave(32, dim=1)).to(dtype)


def bytes_of(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().numpy()


def shuffled_with_poison(weight: MXTensor) -> Tensor:
    """Shuffled scales whose padding is 0xFF (NaN): no result may depend on it."""
    rows, columns = weight.scales.shape
    real = layouts.shuffle_scales(torch.ones(rows, columns, dtype=torch.uint8, device=weight.device)) == 1
    shuffled = layouts.shuffle_scales(weight.scales)
    return torch.where(real, shuffled, torch.full_like(shuffled, 255))


def stored_scales(weight: MXTensor, layout: str) -> Tensor:
    """Scales in a layout, whose padding is poison."""
    if layout == "shuffled":
        return shuffled_with_poison(weight)
    if layout != "swizzled_32_4_4":
        return weight.scales
    swizzled, real = (layouts.swizzle_scales(s) for s in (weight.scales, torch.ones_like(weight.scales)))
    return torch.where(real == 1, swizzled, torch.full_like(swizzled, 255))


@dataclass
class Case:
    """One multiplication with its exact result."""

    a: Tensor
    weight: MXTensor
    a64: np.ndarray
    b64: np.ndarray
    ref: np.ndarray

    def check(self, out: Tensor) -> None:
        """Assert both gates of the numbers' contract."""
        accuracy = compare(out.reshape(self.ref.shape), self.ref, self.a64, self.b64)
        assert accuracy.passed, accuracy


def make(
    m: int,
    n: int,
    k: int,
    *,
    device: str = "cpu",
    a_format: str = "e2m1",
    b_format: str = "e2m1",
    scale_rounding: str = "even",
    a_dtype: torch.dtype = torch.bfloat16,
    bias: Tensor | None = None,
    octaves: int = 6,
    seed: int = 0,
) -> Case:
    a = spread(m, k, a_dtype, octaves, seed)
    weight = mxgemm.quantize(spread(n, k, octaves=octaves, seed=seed + 1), format=b_format)
    b64 = oracle.decode(bytes_of(weight.data), bytes_of(weight.scales), b_format)
    if a_format == "bf16":
        a64 = a.to(torch.bfloat16).double().numpy()
    else:
        a64 = oracle.decode(*oracle.encode(a.float().numpy(), a_format, scale_rounding), a_format)
    ref = oracle.matmul(a64, b64, None if bias is None else bias.cpu().double().numpy())
    return Case(a.to(device), weight.to(device), a64, b64, ref)


def run_route(
    route: str,
    case: Case,
    *,
    a_format: str = "e2m1",
    layout: tuple[str, str] = ("row_major", "row_major"),
    scale_rounding: str = "even",
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    config: Config | None = None,
    machine: Machine | None = None,
) -> Tensor:
    """Bind one route to a case, with a configuration of its own or ``config``, and launch it into poisoned memory.

    Output, weight and scales lie between guards (NaN, 0xFF); the output's must be unchanged afterwards. ``machine`` is
    what the route is told that it runs on, by default the truth.
    """
    w, chosen = case.weight, ROUTES[route]
    data = layouts.preshuffle_weight(w.data) if layout[0] == "preshuffled" else w.data
    scales = stored_scales(w, layout[1])
    data, scales = guarded(data), guarded(scales)
    a, a_scales = case.a, None
    if route == "gemm_mx":
        quantized = mxgemm.quantize(case.a, format=a_format, scale_rounding=scale_rounding)  # type: ignore[arg-type]
        a, a_scales = guarded(quantized.data), guarded(quantized.scales)
    (m, n), k = case.ref.shape, w.shape[1]
    memory = torch.full((m * n + 128,), torch.nan, dtype=out_dtype, device=case.a.device)
    out = memory[64:-64].view(m, n)
    strides = Strides(
        a=a.stride(), b=data.stride(), b_scales=scales.stride(), out=(n, 1),
        a_scales=(0, 0) if a_scales is None else a_scales.stride(),
    )  # type: ignore[arg-type]  # fmt: skip
    problem = Problem.of(
        m, n, k, machine or machine_of(case.a.device),
        a_format=a_format, a_quantized=a_scales is not None, a_dtype=a.dtype,
        b_format=w.format.name, scale_rounding=scale_rounding, weight_layout=layout[0], scale_layout=layout[1],
        out_dtype=out_dtype, has_bias=bias is not None, strides=strides,
            bias_dtype=torch.float32 if bias is None else bias.dtype,
    )  # fmt: skip
    refusal = chosen.refusal(problem)
    assert refusal is None, refusal
    config = config or chosen.configs(problem)[0]
    refusal = chosen.check_config(problem, config)
    assert refusal is None, refusal
    made = chosen.bind(problem, config)(Operands(a, a_scales, data, scales, bias, out))
    assert (made is None) == chosen.fills_output(problem, config)
    assert memory[:64].isnan().all()
    assert memory[-64:].isnan().all()
    return out.clone() if made is None else made


def guarded(tensor: Tensor) -> Tensor:
    """Copy bytes into the middle of 0xFF, as aligned as fresh memory."""
    memory = torch.full((tensor.numel() + 1024,), 255, dtype=torch.uint8, device=tensor.device)
    return memory[512 : 512 + tensor.numel()].view(tensor.shape).copy_(tensor)
