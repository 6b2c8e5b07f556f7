"""Route ``bridge`` of ``quant_gemm``: a kernel of the CK bridge, on the AMD GPU that it is for, when asked for."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.scaled.problem import Operands, QuantProblem
from mxgemm.scaled.route import Launch, QuantRoute

ARCHS: Final = ("gfx950", "gfx942")
DATATYPES: Final = {"e4m3": "fp8", "e5m2": "bf8", "e4m3fnuz": "fp8", "e5m2fnuz": "bf8"}
SCHEMES: Final = ("tensor_quant", "rowcolquant")
"""Operations whose configuration is a type and nothing else, so that a call says which kernel it means."""

_libraries: dict[Any, Any] = {}


class Bridge(QuantRoute):
    """``mxgemm.dispatcher``: the library is built at the first call, or found in the build cache."""

    name = "bridge"
    takes = "fp8 with one scale a tensor or a row, contiguous, to fp16; named by route= alone"

    def missing(self, machine: Machine) -> Refusal | None:
        """An AMD GPU that the bridge builds for."""
        if machine.arch not in ARCHS:
            return Refusal("arch", machine.arch, f"one of {', '.join(ARCHS)}", "machine")
        return None

    def can_implement(self, problem: QuantProblem) -> Refusal | None:
        """What a kernel of the bridge takes."""
        p = problem
        if p.groups:
            return Refusal("groups", p.groups, "one problem")
        if p.scheme.name not in SCHEMES:
            return Refusal("scheme", p.scheme, "TensorWise or RowCol (mxgemm.dispatcher runs the other operations)")
        fnuz = p.arch == "gfx942"
        if p.a_format != p.b_format or p.a_format.endswith("fnuz") != fnuz:
            want = f"one {'FNUZ' if fnuz else 'OCP'} fp8 type for a and b"
            return Refusal("formats", f"{p.a_format} by {p.b_format}", want)
        if p.out_dtype != torch.float16 or p.bias_dtype is not None:
            return Refusal("out_dtype", p.out_dtype, "torch.float16 and no bias")
        if p.strides.a != (p.k, 1) or p.strides.b != (p.k, 1):
            return Refusal("strides", (p.strides.a, p.strides.b), "contiguous operands")
        return None

    def bind(self, problem: QuantProblem) -> Launch:
        """Return the launcher; builds the library unless it is built."""
        library = library_of(problem.scheme.name, DATATYPES[problem.a_format], problem.arch)

        def launch(operands: Operands) -> torch.Tensor:
            a, a_scales, b, b_scales, _, out, _ = operands
            assert a_scales is not None
            assert b_scales is not None
            made = torch.empty(out.shape, dtype=torch.float16, device=a.device)
            arguments = (a, b, made, a_scales.reshape(-1).contiguous(), b_scales.reshape(-1).contiguous())
            if a.device.type == "cpu":
                arguments = tuple(np.asarray(tensor.numpy()) for tensor in arguments)  # type: ignore[assignment]
            library.run(*arguments, timed=False)
            return made

        return launch

    def fills_output(self, problem: QuantProblem) -> bool:
        """C is written contiguous."""
        del problem
        return False


def library_of(operation: str, datatype: str, arch: str) -> Any:
    """Return the loaded library of an operation's default kernel, built if it is not in the build cache."""
    from mxgemm import dispatcher

    key = operation, datatype, arch
    known = _libraries.get(key)
    if known is None:
        kernels = dispatcher.OPERATIONS[operation].default_configs(arch)
        config = next(kernel for kernel in kernels if kernel.dtype == datatype)
        result = dispatcher.build([config], gfx_arch=arch)[0]
        # No lock: threads that come at once find the same file, and share the first that loaded it.
        known = _libraries.setdefault(key, dispatcher.Library(result.library(), result.config))
    return known
