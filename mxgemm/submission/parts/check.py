"""Compare a form with plain torch arithmetic on synthetic operands of its shape."""

import torch

from mxgemm.submission.parts.form import EVEN_RULE, Form


def e2m1_values(codes: torch.Tensor) -> torch.Tensor:
    """4-bit codes -> their values, fp32."""
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float32, device=codes.device)
    return magnitudes[(codes & 7).long()] * torch.where(codes >= 8, -1.0, 1.0)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """Exponent bytes from 1 to 254 -> the powers of two that they stand for, fp32."""
    return (exponent.to(torch.int32) << 23).view(torch.float32)


def rounded_to_mxfp4(a: torch.Tensor) -> torch.Tensor:
    """Float ``[M, K]`` -> the values that it has in MXFP4, fp32: scales by the even rule, ties to even codes."""
    blocks = a.float().reshape(a.shape[0], -1, 32)
    bits = blocks.abs().amax(dim=2, keepdim=True).view(torch.int32)
    scale = power_of_two((((bits + EVEN_RULE) >> 23) - 2).clamp(min=1))
    y = blocks / scale
    step = torch.where(y.abs() < 2.0, 0.5, torch.where(y.abs() < 4.0, 1.0, 2.0))
    return ((torch.round(y / step) * step).clamp(-6.0, 6.0) * scale).reshape(a.shape)


def synthetic_operands(m: int, n: int, k: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return A, a random weight's shuffled bytes and shuffled scales, and the exact product rounded to fp32."""
    generator = torch.Generator().manual_seed(m + n + k)
    a = torch.randn((m, k), generator=generator, dtype=torch.float32, device="cpu").to(device, torch.bfloat16)
    packed = torch.randint(0, 256, (n, k // 2), generator=generator, dtype=torch.uint8, device="cpu").to(device)
    rows, columns = (n + 255) // 256 * 256, (k // 32 + 7) // 8 * 8
    scales = torch.randint(122, 126, (rows, columns), generator=generator, dtype=torch.uint8, device="cpu").to(device)
    elements = e2m1_values(torch.stack((packed & 15, packed >> 4), dim=2)).reshape(n, k)
    weight = elements * power_of_two(scales[:n, : k // 32]).repeat_interleave(32, dim=1)
    # (16 rows, two halves of 16 bytes) of a tile of weights change places; scales in tiles of 32 rows by 8.
    shuffled = packed.view(n // 16, 16, k // 64, 2, 16).permute(0, 2, 3, 1, 4).reshape(n, k // 2)
    tiles = scales.view(rows // 32, 2, 16, columns // 8, 2, 4).permute(0, 3, 5, 2, 4, 1)
    return a, shuffled.contiguous(), tiles.reshape(rows, columns).contiguous(), rounded_to_mxfp4(a) @ weight.t()


def disagrees(form: Form, operands: tuple[torch.Tensor, ...]) -> str | None:
    """Say how a form's result differs from the exact one, or None."""
    *inputs, exact = operands
    error = (form(*inputs).float() - exact).abs()
    # The task's relative tolerance; near zero, what sums in another order may differ by.
    wrong = ~(error <= 1e-2 * exact.abs() + 2e-3 * exact.abs().mean())
    count = int(wrong.count_nonzero())
    return f"{count} of {wrong.numel()} elements of a synthetic product are wrong" if count else None
