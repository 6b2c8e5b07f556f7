"""The HIP form: one launch, compiled in this process for a size of the weight."""

import ctypes
import os
import struct
from typing import Any, NamedTuple

import torch

from mxgemm.submission.parts.form import EVEN_RULE, Form, NotHere
from mxgemm.submission.parts.hip_data import HIP_SOURCE, HIP_TABLE, XCDS

LANES = 64
KERNEL_NAME = b"fused_gemm"
PARAMETERS = struct.Struct("<5Q3I4x2Q")
"""Of the kernel: A, weight, scales, bias, C; m and the bytes between rows of A and of C; partial sums and counters."""
PRELOAD = ("-mllvm", "-amdgpu-kernarg-preload-count=16")
"""Parameters in registers from the start: one miss less."""
MEMORY_OF_PARAMETERS, SIZE_OF_PARAMETERS, END_OF_LIST = 1, 2, 3  # hipModuleLaunchKernel's list ``extra``


class HipConfig(NamedTuple):
    """How work is divided: block_m x block_n of C a workgroup, block_k of K a step of a wave, unroll steps at a time.

    split_k workgroups share a block, each with a part of K.
    """

    block_m: int
    block_n: int
    block_k: int
    waves: int
    unroll: int
    split_k: int


loaded_kernels: dict[tuple[int, int, HipConfig], ctypes.c_void_p] = {}


def hip_tiles(m: int, n: int, k: int, arch: str) -> dict[str, HipConfig]:
    """Return the configurations of a shape.

    Raises:
        NotHere: another GPU, or a shape without a configuration.
    """
    if arch != "gfx950" or (m, n, k) not in HIP_TABLE:
        raise NotHere("the HIP kernel is for the published shapes on gfx950")
    named = {}
    for config in (HipConfig(*fields) for fields in HIP_TABLE[m, n, k]):
        name = f"{config.block_m}x{config.block_n}x{config.block_k} w{config.waves} u{config.unroll}"
        named[f"{name}/{config.split_k}" if config.split_k > 1 else name] = config
    return named


def hip_form(m: int, n: int, k: int, device: torch.device, config: HipConfig) -> Form:
    """Return a function that multiplies operands of one shape.

    Raises:
        OSError, RuntimeError: hiprtc or the HIP library is missing or refuses.
    """
    kernel = loaded_kernel(n, k, config)
    blocks_n = ceil_divide(n, config.block_n)
    blocks_m = ceil_divide(m, config.block_m)
    grid = (XCDS, blocks_m, ceil_divide(blocks_n, XCDS) * config.split_k)
    tiles = config.block_m * config.block_n // 256
    sums = blocks_m * blocks_n * config.split_k * tiles * 256 if config.split_k > 1 else 0
    arrivals = torch.zeros(0, dtype=torch.int32, device=device)  # of waves at each block; the last one resets it
    counts = [ctypes.c_uint(count) for count in (*grid, config.waves * LANES, 1, 1, 0)]
    default_queue = no_pointers = None
    hip = rocm_library("libamdhip64")
    known = torch.empty(
        1, dtype=torch.uint8, device=device
    )  # a second copy of the library would not know of it, nor of the operands
    start, length = ctypes.c_void_p(), ctypes.c_size_t()  # some releases write both without looking for a null
    found = ctypes.byref(start), ctypes.byref(length)
    checked(hip, "hipMemGetAddressRange", *found, ctypes.c_void_p(known.data_ptr()))

    def multiply(a: torch.Tensor, b_shuffle: torch.Tensor, b_scale_sh: torch.Tensor) -> torch.Tensor:
        nonlocal arrivals
        out = torch.empty((m, n), dtype=torch.bfloat16, device=device)
        partials = torch.empty(sums, dtype=torch.float32, device=device)
        if sums and not arrivals.numel():
            arrivals = torch.zeros(blocks_m * blocks_n * tiles, dtype=torch.int32, device=device)
        operands = (a.data_ptr(), b_shuffle.data_ptr(), b_scale_sh.data_ptr(), 0, out.data_ptr())
        scratch = (partials.data_ptr(), arrivals.data_ptr())
        memory = ctypes.create_string_buffer(PARAMETERS.pack(*operands, m, 2 * k, 2 * n, *scratch), PARAMETERS.size)
        size = ctypes.c_size_t(PARAMETERS.size)
        extra = (ctypes.c_void_p * 5)(
            MEMORY_OF_PARAMETERS, ctypes.addressof(memory), SIZE_OF_PARAMETERS, ctypes.addressof(size), END_OF_LIST
        )
        try:
            checked(hip, "hipModuleLaunchKernel", kernel, *counts, default_queue, no_pointers, extra)
        except BaseException:
            arrivals = arrivals[:0]  # nobody knows what a launch that failed left
            raise
        return out

    return multiply


def loaded_kernel(n: int, k: int, config: HipConfig) -> ctypes.c_void_p:
    """Compile and load the kernel for a weight, once."""
    key = (n, k, config)
    if key not in loaded_kernels:
        hip = rocm_library("libamdhip64")
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        checked(hip, "hipModuleLoadData", ctypes.byref(module), compiled_code(n, k, config))
        checked(hip, "hipModuleGetFunction", ctypes.byref(kernel), module, KERNEL_NAME)
        loaded_kernels[key] = kernel
    return loaded_kernels[key]


def compiled_code(n: int, k: int, config: HipConfig) -> bytes:
    """Compile the kernel for a weight to a code object."""
    defines = {
        "GEMM_N": n,
        "GEMM_K": k,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "WAVES": config.waves,
        "UNROLL": config.unroll,
        "SPLIT_K": config.split_k,
        "XCDS": XCDS,
        "SCALE_ADDEND": EVEN_RULE >> 16,  # the upper half of the bits: the lower half of a bf16 is zero
        "OUT_TYPE": "__bf16",
    }
    options = ["--offload-arch=gfx950", "-O3", "-std=c++20", *(f"-D{name}={value}" for name, value in defines.items())]
    try:
        return compiled_with([*options, *PRELOAD])
    except RuntimeError:  # a release that does not know how
        return compiled_with(options)


def compiled_with(options: list[str]) -> bytes:
    """Compile the kernel with hiprtc's options."""
    texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    rtc = rocm_library("libhiprtc")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    checked(rtc, "hiprtcCreateProgram", ctypes.byref(program), HIP_SOURCE.encode(), b"fused_gemm.hip", 0, None, None)
    if rtc.hiprtcCompileProgram(program, len(options), texts):
        checked(rtc, "hiprtcGetProgramLogSize", program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        checked(rtc, "hiprtcGetProgramLog", program, log)
        raise RuntimeError(f"hiprtc does not compile the kernel: {log.value.decode(errors='replace')}")
    checked(rtc, "hiprtcGetCodeSize", program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    checked(rtc, "hiprtcGetCode", program, code)
    checked(rtc, "hiprtcDestroyProgram", ctypes.byref(program))
    return code.raw


def ceil_divide(a: int, b: int) -> int:
    """Return ``a / b`` rounded up."""
    return -(-a // b)


def rocm_library(name: str) -> Any:
    """Open the copy that torch brings, else the system's: two copies would know nothing of each other's memory."""
    own = os.path.join(os.path.dirname(torch.__file__), "lib", f"{name}.so")
    return ctypes.CDLL(own if os.path.exists(own) else f"{name}.so.{str(torch.version.hip).partition('.')[0]}")


def checked(library: Any, function: str, *arguments: Any) -> None:
    """Call a function of a library that returns 0 if all is well."""
    status = getattr(library, function)(*arguments)
    if status:
        raise RuntimeError(f"{function}: error {status}")
