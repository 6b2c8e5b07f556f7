"""Compile a Triton launch for a GPU that is not here, exactly as the launch would: same constants, same hints.

    compiled = compile_call(route.calls(problem, config)[0], "gfx950")

Works outside Triton's interpreter only (``TRITON_INTERPRET`` is read when triton is imported).
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Final

import torch

from mxgemm.build_cache import private_folder
from mxgemm.notices import say_once
from mxgemm.triton.launch import KernelCall

TYPES: Final = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
INT32_MAX: Final = 2**31 - 1
KEPT_ALIKE: Final = ("3.6.",)
"""Releases whose cache has what :func:`compile_call` makes for NVIDIA where a launch looks for it: seen of 3.6.0."""


def compile_call(call: KernelCall, arch: str, *, small: bool = True) -> Any:
    """Compile one launch for an architecture ("gfx950", "sm_90", ...) and return triton's compiled kernel.

    Args:
        call: the launch. Its integers count by what triton specialises on: being 1, a multiple of 16, beyond 32 bits.
        arch: the target.
        small: every tensor is under 2 GiB, which lets AMD's backend use 32-bit offsets from a buffer's base.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    amd = arch.startswith("gfx")
    names = call.kernel.arg_names
    signature: dict[str, str] = {}
    constants: dict[str, Any] = dict(call.constants)
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, (name, dtype) in enumerate(zip(names, call.dtypes, strict=False)):
        signature[name] = TYPES[dtype]
        attributes[(index,)] = [["tt.divisibility", 16], *([["tt.pointer_range", 32]] if amd and small else [])]
    for index, (name, value) in enumerate(zip(names[len(call.dtypes) :], call.scalars, strict=False), len(call.dtypes)):
        specialised = not call.kernel.params[index].do_not_specialize
        if value == 1 and specialised:  # the just-in-time compiler makes a constant of it
            constants[name] = 1
            continue
        signature[name] = "i32" if value <= INT32_MAX else "i64"
        if value % 16 == 0 and specialised:
            attributes[(index,)] = [["tt.divisibility", 16]]
    ordered = {name: signature.get(name, "constexpr") for name in names}
    source = ASTSource(fn=call.kernel, signature=ordered, constexprs=constants, attrs=attributes)
    if amd:
        target = GPUTarget("hip", arch, 32 if arch.startswith("gfx1") else 64)
    else:
        target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    _require_cache_folder()
    return triton.compile(source, target=target, options=dict(call.options))


def serves_launches(arch: str) -> bool:
    """Say whether a launch finds in Triton's cache what :func:`compile_call` made, where its tensors are aligned."""
    from triton import __version__

    return arch.startswith("sm_") and __version__.startswith(KEPT_ALIKE)


@cache
def _require_cache_folder() -> None:
    """Give triton, which compiles only into a cache, one for this process where its own cannot be: without a home."""
    from triton import knobs

    try:
        os.makedirs(knobs.cache.dir, exist_ok=True)
    except OSError as error:
        private = private_folder(os.getpid()) / "triton"
        say_once(f"triton's cache cannot be used ({error}): its kernels are kept in {private} until this process ends")
        os.environ["TRITON_CACHE_DIR"] = str(private)
