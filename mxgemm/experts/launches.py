"""The launches that a layer on Hopper is made of, each a kernel with the tensors that it is given or makes.

``steps`` describes the same with places for addresses, as ``mxgemm.experts.program`` has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.cuda.lazy import Lazy
from mxgemm.experts.problem import Operands, Tokens
from mxgemm.experts.route import Sorted
from mxgemm.mx.formats import BLOCK, FORMATS
from mxgemm.native.program import SCRATCH, Place, Step, fixed

ALIGNMENT: Final = 256
"""Of what lies in scratch."""
Weight = tuple[Tensor, Tensor, Tensor | None]
"""Codes, scales, and the bias beside them."""


class Scratch:
    """Places one behind the other in a call's scratch."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, nbytes: int) -> Place:
        """Return where so many bytes are."""
        at = SCRATCH + self.nbytes
        self.nbytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return at


@dataclass(frozen=True, slots=True)
class Single:
    """What is one launch."""

    lazy: Lazy

    def steps(self, device: torch.device, scratch: Scratch, *places: Place) -> list[Step]:
        """Describe it, of places in the order of the kernel's pointers; ``scratch`` is for what is more launches."""
        return [self.lazy.step(device, *places)]


@dataclass(frozen=True, slots=True)
class Product(Single):
    """A grouped product, whose pointers are ``mma.POINTERS``."""

    def __call__(self, o: Operands) -> None:
        """Fill the result."""
        self.lazy(o.out.device, *addresses(o))


@dataclass(frozen=True, slots=True)
class Slabbed:
    """A grouped product of slabs that a launch gathers A into."""

    slabs: Lazy
    main: Lazy
    nbytes: int
    reads_index: bool
    writes_index: bool

    def __call__(self, o: Operands) -> None:
        """Fill the result."""
        a, a_scales, *weight, out, out_scales, tiles, index = addresses(o)
        with workspace.take(self.nbytes, o.out.device) as arena:
            memory = arena.address
            self.slabs(o.out.device, a, a_scales, memory, tiles, index if self.reads_index else 0)
            self.main(o.out.device, memory, *weight, out, out_scales, tiles, index if self.writes_index else 0)

    def steps(self, device: torch.device, scratch: Scratch, *places: Place) -> list[Step]:
        """Describe it, of places in the order of ``mma.POINTERS``."""
        a, a_scales, *weight, out, out_scales, tiles, index = places
        memory = scratch.take(self.nbytes)
        return [
            self.slabs.step(device, a, a_scales, memory, tiles, index if self.reads_index else fixed(0)),
            self.main.step(device, memory, *weight, out, out_scales, tiles, index if self.writes_index else fixed(0)),
        ]


@dataclass(frozen=True, slots=True)
class Whole:
    """Both products of a layer by one launch, behind one that sorts its pairs and quantises its tokens.

    Attributes:
        begin: the launch before.
        main: the products.
        tokens: as they come, where that quantises them.
        sizes: pairs, words of the tile list and of the counts behind it; bytes of a row of inner activations and of its
            scales; columns of the result.
    """

    begin: Lazy
    main: Lazy
    tokens: Tokens | None
    sizes: tuple[int, int, int, int, int]

    def __call__(
        self, a: Tensor, a_scales: Tensor | None, first: Weight, second: Weight, ids: Tensor, expert_map: Tensor | None
    ) -> Tensor:
        """Return what each pair's expert makes of its token, fp32; of weights and their biases."""
        device = a.device
        needed, (pairs, *_, columns) = Scratch(), self.sizes
        places = self._places(needed)
        y = torch.empty((pairs, columns), dtype=torch.float32, device=device)
        with workspace.take(needed.nbytes, device) as arena:
            at = [0 if place is None else arena.address + place.add for place in places]
            found, tiles, data, scales, inner, inner_scales = at
            left = (a.data_ptr(), 0 if a_scales is None else a_scales.data_ptr())
            table = 0 if expert_map is None else expert_map.data_ptr()
            made = (left[0], data, scales) if self.tokens is not None else (0, 0, 0)
            pairs_by = ids.data_ptr(), table
            self.begin(device, found, tiles, *pairs_by, *made)
            one, two = (tuple(0 if t is None else t.data_ptr() for t in weight) for weight in (first, second))
            read = left if self.tokens is None else (data, scales)
            self.main(device, *read, *one, inner, inner_scales, *two, y.data_ptr(), tiles, found, *pairs_by)
        return y

    def _places(self, scratch: Scratch) -> list[Place | None]:
        """Take scratch: places, tiles, tokens and their scales, inner activations and theirs."""
        pairs, words, row, of_scales, _ = self.sizes
        t = self.tokens
        data = None if t is None else scratch.take(t.tokens * t.hidden // FORMATS[t.a_format].pack)
        scales = None if t is None else scratch.take(t.tokens * t.hidden // BLOCK)
        inner_scales = scratch.take(pairs * of_scales) if of_scales else None
        return [
            scratch.take(4 * pairs), scratch.take(4 * words), data, scales, scratch.take(pairs * row), inner_scales,
        ]  # fmt: skip

    def steps(self, device: torch.device, scratch: Scratch, *places: Place) -> list[Step]:
        """Describe it, of places of tokens, their scales, both weights, scales and biases, pairs' results, ids, map."""
        a, a_scales, w13, s13, b13, w2, s2, b2, y, ids, table = places
        nothing = fixed(0)
        found, tiles, data, scales, inner, inner_scales = (
            nothing if place is None else place for place in self._places(scratch)
        )
        quantises = self.tokens is not None
        read = (data, scales) if quantises else (a, a_scales)
        made = (a, data, scales) if quantises else (nothing, nothing, nothing)
        return [
            self.begin.step(device, found, tiles, ids, table, *made),
            self.main.step(device, *read, w13, s13, b13, inner, inner_scales, w2, s2, b2, y, tiles, found, ids, table),
        ]


@dataclass(frozen=True, slots=True)
class Quantised(Single):
    """Tokens to bytes and scales; its pointers are these."""

    tokens: Tokens

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return them."""
        t = self.tokens
        data = torch.empty((t.tokens, t.hidden // FORMATS[t.a_format].pack), dtype=torch.uint8, device=x.device)
        scales = torch.empty((t.tokens, t.hidden // BLOCK), dtype=torch.uint8, device=x.device)
        self.lazy(x.device, x.data_ptr(), data.data_ptr(), scales.data_ptr())
        return data, scales


@dataclass(frozen=True, slots=True)
class Routed(Single):
    """Pairs in the order of their experts, and a list of tiles of at most ``most`` entries.

    Its pointers are places, tiles, ids and map.
    """

    pairs: int
    most: int

    def __call__(self, ids: Tensor, expert_map: Tensor | None) -> Sorted:
        """Sort."""
        places = torch.empty(self.pairs, dtype=torch.int32, device=ids.device)
        tiles = torch.empty((self.most, 3), dtype=torch.int32, device=ids.device)
        table = 0 if expert_map is None else expert_map.data_ptr()
        self.lazy(ids.device, places.data_ptr(), tiles.data_ptr(), ids.data_ptr(), table)
        return Sorted(places, tiles, tiles)


@dataclass(frozen=True, slots=True)
class Combined(Single):
    """Pairs' results added up; its pointers are these, the router's weights, the result, ids and map."""

    def __call__(self, y: Tensor, ids: Tensor, weights: Tensor, expert_map: Tensor | None, out: Tensor) -> None:
        """Fill the result."""
        table = 0 if expert_map is None else expert_map.data_ptr()
        self.lazy(out.device, y.data_ptr(), weights.data_ptr(), out.data_ptr(), ids.data_ptr(), table)


def ids_alone(ids: Tensor, expert_map: Tensor | None) -> Sorted:
    """Pass ids and map on, for launches that find their pairs by them."""
    return Sorted(expert_map, ids, None)


def addresses(o: Operands) -> tuple[int, ...]:
    """Return where the operands are, in the order of ``mma.POINTERS``: ids are where offsets would be."""
    found = o.offsets if o.tiles is None else o.tiles
    given = (o.a, o.a_scales, o.w, o.w_scales, o.bias, o.out, o.out_scales, found, o.places)
    return tuple(0 if tensor is None else tensor.data_ptr() for tensor in given)
