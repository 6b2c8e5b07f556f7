"""The variants of the C kernels, one for a kind of CPU, and which of them this CPU runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mxgemm import notices
from mxgemm.cpu import abi
from mxgemm.device import cpu_features
from mxgemm.errors import Refusal

VARIANT_VARIABLE: Final = "MXGEMM_CPU"
"""Names the one variant to build, or "none" for torch's own arithmetic."""
NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compile the kernels.

    Attributes:
        name: of the header that has its vectors.
        needs: features of the CPU, as Linux names them.
        flags: of GCC and Clang.
        extras: flags for features that it uses where they are.
        permitted: asks the system for what it hands out only when asked.
    """

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]
    extras: Mapping[str, str] = field(default_factory=dict)
    permitted: Callable[[], bool] = lambda: True

    def flags_for(self, features: frozenset[str]) -> tuple[str, ...]:
        """Return the flags for a CPU with these features."""
        return (*self.flags, *(flag for feature, flag in self.extras.items() if feature in features))


_AVX512: Final = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx2", "fma"})
_AVX512_FLAGS: Final = (
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma"),
    "-mprefer-vector-width=512",
)
VARIANTS: Final = (
    Variant(
        "amx_bf16",
        _AVX512 | {"amx_tile", "amx_bf16", "avx512vbmi", "avx512_bf16"},
        (*_AVX512_FLAGS, "-mavx512vbmi", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
        permitted=abi.permit_matrix_unit,
    ),
    Variant("avx512_vnni", _AVX512, _AVX512_FLAGS, {"avx512vbmi": "-mavx512vbmi", "avx512_bf16": "-mavx512bf16"}),
    Variant("avx2", frozenset({"avx2", "fma"}), ("-mavx2", "-mfma")),
    Variant("neon_dotprod", frozenset({"asimddp"}), ("-march=armv8.2-a+dotprod",)),
)
"""The best first."""


BESIDE: Final = ("amx_bf16", "avx512_bf16", "avx512vbmi", "bf16", "i8mm")
"""Features that a variant does not need and that change how long its kernels, or torch's products, take."""


def kind() -> str:
    """Name the kind of CPU that times hold for: its best variant, and what else it has; "" without a variant.

    A Zen 4 and a Zen 5 are "avx512_vnni+avx512_bf16+avx512vbmi", a Xeon with AMX is "amx_bf16", and the same one whose
    user names the variant avx512_vnni, where torch's products have AMX all the same, is one of its own.
    """
    found = usable(named())
    if isinstance(found, Refusal):
        return ""
    best, features = found[0], cpu_features()
    if "amx_bf16" in features and best.name != "amx_bf16" and not abi.permit_matrix_unit():
        features -= {"amx_bf16"}
    return "+".join((best.name, *(one for one in BESIDE if one in features and one not in best.needs)))


def named() -> str:
    """Return the variant that the user names, "" for the best one."""
    return os.environ.get(VARIANT_VARIABLE, "")


def usable(of: str = "") -> tuple[Variant, ...] | Refusal:
    """Return the variants that this CPU runs, the best first, or say why there is none.

    That the system refuses one, and another serves, is logged once.

    Args:
        of: a variant's name, and then no other; :data:`NONE` for none.
    """
    if of == NONE:
        return Refusal(VARIANT_VARIABLE, NONE, "a variant's name, or to be unset", "machine")
    if of and of not in {variant.name for variant in VARIANTS}:
        wanted = ", ".join((*(variant.name for variant in VARIANTS), NONE))
        return Refusal(VARIANT_VARIABLE, repr(of), f"one of {wanted}", "installation")
    had = tuple(variant for variant in VARIANTS if of in ("", variant.name) and variant.needs <= cpu_features())
    found = tuple(variant for variant in had if variant.permitted())
    if found:
        for variant in had[: had.index(found[0])]:
            notices.say_once(
                f"the system refuses {variant.name} on this CPU, which has it (arch_prctl, as a sandbox may); "
                f"using {found[0].name}, which is slower for many rows"
            )
        return found
    if had:
        return Refusal("cpu", f"{had[0].name} refused by the system", "arch_prctl to permit it", "machine")
    kind = f"{platform.machine()} on {platform.system()}"
    wanted = "; ".join(f"{v.name}: {' '.join(sorted(v.needs))}" for v in VARIANTS if of in ("", v.name))
    return Refusal("cpu", kind, f"features that Linux reports ({wanted})", "machine")
