"""A layer's launches as one call in C, for calls whose plan has been used before.

Validation and the look-up of the plan are those of every call. Behind them a layer is four to six small allocations and
three to five launches by Python, half of the host's time; here it is one piece of scratch and one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm import steady, workspace
from mxgemm.errors import BuildError
from mxgemm.experts.forms import weight_of
from mxgemm.experts.launches import Routed, Scratch, ids_alone
from mxgemm.experts.problem import GroupedProblem
from mxgemm.experts.steps import Steps
from mxgemm.hip.runtime import DriverError
from mxgemm.mx.formats import BLOCK, FORMATS
from mxgemm.mx.tensor import MXTensor
from mxgemm.native.captured import relaxed
from mxgemm.native.program import OUT, A, Place, Step, brought, fixed, joined
from mxgemm.notices import say_once

SETTLE_AT: Final = 3
"""Uses of a plan by which its launches are described."""
_NOTHING: Final = fixed(0)
_IDS, _WEIGHTS, _MAP, _W13, _S13, _B13, _W2, _S2, _B2 = (brought(i) for i in range(9))


class LayerProgram:
    """The launches of a plan, once they are known; asked by every call of the plan.

    Attributes:
        device: where it runs.
        allocate: makes the memory of a result, on the current device.
        run: launches on a stream, with the addresses of its slots, and returns 0 if all was launched; None until then.
        nbytes: scratch that it needs.
    """

    __slots__ = ("_steps", "_uses", "allocate", "device", "nbytes", "run")

    def __init__(self, steps: Steps, device: torch.device, allocate: Callable[[], Tensor]) -> None:
        self.device, self.allocate = device, allocate
        self.run: Callable[..., int] | None = None
        self.nbytes = 0
        self._steps, self._uses = steps, 0

    def __call__(
        self, x: Tensor, w13: MXTensor, w2: MXTensor, ids: Tensor, weights: Tensor, b13: Tensor | None,
        b2: Tensor | None, expert_map: Tensor | None, out: Tensor,
    ) -> bool:  # fmt: skip
        """Launch all of the layer, and say whether that was done: tensors are those of its plan, contiguous."""
        if self.run is None:
            self._uses += 1
            if self._uses != SETTLE_AT or not self._settle():
                return False
        assert self.run is not None
        arena = workspace.take(self.nbytes, self.device)
        status = self.run(
            workspace.raw_stream(self.device), x.data_ptr(), 0, out.data_ptr(), arena.address, 0, ids.data_ptr(),
            weights.data_ptr(), 0 if expert_map is None else expert_map.data_ptr(),
            *self.weights_at(w13, w2, b13, b2),
        )  # fmt: skip
        if status:  # Python launches all of it again, and says what is wrong; this scratch is nobody's
            return False
        arena.__exit__(None, None, None)
        return True

    def weights_at(self, w13: MXTensor, w2: MXTensor, b13: Tensor | None, b2: Tensor | None) -> tuple[int, ...]:
        """Return the addresses of the slots that are the weights'."""
        one, two = self._steps.problems
        parts = (*weight_of(w13, one), b13, *weight_of(w2, two), b2)
        return tuple(0 if tensor is None else tensor.data_ptr() for tensor in parts)

    def _settle(self) -> bool:
        if torch.cuda.is_current_stream_capturing():
            self._uses -= 1  # another time
            return False
        try:
            native = steady.native()
            if native is None:
                return False
            with relaxed():
                scratch = Scratch()
                steps = launches(self._steps, scratch, self.device)
                described = joined(steps)
                if described is None or not described.fits():
                    return False
                self.nbytes = scratch.nbytes
                self.run = native.program(described).run
        except (BuildError, DriverError, RuntimeError, OSError, TypeError, ValueError) as error:
            say_once(f"a layer of experts goes through Python: {error}")
            return False
        return True


def launches(steps: Steps, scratch: Scratch, device: torch.device) -> list[Step | None]:
    """Describe a layer's launches; None among them for one that cannot be."""
    one, two = steps.problems
    tokens, pairs = steps.routing.tokens, steps.routing.pairs
    table = _MAP if steps.routing.mapped else _NOTHING
    a, a_scales = A, _NOTHING
    found: list[Step | None] = []

    def add(launch: Any, *places: Place) -> None:
        described = getattr(launch, "steps", None)
        found.extend([None] if described is None else described(device, scratch, *places))

    if steps.whole is not None:
        y = scratch.take(4 * two.rows * two.n)
        weights = (_W13, _S13, _bias(one, _B13), _W2, _S2, _bias(two, _B2))
        add(steps.whole, a, a_scales, *weights, y, _IDS, table)
        add(steps.combine, y, _WEIGHTS, OUT, _IDS, table)
        return found
    if steps.quantise is not None:
        a, a_scales = scratch.take(tokens * one.k // FORMATS[one.a_format].pack), scratch.take(tokens * one.k // BLOCK)
        add(steps.quantise, A, a, a_scales)
    where = _IDS, table
    if steps.sort is not ids_alone:
        if not isinstance(steps.sort, Routed):
            return [None]
        places, tiles = scratch.take(4 * pairs), scratch.take(12 * steps.sort.most)
        add(steps.sort, places, tiles, _IDS, table)
        where = tiles, places
    inner = scratch.take(one.rows * one.strides.out[0] * one.out_dtype.itemsize)
    inner_scales = scratch.take(one.rows * one.columns // BLOCK) if one.out_format else _NOTHING
    y = scratch.take(4 * two.rows * two.n)
    add(steps.products[0], a, a_scales, _W13, _S13, _bias(one, _B13), inner, inner_scales, *where)
    add(steps.products[1], inner, inner_scales, _W2, _S2, _bias(two, _B2), y, _NOTHING, *where)
    add(steps.combine, y, _WEIGHTS, OUT, _IDS, table)
    return found


def _bias(p: GroupedProblem, place: Place) -> Place:
    return _NOTHING if p.bias_dtype is None else place
