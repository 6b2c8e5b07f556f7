"""Route ``bridge`` of ``quant_gemm``: a kernel of the CK bridge, on the AMD GPU that it is for, when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.scaled.bridge_kernels import kernel_of
from mxgemm.scaled.problem import Operands, QuantProblem
from mxgemm.scaled.route import Launch, QuantRoute

if TYPE_CHECKING:
    from mxgemm.dispatcher.config import KernelConfig
    from mxgemm.dispatcher.schemes import Scale

ARCHS: Final = ("gfx950", "gfx942")

_libraries: dict[Any, Any] = {}


class Bridge(QuantRoute):
    """``mxgemm.dispatcher``: the library is built at the first call, or found in the build cache."""

    name = "bridge"
    takes = "types, groups and layouts of a kernel of mxgemm.dispatcher, contiguous; named by route= alone"

    def missing(self, machine: Machine) -> Refusal | None:
        """An AMD GPU that the bridge builds for."""
        if machine.arch not in ARCHS:
            return Refusal("arch", machine.arch, f"one of {', '.join(ARCHS)}", "machine")
        return None

    def can_implement(self, problem: QuantProblem) -> Refusal | None:
        """What a kernel of the bridge takes."""
        if problem.groups:
            return Refusal("groups", problem.groups, "one problem, or sequences of problems: sizes are the host's")
        if problem.bias_dtype is not None:
            return Refusal("bias", problem.bias_dtype, "none")
        found = kernel_of(problem)
        return found if isinstance(found, Refusal) else None

    def bind(self, problem: QuantProblem) -> Launch:
        """Return the launcher; builds the library unless it is built."""
        config = kernel_of(problem)
        assert not isinstance(config, Refusal)
        library = library_of(config)

        def launch(operands: Operands) -> Tensor:
            a, a_scales, b, b_scales, *_ = operands
            made = torch.empty((problem.m, problem.n), dtype=problem.out_dtype, device=a.device)
            library.run(*arguments_of(config, a, a_scales, b, b_scales, made), timed=False)
            return made

        return launch

    def fills_output(self, problem: QuantProblem) -> bool:
        """C is written contiguous."""
        del problem
        return False


def arguments_of(
    config: KernelConfig, a: Tensor, a_scales: Tensor | None, b: Tensor, b_scales: Tensor | None, out: Tensor
) -> tuple[Any, ...]:
    """Return A, B, C and the scales as a library takes them: as they lie in memory, the last index fastest."""
    return (
        a.t() if config.a_is_column_major else a,
        b.t() if config.b_is_row_major else b,
        out,
        _as_it_lies(a_scales, config.scheme.a_scale),
        _as_it_lies(b_scales, config.scheme.b_scale),
    )


def _as_it_lies(scales: Tensor | None, scale: Scale | None) -> Tensor | None:
    if scales is None or scale is None:
        return None
    if not scale.k:
        return scales.reshape(-1).contiguous()
    return (scales.t() if scale.k_slowest else scales).contiguous()


def library_of(config: KernelConfig) -> Any:
    """Return the loaded library of a kernel, built if it is not in the build cache."""
    from mxgemm import dispatcher

    known = _libraries.get(config)
    if known is None:
        result = dispatcher.build([config])[0]
        # No lock: threads that come at once find the same file, and share the first that loaded it.
        known = _libraries.setdefault(config, dispatcher.Library(result.library(), result.config))
    return known
