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
from typing import Any, ClassVar, Final, TypeVar

from mxgemm.arguments import as_int, shown
from mxgemm.dispatcher.arch import bare_arch
from mxgemm.errors import Refusal

_INT_MAX: Final = 2**31 - 1
Config = TypeVar("Config", bound="KernelConfig")


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
    """

    operation: ClassVar[str]
    """The operation: ``mx_gemm``, ``rowcolquant``, ``tensor_quant``."""
    arch_field: ClassVar[str]
    """The field that holds the architecture (the operations call it differently)."""
    dtype_field: ClassVar[str]
    """The field that holds the type of A and B."""
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

    def __post_init__(self) -> None:
        """Make plain ints of numpy's and others'; what is no integer stays, for :meth:`refusals` to name."""
        for name in _fields_of(self, "int"):
            with contextlib.suppress(TypeError):
                object.__setattr__(self, name, as_int(name, getattr(self, name)))

    @property
    def dtype(self) -> str:
        """CK's name of the type of A and B: ``fp8`` (e4m3), ``bf8`` (e5m2) or ``fp4`` (e2m1)."""
        dtype: str = getattr(self, self.dtype_field)
        return dtype

    @property
    def arch(self) -> str | None:
        """The architecture that the configuration is pinned to, or None."""
        arch: str | None = getattr(self, self.arch_field)
        return arch

    @property
    def name(self) -> str:
        """The kernel's name, byte for byte CK's."""
        parts = [self.prefix, self.dtype, self.layout, self.pipeline, self.epilogue, self.scheduler, *self.flags()]
        return "_".join([*(part if isinstance(part, str) else shown(part) for part in parts), self.tile_text()])

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
