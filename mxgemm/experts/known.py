"""The next call of a layer: its program, found by what the call adds to the weights.

As :mod:`mxgemm.steady` for one weight: shapes, strides and dtypes of stacks and biases hardly ever change, so the first
stack keeps what was planned for calls with the second one and these biases, by tokens, ids and the router's weights
alone. What torch lets anyone do to a weight in place is looked for at every call, and whatever is unusual goes the long
way, which decides.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter

from mxgemm import workspace
from mxgemm.experts.program import LayerProgram
from mxgemm.mx.tensor import MXTensor
from mxgemm.plan import facts

MAX_PROGRAMS: Final = 256
"""Programs that one stack keeps; past this many they start over."""
_PLAIN: Final = (Tensor, Parameter)


class KnownLayer:
    """What a layer's weights were when programs were made, and these programs, which threads may add to at any time."""

    __slots__ = ("_b2", "_b13", "_plain", "_programs", "_stamps", "_tensors", "_w2", "_where")

    def __init__(self, w13: MXTensor, w2: MXTensor, b13: Tensor | None, b2: Tensor | None) -> None:
        self._w2, self._b13, self._b2 = w2, b13, b2
        made = [w.prepared for w in (w13, w2) if w.prepared is not None]
        self._stamps = tuple(one.stamp for one in made if one.stamp is not None)
        tensors = [w13.data, w13.scales, w2.data, w2.scales, *(t for one in made for t in one.tensors)]
        self._tensors = tuple(t for t in (*tensors, b13, b2) if t is not None)
        self._plain = all(type(t) in _PLAIN and not t.requires_grad for t in self._tensors)
        self._where = tuple(map(_place, self._tensors))
        self._programs: dict[Hashable, tuple[LayerProgram, tuple[int, ...]]] = {}

    def serves(self, w2: MXTensor, b13: Tensor | None, b2: Tensor | None) -> bool:
        """Say whether it is of these weights beside the stack that has it, as they are now."""
        return (
            w2 is self._w2
            and b13 is self._b13
            and b2 is self._b2
            and all(stamp.fresh() for stamp in self._stamps)
            and tuple(map(_place, self._tensors)) == self._where
        )

    def run(self, x: Tensor, ids: Tensor, weights: Tensor, options: Hashable) -> Tensor | None:
        """Return the result of a call like one that was remembered, else None. Nothing of torch's observes the call."""
        try:
            found = self._programs.get((facts(x), facts(ids), facts(weights), options))
        except (AttributeError, TypeError, RuntimeError):  # no tensors, or options that cannot be hashed
            return None
        if found is None:
            return None
        program, addresses = found
        launch = program.run
        if launch is None or torch._C._cuda_getDevice() != program.device.index:
            return None
        out = program.allocate()
        given = x.data_ptr(), 0, out.data_ptr()
        arena = workspace.take(program.nbytes, program.device)
        routed = ids.data_ptr(), weights.data_ptr(), 0
        if launch(workspace.raw_stream(program.device), *given, arena.address, 0, *routed, *addresses):
            return None  # the long way says what is wrong; this scratch is nobody's
        arena.__exit__(None, None, None)
        return out

    def remember(
        self, x: Tensor, ids: Tensor, weights: Tensor, options: Hashable, program: LayerProgram, w13: MXTensor
    ) -> None:
        """Keep the program of a call that the long way has made."""
        if not self._plain or any(type(t) is not Tensor for t in (x, ids, weights)):
            return
        if len(self._programs) >= MAX_PROGRAMS:
            self._programs.clear()
        addresses = program.weights_at(w13, self._w2, self._b13, self._b2)
        self._programs[facts(x), facts(ids), facts(weights), options] = program, addresses


def known_layer(w13: MXTensor, w2: MXTensor, b13: Tensor | None, b2: Tensor | None) -> KnownLayer | None:
    """Return what a stack keeps for calls with these others, if it keeps anything."""
    known: Any = w13.known
    return known if type(known) is KnownLayer and known.serves(w2, b13, b2) else None


def know_layer(w13: MXTensor, w2: MXTensor, b13: Tensor | None, b2: Tensor | None) -> KnownLayer:
    """Return what a stack keeps for calls with these others, made anew if it keeps something else."""
    known = known_layer(w13, w2, b13, b2)
    if known is None:
        known = KnownLayer(w13, w2, b13, b2)
        object.__setattr__(w13, "known", known)  # no change of the weight, which is frozen
    return known


def _place(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()
