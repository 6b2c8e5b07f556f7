"""The dispatcher's Triton kernels on a torch device: the family of the native libraries, compiled when it is called.

For GPUs that the libraries are not built for (NVIDIA's), for ROCm without a build, and for Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from mxgemm.ambient import check_no_grad
from mxgemm.arguments import as_int, check_bool, check_type, one_of, shown
from mxgemm.device import machine_of
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.operation import Inputs
from mxgemm.memory import check_memory
from mxgemm.triton.launch import KernelCall, Launcher
from mxgemm.triton.support import interpreting, is_power_of_two

KINDS: Final = ("e2m1", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")
SMALL: Final = 2**31


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's block and how it is compiled.

    Attributes:
        block_m: rows of A, a power of two from 16.
        block_n: rows of B, a power of two from 16.
        block_k: elements along K, a power of two from 32.
        num_warps: warps of a program.
        num_stages: software pipeline depth.
        programs: the most programs that are launched; 0: one a tile.
    """

    block_m: int = 64
    block_n: int = 64
    block_k: int = 128
    num_warps: int = 4
    num_stages: int = 2
    programs: int = 0

    def __post_init__(self) -> None:
        """Check every field: TypeError for what is no integer, ValueError for a size that no kernel has."""
        for name, least in (("block_m", 16), ("block_n", 16), ("block_k", 32), ("num_warps", 1)):
            size = as_int(name, getattr(self, name))
            if size < least or not is_power_of_two(size):
                raise ValueError(f"{name}: got {shown(size)}, want a power of two from {least}")
            object.__setattr__(self, name, size)
        for name, least in (("num_stages", 1), ("programs", 0)):
            size = as_int(name, getattr(self, name))
            if size < least:
                raise ValueError(f"{name}: got {shown(size)}, want at least {least}")
            object.__setattr__(self, name, size)


def quant_gemm(
    a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, kind: str, tile: Tile | None = None, *,
    fast_accumulation: bool = False,
) -> Tensor:  # fmt: skip
    """Multiply two quantised operands: ``C = decode(A) @ decode(B).T``, fp16 ``[M, N]``.

    Args:
        a: element bytes, uint8 ``[M, K]``, of e2m1 ``[M, K/2]``; contiguous.
        b: element bytes, uint8 ``[N, K]`` or ``[N, K/2]``; contiguous.
        a_scales: E8M0 bytes, uint8 ``[M, K/32]``; or fp32 ``[M]`` or ``[1]``.
        b_scales: the same for B.
        kind: element type of both, one of :data:`KINDS`.
        tile: the block; default: one that fits small problems.
        fast_accumulation: on sm_90, leave fp8 sums in the tensor cores' short accumulators over all of K.

    Raises:
        TypeError: a type or a dtype is wrong.
        ValueError: a shape, the kind or a device is wrong.
        RuntimeError: scales require grad while gradients are recorded, or carry a forward-mode tangent.
    """
    if tile is not None:
        check_type("tile", tile, Tile, "a Tile")
    check_bool("fast_accumulation", fast_accumulation)
    m, n, k = _check(a, b, a_scales, b_scales, kind)
    check_no_grad(a_scales=a_scales, b_scales=b_scales)
    a_scales, b_scales = (scales if scales.data_ptr() % 4 == 0 else scales.clone() for scales in (a_scales, b_scales))
    out = torch.empty((m, n), dtype=torch.float16, device=a.device)
    launch = launcher(a, b, a_scales, b_scales, kind, tile or Tile(), (m, n, k), fast_accumulation)
    with torch.cuda.device_of(a):  # type: ignore[no-untyped-call]  # triton launches on the current device, whatever the tensors'
        launch(a, b, a_scales, b_scales, out)
    return out


def run_config(config: KernelConfig, inputs: Inputs, device: torch.device) -> NDArray[Any]:
    """Run the kernel that a native library of a configuration holds, compiled for a device that is here.

    Args:
        config: the kernel, pinned to its architecture, which decides what fp8 bytes are.
        inputs: operands on the host, as they lie.
        device: a GPU, or the CPU in Triton's interpreter.

    Returns:
        C ``[m, n]``, fp16 or the bits of bf16.
    """
    from mxgemm.dispatcher.native_kernel import Variant, blocks, launch_of, num_warps

    arch, (m, n, k) = config.arch or "", (inputs.problem.m, inputs.problem.n, inputs.problem.k)
    block = blocks(config, arch)
    fills = n % block.n == 0 and k % block.k == 0 and (not config.a_is_column_major or m % block.m == 0)
    reach = max((m + block.m) * max(2 * k, 2 * n), (n + block.n) * 2 * k)
    variant = Variant("here", even=fills, wide=reach >= SMALL)
    grid = -(-m // block.m) * -(-n // block.n)
    machine = machine_of(device)
    call = launch_of(
        config, arch, variant, (m, n, k // 32), {"num_warps": num_warps(config), "num_stages": 2}, xcds=machine.xcds,
        grid=grid, short_k=min(block.k, 128) if machine.arch == "sm_90" else 0, interpreted=interpreting(),
    )  # fmt: skip
    bf16 = config.scheme.c == "bf16"
    out = torch.empty((m, n), dtype=torch.bfloat16 if bf16 else torch.float16, device=device)
    arrays = (inputs.a, inputs.b, inputs.a_scales, inputs.b_scales)
    none = torch.empty(0, dtype=torch.float32, device=device)
    tensors = [none if array is None else torch.from_numpy(array).to(device) for array in arrays]
    tensors = [t.view(torch.bfloat16) if t.dtype == torch.uint16 else t for t in tensors]
    with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]
        Launcher(call)(*tensors, out)
    result = out.cpu()
    found: NDArray[Any] = (result.view(torch.uint16) if bf16 else result).numpy()
    return found


def launcher(
    a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, kind: str, tile: Tile, sizes: tuple[int, int, int],
    fast_accumulation: bool,
) -> Launcher:  # fmt: skip
    """Return the launcher of (A, B, scales of A, scales of B, C) for operands like these."""
    from mxgemm.triton.kernels.quant_gemm import quant_gemm_kernel

    m, n, k = sizes
    machine = machine_of(a.device)
    tiles = -(-m // tile.block_m) * -(-n // tile.block_n)
    rows = max(m + tile.block_m, n + tile.block_n)
    constants = {
        "A_TYPE": kind,
        "B_TYPE": kind,
        "A_SCALE": _scale_kind(a_scales),
        "B_SCALE": _scale_kind(b_scales),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "EVEN_N": n % tile.block_n == 0,
        "EVEN_K": k % tile.block_k == 0,
        "PROGRAMS": tile.programs,
        "WIDE": rows * max(k, 2 * n) >= SMALL,
        "XCDS": machine.xcds,
        "SHORT_K": min(tile.block_k, 128) if machine.arch == "sm_90" and not fast_accumulation else 0,
        "INTERPRETED": interpreting(),
    }
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    grid = (min(tiles, tile.programs or tiles), 1, 1)
    dtypes = (a.dtype, b.dtype, a_scales.dtype, b_scales.dtype, torch.float16)
    return Launcher(KernelCall(quant_gemm_kernel, dtypes, (m, n, k // 32), constants, options, grid))


def _scale_kind(scales: Tensor) -> str:
    if scales.dtype == torch.uint8:
        return "block"
    return "tensor" if scales.numel() == 1 else "row"


def _check(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, kind: str) -> tuple[int, int, int]:
    one_of("kind", kind, KINDS)
    for name, tensor in (("a", a), ("b", b), ("a_scales", a_scales), ("b_scales", b_scales)):
        check_memory(name, check_type(name, tensor, Tensor, "a tensor"), as_it_lies=True)
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dtype != torch.uint8:
            raise TypeError(f"{name}: got {tensor.dtype}, want torch.uint8, the bytes of its elements")
        if tensor.ndim != 2 or not tensor.is_contiguous() or not tensor.numel():
            got = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
            raise ValueError(f"{name}: got {got}, want two dimensions, contiguous and not empty")
    columns = a.shape[1]
    k = columns * (2 if kind == "e2m1" else 1)
    if b.shape[1] != columns or k % 32:
        raise ValueError(f"b: got K = {b.shape[1]} against {columns} of a, want the same, a multiple of 32 elements")
    for name, scales, rows in (("a_scales", a_scales, a.shape[0]), ("b_scales", b_scales, b.shape[0])):
        wanted = [(rows, k // 32)] if scales.dtype == torch.uint8 else [(rows,), (1,)]
        if scales.dtype not in (torch.uint8, torch.float32):
            raise TypeError(f"{name}: got {scales.dtype}, want torch.uint8 (E8M0) or torch.float32")
        if tuple(scales.shape) not in wanted or not scales.is_contiguous():
            raise ValueError(
                f"{name}: got shape {tuple(scales.shape)}, want {' or '.join(map(str, wanted))}, contiguous"
            )
    if (a_scales.dtype == torch.uint8) != (b_scales.dtype == torch.uint8):
        raise TypeError(f"b_scales: got {b_scales.dtype}, want {a_scales.dtype}, as a_scales")
    if any(tensor.device != a.device for tensor in (b, a_scales, b_scales)):
        got = ", ".join(str(tensor.device) for tensor in (b, a_scales, b_scales))
        raise ValueError(f"b, a_scales, b_scales: got {got}, want {a.device}, as a")
    return a.shape[0], b.shape[0], k
