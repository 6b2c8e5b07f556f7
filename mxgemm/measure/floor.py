"""What the device can do, measured in the same run, and the least time that a GEMM can take on it.

The floor is ``max(bytes / bandwidth, flops / rate)``: A, B, its scales and C cross memory once, or every multiplication
happens at the best rate that the vendor's GEMM reaches in any number format. It is a floor of the problem, the same for
every route and peer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from mxgemm.device import machine_of
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import device_us, wall_us

_GPU_BYTES = 1 << 31
_CPU_BYTES = 1 << 26
_GPU_SIZE = 8192
_CPU_SIZE = 1024
_CPU_SIZE_BF16 = 512  # slow without units for it, and then not the best rate; with them large enough
_EFFORT = Effort(seconds=0.2, least=3, most=20)
_FP4_ARCHS = ("sm_100", "sm_103", "sm_120", "gfx950")


class _NoUnits(RuntimeError):
    """The device cannot multiply this format, whatever torch can."""


@dataclass(frozen=True, slots=True)
class Roof:
    """Measured ceilings of one device.

    Attributes:
        gb_per_s: by name of the kernel that reached it: "copy" counts bytes read and written, "read" bytes read.
        tflop_per_s: by number format of the operands: "bf16", "fp8", ...
        refused: formats that could not be measured, with the reason.
    """

    gb_per_s: dict[str, float]
    tflop_per_s: dict[str, float]
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def bandwidth(self) -> float:
        """The best bandwidth, GB/s."""
        return max(self.gb_per_s.values())

    @property
    def rate(self) -> float:
        """The best rate, TFLOP/s."""
        return max(self.tflop_per_s.values())

    def floor_us(self, nbytes: int, flops: int) -> tuple[float, str]:
        """Return the least microseconds, and which of "memory" and "compute" sets it."""
        memory, compute = nbytes / self.bandwidth / 1e3, flops / self.rate / 1e6
        return (memory, "memory") if memory >= compute else (compute, "compute")


def measure_roof(device: torch.device) -> Roof:
    """Measure bandwidth and GEMM rates of a device."""
    gpu = device.type == "cuda"

    def us(call: Callable[[], object]) -> float:
        return device_us([call], _EFFORT)[0].low if gpu else _best_us(call)

    nbytes = _GPU_BYTES if gpu else _CPU_BYTES
    bandwidths = {name: moved / us(call) / 1e3 for name, moved, call in _streams(nbytes, device)}
    rates: dict[str, float] = {}
    refused: dict[str, str] = {}
    for name, (make, size) in _products(device).items():
        try:
            rates[name] = 2 * size**3 / us(make(size, device)) / 1e6
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:  # not in this torch or on this device
            refused[name] = _reason(error)
    return Roof(bandwidths, rates, refused)


def _reason(error: Exception) -> str:
    """A line of text: ours says what the device lacks, any other is torch's answer to the call."""
    first = str(error).strip().partition("\n")[0]
    return first if isinstance(error, _NoUnits) else f"torch refuses: {first}"


def _streams(nbytes: int, device: torch.device) -> list[tuple[str, int, Callable[[], object]]]:
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return [
        # Not copy_: in a graph that is a memory-copy node, slower than a kernel.
        ("copy", 2 * nbytes, lambda: torch.bitwise_not(source, out=target)),
        ("read", nbytes, lambda: source.view(torch.float32).sum()),
    ]


def _best_us(call: Callable[[], object], runs: int = 3) -> float:
    call()
    return min(wall_us([call], Effort(seconds=0.0, least=1, most=1), warm_up=0).us for _ in range(runs))


Product = Callable[[int, torch.device], Callable[[], object]]


def _products(device: torch.device) -> dict[str, tuple[Product, int]]:
    if device.type != "cuda":
        return {"fp32": (_fp32, _CPU_SIZE), "bf16": (_bf16, _CPU_SIZE_BF16)}
    return {"bf16": (_bf16, _GPU_SIZE), "fp8": (_fp8, _GPU_SIZE), "fp4": (_fp4, _GPU_SIZE)}


def _fp32(size: int, device: torch.device) -> Callable[[], object]:
    a, b = (torch.ones(size, size, dtype=torch.float32, device=device) for _ in range(2))
    return partial(torch.mm, a, b.t())


def _bf16(size: int, device: torch.device) -> Callable[[], object]:
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    return partial(torch.mm, a, b.t())


def _fp8(size: int, device: torch.device) -> Callable[[], object]:
    a, b = (torch.randn(size, size, dtype=torch.float32, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), dtype=torch.float32, device=device)
    return partial(torch._scaled_mm, a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _fp4(size: int, device: torch.device) -> Callable[[], object]:
    arch = machine_of(device).arch
    if arch not in _FP4_ARCHS:
        raise _NoUnits(f"{arch} has no fp4 units")

    def operand() -> tuple[Tensor, Tensor]:
        data = torch.randint(0, 256, (size, size // 2), dtype=torch.uint8, device=device)
        scales = torch.full((size, size // 32), 127, dtype=torch.uint8, device=device)
        return data.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e8m0fnu)

    (a, a_scales), (b, b_scales) = operand(), operand()
    return partial(torch._scaled_mm, a, b.t(), scale_a=a_scales, scale_b=b_scales, out_dtype=torch.bfloat16)
