"""What the configurations of every operation share: the fields of a CK-tile kernel, its tile's rules, its name.

A configuration says which kernel is meant, in CK tile's own terms. It does not say how the kernel is made: the two
sources (``native`` and ``ck_tile``) build the same configuration and export the same C functions.
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from mxgemm.arguments import as_int, shown
from mxgemm.dispatcher.arch import bare_arch
from mxgemm.dispatcher.codecs import PACK
from mxgemm.dispatcher.schemes import ONE, Extent, Scheme
from mxgemm.errors import Refusal

_INT_MAX: Final = 2**31 - 1
SEVERAL: Final = ("several", "several")
Config = TypeVar("Config", bound="KernelConfig")


class Segment(NamedTuple):
    """A part of a name that holds three sizes of groups: ``qg1x1x128``.

    Attributes:
        prefix: what it starts with.
        fields: the fields that hold the sizes along M, N and K; an int stands for itself.
    """

    prefix: str
    fields: tuple[str | int, str | int, str | int]


@dataclass(frozen=True, kw_only=True)
class KernelConfig(ABC):
    """One kernel: what an operation's own dataclass adds its types and its architecture to.

    Attributes:
        layout: a letter each for A, B and C, ``r`` row-major, ``c`` column-major. ``rcr``: A ``[M, K]``, B stored as
            ``[N, K]``, C ``[M, N]``.
        pipeline: CK's main loop.
        epilogue: how C leaves the registers.
        scheduler: how instructions of a wave interleave.
        tile_m: rows of C of a workgroup.
        tile_n: columns of C of a workgroup.
        tile_k: elements of K of an iteration.
        warp_m: waves along M.
        warp_n: waves along N.
        warp_k: waves along K.
        warp_tile_m: rows of a matrix instruction.
        warp_tile_n: columns of a matrix instruction.
        warp_tile_k: elements of K of a matrix instruction.
        k_block_per_cu: workgroups a compute unit is to hold; not part of the name.
        several: one launch multiplies several problems, each with its own operands and sizes. Ours, not CK's; the name
            ends with ``_several``.
    """

    operation: ClassVar[str]
    """The operation: ``mx_gemm``, ``rowcolquant``, ..."""
    arch_field: ClassVar[str]
    """The field that holds the architecture (the operations call it differently)."""
    dtype_field: ClassVar[str]
    """The field that holds the name of the types."""
    variants: ClassVar[tuple[str, ...]]
    """The names of the types that there are; below those of layouts, pipelines, epilogues and schedulers."""
    layouts: ClassVar[tuple[str, ...]] = ("rcr",)
    pipelines: ClassVar[tuple[str, ...]]
    epilogues: ClassVar[tuple[str, ...]] = ("cshuffle",)
    schedulers: ClassVar[tuple[str, ...]] = ("intrawave",)
    segments: ClassVar[tuple[Segment, ...]] = ()
    """The groups that the name holds after the tile."""
    tail_flags: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Flags that the name holds at its end, where they are on: field and word."""
    flag_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that the name holds as True or False, in its order; the last may be left out where it is off."""
    prefix: ClassVar[str]
    """What the kernel's name starts with."""

    layout: str = "rcr"
    pipeline: str
    epilogue: str = "cshuffle"
    scheduler: str = "intrawave"
    tile_m: int
    tile_n: int
    tile_k: int
    warp_m: int
    warp_n: int
    warp_k: int
    warp_tile_m: int
    warp_tile_n: int
    warp_tile_k: int
    k_block_per_cu: int = 1
    several: bool = False

    def __post_init__(self) -> None:
        """Make plain ints of numpy's and others'; what is no integer stays, for :meth:`refusals` to name."""
        for name in _fields_of(self, "int"):
            with contextlib.suppress(TypeError):
                object.__setattr__(self, name, as_int(name, getattr(self, name)))

    @property
    def dtype(self) -> str:
        """The name of the types in the kernel's name: ``fp8``, ``bf8``, ``fp4``, ``fp8i4``, ``mx_bf16fp4``, ..."""
        dtype: str = getattr(self, self.dtype_field)
        return dtype

    @property
    @abstractmethod
    def scheme(self) -> Scheme:
        """The operands' types and scales; of a configuration without refusals."""

    @property
    def effective_epilogue(self) -> str:
        """The epilogue that the name holds: the one that CK's generator emits, which need not be the one asked for."""
        return self.epilogue

    @property
    def instruction(self) -> tuple[int, int, int]:
        """Rows, columns and depth of the matrix instruction."""
        return self.warp_tile_m, self.warp_tile_n, self.warp_tile_k

    @property
    def waves(self) -> int:
        """Waves of a workgroup."""
        return self.warp_m * self.warp_n * self.warp_k

    @property
    def a_is_column_major(self) -> bool:
        """Whether memory holds A as ``[K, M]``."""
        return self.layout.startswith("c")

    @property
    def b_is_row_major(self) -> bool:
        """Whether memory holds B as ``[K, N]``."""
        return self.layout[1:2] == "r"

    def operand_shapes(self, m: int, n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the shapes of A and B as they lie in memory, in stored values (two packed elements are one)."""
        scheme = self.scheme
        a = (k, m) if self.a_is_column_major else (m, k)
        b = (k, n) if self.b_is_row_major else (n, k)
        return (a[0], a[1] // PACK[scheme.a]), (b[0], b[1] // PACK[scheme.b])

    def scale_shapes(self, m: int, n: int, k: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Return the shapes of the scales of A and of B; None where there are none."""
        a, b = self.scheme.a_scale, self.scheme.b_scale
        return (a.shape(m, k) if a else None), (b.shape(n, k) if b else None)

    def extents(self) -> dict[str, Extent]:
        """Return what a call's strides and counts must be, by the names of the C function's parameters."""
        found = {
            "stride_A": Extent("m" if self.a_is_column_major else "k"),
            "stride_B": Extent("n" if self.b_is_row_major else "k"),
            "stride_C": Extent("n"),
        }
        for scale, letter, size in ((self.scheme.a_scale, "A", "m"), (self.scheme.b_scale, "B", "n")):
            if scale:
                along_k = Extent("k", scale.k) if scale.k else ONE
                found[f"stride_{letter}Q"] = scale.extent(size) if scale.k_slowest else along_k
                found |= {f"QK_{letter}": along_k, f"Q{size.upper()}_{letter}": scale.extent(size)}
        return found

    @property
    def arch(self) -> str | None:
        """The architecture that the configuration is pinned to, or None."""
        arch: str | None = getattr(self, self.arch_field)
        return arch

    @property
    def name(self) -> str:
        """The kernel's name, byte for byte CK's."""
        parts = [self.prefix, self.dtype, self.layout, self.pipeline, self._epilogue_word(), self.scheduler]
        words = [part if isinstance(part, str) else shown(part) for part in (*parts, *self.flags())]
        groups = [f"{prefix}{'x'.join(map(self._size_word, fields))}" for prefix, fields in self.segments]
        tail = [word for field, word in (*self.tail_flags, SEVERAL) if getattr(self, field) is True]
        return "_".join([*words, self.tile_text(), *groups, *tail])

    def _epilogue_word(self) -> Any:
        return self.effective_epilogue if not size_refusals(self) else self.epilogue

    def _size_word(self, field: str | int) -> str:
        return str(field) if isinstance(field, int) else shown(getattr(self, field))

    def flags(self) -> tuple[bool, ...]:
        """Return what the name holds as True or False: values of ``flag_fields``."""
        return ()

    def pinned(self: Config, gfx_arch: str) -> Config:
        """Return this configuration for an architecture.

        Raises:
            TypeError, ValueError: it is no AMD architecture, or the configuration is pinned to another one.
        """
        wanted = bare_arch(gfx_arch)
        if self.arch is not None and bare_arch(self.arch) != wanted:
            raise ValueError(f"gfx_arch: got {wanted}, but {self.name} has {self.arch_field}={self.arch!r}")
        fields: dict[str, Any] = {self.arch_field: wanted}
        return dataclasses.replace(self, **fields)

    @abstractmethod
    def refusals(self, gfx_arch: str | None = None) -> tuple[Refusal, ...]:
        """Return every reason why this kernel must not be built, field by field; empty if there is none.

        Args:
            gfx_arch: judge for this architecture; default: the one that it is pinned to. Without either the rules that
                depend on the architecture are left out.
        """

    def is_valid(self, gfx_arch: str | None = None) -> bool:
        """Return whether nothing speaks against building it."""
        return not self.refusals(gfx_arch)

    def check(self, gfx_arch: str | None = None) -> None:
        """Raise ValueError with every refusal, if there is one."""
        found = self.refusals(gfx_arch)
        if found:
            raise ValueError(f"{self.name}: {joined(found)}")

    def tile_text(self) -> str:
        """Return the part of the name that every operation ends with: tile, waves, instruction."""
        return "_".join(
            "x".join(shown(getattr(self, f"{part}_{axis}")) for axis in "mnk") for part in ("tile", "warp", "warp_tile")
        )


def wrong(field: str, value: object, needed: str, got: str = "") -> Refusal:
    """Return the refusal of a field in an argument's words; ``got`` is the value in words, where it is not as given."""
    return Refusal(field, value, needed, words=f"{field}: got {got or shown(value)}, want {needed}")


def joined(refusals: Iterable[Refusal]) -> str:
    """Return all refusals in one line."""
    return "; ".join(map(str, refusals))


def wrong_choice(field: str, value: object, choices: tuple[str, ...]) -> list[Refusal]:
    """Return the refusal of a field that takes one of a few names, or nothing."""
    right = isinstance(value, str) and value in choices
    return [] if right else [wrong(field, value, " or ".join(map(repr, choices)))]


def choice_refusals(config: KernelConfig) -> list[Refusal]:
    """Return the refusals of types, layout, pipeline, epilogue and scheduler that the operation does not have."""
    fields = (
        (config.dtype_field, config.variants),
        ("layout", config.layouts),
        ("pipeline", config.pipelines),
        ("epilogue", config.epilogues),
        ("scheduler", config.schedulers),
    )
    return [why for field, choices in fields for why in wrong_choice(field, getattr(config, field), choices)]


def wrong_arch(field: str, arch: str, choices: tuple[str, ...]) -> list[Refusal]:
    """Return the refusal of an architecture, whatever its feature suffixes, or nothing."""
    try:
        return wrong_choice(field, bare_arch(arch), choices)
    except (TypeError, ValueError):
        return wrong_choice(field, arch, choices)


def flag_refusals(config: KernelConfig) -> list[Refusal]:
    """Return the refusals of flags that are no bool: 1 would be another name and another header than True."""
    flags = [(name, getattr(config, name)) for name in _fields_of(config, "bool")]
    return [wrong(name, flag, "True or False") for name, flag in flags if not isinstance(flag, bool)]


def tile_refusals(config: KernelConfig) -> list[Refusal]:
    """Return what is wrong with a tile in itself: sizes, divisibility, and the cluster known to be wrong upstream."""
    found = size_refusals(config)
    if found:
        return found
    for axis in "mnk":
        tile, waves, step = (getattr(config, f"{part}_{axis}") for part in ("tile", "warp", "warp_tile"))
        if tile % (waves * step):
            needed = f"a multiple of warp_{axis} * warp_tile_{axis} = {waves * step}"
            found.append(wrong(f"tile_{axis}", tile, needed))
    return found + _known_bad(config)


def size_refusals(config: KernelConfig) -> list[Refusal]:
    """Return the refusals of sizes that are none."""
    sizes = [(name, getattr(config, name)) for name in _fields_of(config, "int")]
    return [
        wrong(name, size, f"a positive int of at most {_INT_MAX}")
        for name, size in sizes
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _INT_MAX
    ]


def _fields_of(config: KernelConfig, kind: str) -> list[str]:
    """Return the names of the fields that are annotated as ``int``, or as ``bool``."""
    return [field.name for field in dataclasses.fields(config) if field.type == kind]


def _known_bad(config: KernelConfig) -> list[Refusal]:
    cluster = (config.warp_m, config.warp_n, config.warp_k) == (2, 2, 1)
    step = (config.warp_tile_m, config.warp_tile_n, config.warp_tile_k) == (32, 32, 32)
    if cluster and step and config.layout.startswith("r") and 192 in (config.tile_m, config.tile_n):
        got = f"{config.tile_m}, {config.tile_n} with waves 2x2x1, instruction 32x32x32 and A row-major"
        needed = "another: CK's kernels of this cluster give wrong results (ROCm/rocm-libraries#10439)"
        return [wrong("tile_m, tile_n", (config.tile_m, config.tile_n), needed, got)]
    return []
