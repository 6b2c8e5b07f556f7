"""Where the scales of a quantised GEMM are: one frozen value a scheme, with the shapes that it wants of both sides.

``C[m, n] = sum over k of A[m, k] * B[n, k]``, each element times its scale. The schemes are those of CK Tile's
block-scale kernels (``docs/dispatcher.md``): tensor_quant, rowcolquant, aquant, abquant and bquant with its MX forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from mxgemm.arguments import as_int, one_of, shown
from mxgemm.scaled.formats import FP8

Kind = Literal["none", "tensor", "row", "group"]
Shape = tuple[int, ...]

LEAST_GROUP: Final = 32
"""Elements along K of the smallest group, and what every group is a multiple of: the depth of a matrix instruction."""
_INTEGER: Final = ("int4",)


@dataclass(frozen=True)
class Scheme:
    """What all schemes answer.

    Attributes:
        name: of the operation in CK's terms.
        a_kind: what a scale of A covers: "none" (A has none), "tensor", "row" or "group".
        b_kind: the same of B.
        pairs: formats of A and of B that it multiplies, by groups of names.
    """

    name: ClassVar[str]
    a_kind: ClassVar[Kind] = "group"
    b_kind: ClassVar[Kind] = "group"
    pairs: ClassVar[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = ((FP8, FP8),)

    @property
    def groups(self) -> tuple[int, ...]:
        """The group sizes that make the scheme, in the order of its arguments."""
        return ()

    @property
    def a_group(self) -> int:
        """Elements along K that share a scale of A; 1 where scales of A are no groups."""
        return 1

    @property
    def b_group(self) -> tuple[int, int]:
        """Rows of B and elements along K that share a scale of B; 1 where scales of B are no groups."""
        return 1, 1

    @property
    def b_powers(self) -> bool:
        """Whether scales of B are E8M0 bytes."""
        return False

    def allows(self, a_format: str, b_format: str) -> bool:
        """Say whether the scheme multiplies these formats."""
        return any(a_format in left and b_format in right for left, right in self.pairs)

    def a_scale_shape(self, rows: Shape, k: int) -> Shape | None:
        """Return the shape of A's scales for A of shape ``(*rows, k)``, None where it has none."""
        return _scale_shape(self.a_kind, rows, k, (1, self.a_group))

    def b_scale_shape(self, n: int, k: int) -> Shape | None:
        """Return the shape of B's scales for B of shape ``(n, k)``, None where it has none."""
        return _scale_shape(self.b_kind, (n,), k, self.b_group)


@dataclass(frozen=True)
class TensorWise(Scheme):
    """One fp32 scale for A and one for B: ``[]`` or ``[1]`` each."""

    name: ClassVar[str] = "tensor_quant"
    a_kind: ClassVar[Kind] = "tensor"
    b_kind: ClassVar[Kind] = "tensor"


@dataclass(frozen=True)
class RowCol(Scheme):
    """One fp32 scale for each row of A ``[M]`` and each row of B (column of C) ``[N]``."""

    name: ClassVar[str] = "rowcolquant"
    a_kind: ClassVar[Kind] = "row"
    b_kind: ClassVar[Kind] = "row"


@dataclass(frozen=True)
class ABlock(Scheme):
    """One scale for ``k`` elements of a row of A: ``[M, ceil(K/k)]``; B has none.

    Attributes:
        k: elements of a group, a multiple of 32.

    Raises:
        TypeError, ValueError: a group that is no integer, or of a size that no kernel has.
    """

    k: int = 128
    name: ClassVar[str] = "aquant"
    b_kind: ClassVar[Kind] = "none"
    pairs: ClassVar[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = (((*FP8, *_INTEGER), FP8),)

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", _along_k("k", self.k))

    @property
    def groups(self) -> tuple[int, ...]:
        """``(k,)``."""
        return (self.k,)

    @property
    def a_group(self) -> int:
        """``k``."""
        return self.k


@dataclass(frozen=True)
class ABBlock(Scheme):
    """One fp32 scale for ``ak`` elements of a row of A, and one for ``bn`` rows by ``bk`` elements of B.

    A's are ``[M, ceil(K/ak)]``, B's ``[ceil(N/bn), ceil(K/bk)]``. ABBlock() is DeepSeek-V3's 1x128 by 128x128.

    Attributes:
        ak: elements of a group of A, a multiple of 32.
        bn: rows of a group of B.
        bk: elements of a group of B, a multiple of 32.

    Raises:
        TypeError, ValueError: a group that is no integer, or of a size that no kernel has.
    """

    ak: int = 128
    bn: int = 128
    bk: int = 128
    name: ClassVar[str] = "abquant"
    pairs: ClassVar[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = ((FP8, FP8), (("e2m1",), ("e2m1",)))

    def __post_init__(self) -> None:
        object.__setattr__(self, "ak", _along_k("ak", self.ak))
        object.__setattr__(self, "bn", _rows("bn", self.bn))
        object.__setattr__(self, "bk", _along_k("bk", self.bk))

    @property
    def groups(self) -> tuple[int, ...]:
        """``(ak, bn, bk)``."""
        return self.ak, self.bn, self.bk

    @property
    def a_group(self) -> int:
        """``ak``."""
        return self.ak

    @property
    def b_group(self) -> tuple[int, int]:
        """``(bn, bk)``."""
        return self.bn, self.bk


@dataclass(frozen=True)
class BBlock(Scheme):
    """One scale for ``n`` rows by ``k`` elements of B: ``[ceil(N/n), ceil(K/k)]``; A has none.

    Attributes:
        n: rows of a group.
        k: elements of a group, a multiple of 32.
        scale: "fp32", or "e8m0", powers of two in a byte (255 is NaN), where A is bf16 and B is bf16, fp8 or fp4.

    Raises:
        TypeError, ValueError: a group that is no integer, or of a size that no kernel has, or an unknown scale.
    """

    n: int = 1
    k: int = 128
    scale: Literal["fp32", "e8m0"] = "fp32"
    name: ClassVar[str] = "bquant"
    a_kind: ClassVar[Kind] = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _rows("n", self.n))
        object.__setattr__(self, "k", _along_k("k", self.k))
        one_of("scale", self.scale, ("fp32", "e8m0"))

    @property
    def groups(self) -> tuple[int, ...]:
        """``(n, k)``."""
        return self.n, self.k

    @property
    def b_group(self) -> tuple[int, int]:
        """``(n, k)``."""
        return self.n, self.k

    @property
    def b_powers(self) -> bool:
        """``scale == "e8m0"``."""
        return self.scale == "e8m0"

    def allows(self, a_format: str, b_format: str) -> bool:
        """bf16 by bf16, OCP fp8 or fp4 for E8M0 scales; else fp8 by fp8 or int4."""
        if self.b_powers:
            return a_format == "bf16" and b_format in ("bf16", "e4m3", "e5m2", "e2m1")
        return a_format in FP8 and b_format in (*FP8, *_INTEGER)


SCHEMES: Final[dict[str, type[Scheme]]] = {s.name: s for s in (TensorWise, RowCol, ABlock, ABBlock, BBlock)}


def described(scheme: Scheme) -> tuple[str, list[int]]:
    """Return a scheme as an operator's arguments hold it: its name and its groups."""
    return scheme.name + ("_e8m0" if scheme.b_powers else ""), list(scheme.groups)


def scheme_of(name: str, groups: list[int]) -> Scheme:
    """Return the scheme that :func:`described` gave.

    Raises:
        TypeError, ValueError: there is none of this name, or it has another number of groups.
    """
    powers = isinstance(name, str) and name == f"{BBlock.name}_e8m0"
    kind = BBlock if powers else SCHEMES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"scheme: got {shown(name)}, want one of {', '.join(SCHEMES)}, {BBlock.name}_e8m0")
    wanted = len(kind().groups)
    if len(groups) != wanted:
        raise ValueError(f"groups: got {len(groups)} sizes for {name}, want {wanted}")
    return kind(*groups, *(("e8m0",) if powers else ()))


def check_scheme(scheme: object) -> Scheme:
    """Return a scheme.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(scheme, Scheme) or type(scheme) is Scheme:
        raise TypeError(f"scheme: got {shown(scheme)}, want a TensorWise, RowCol, ABlock, ABBlock or BBlock")
    return scheme


def _scale_shape(kind: Kind, rows: Shape, k: int, group: tuple[int, int]) -> Shape | None:
    if kind == "none":
        return None
    if kind == "tensor":
        return (1,)
    if kind == "row":
        return rows
    return (*rows[:-1], -(-rows[-1] // group[0]), -(-k // group[1])) if rows else (-(-k // group[1]),)


def _along_k(name: str, value: object) -> int:
    size = as_int(name, value)
    if size < LEAST_GROUP or size % LEAST_GROUP or size > 1 << 30:
        raise ValueError(
            f"{name}: got {shown(value)}, want a multiple of {LEAST_GROUP}, the elements along K of a group"
        )
    return size


def _rows(name: str, value: object) -> int:
    size = as_int(name, value)
    if not 1 <= size <= 1 << 30:
        raise ValueError(f"{name}: got {shown(value)}, want at least 1, the rows of B of a group")
    return size
