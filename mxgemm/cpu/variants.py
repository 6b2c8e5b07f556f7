"""The variants of the C kernels, one for a kind of CPU, and which of them this CPU runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

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
    """

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]
    extras: Mapping[str, str] = field(default_factory=dict)

    def flags_for(self, features: frozenset[str]) -> tuple[str, ...]:
        """Return the flags for a CPU with these features."""
        return (*self.flags, *(flag for feature, flag in self.extras.items() if feature in features))


VARIANTS: Final = (
    Variant(
        "avx512_vnni",
        frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx2", "fma"}),
        (
            *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma"),
            "-mprefer-vector-width=512",
        ),
        {"avx512vbmi": "-mavx512vbmi", "avx512_bf16": "-mavx512bf16"},
    ),
    Variant("avx2", frozenset({"avx2", "fma"}), ("-mavx2", "-mfma")),
    Variant("neon_dotprod", frozenset({"asimddp"}), ("-march=armv8.2-a+dotprod",)),
)
"""The best first."""


def named() -> str:
    """Return the variant that the user names, "" for the best one."""
    return os.environ.get(VARIANT_VARIABLE, "")


def usable(of: str = "") -> tuple[Variant, ...] | Refusal:
    """Return the variants that this CPU runs, the best first, or say why there is none.

    Args:
        of: a variant's name, and then no other; :data:`NONE` for none.
    """
    if of == NONE:
        return Refusal(VARIANT_VARIABLE, NONE, "a variant's name, or to be unset", "machine")
    if of and of not in {variant.name for variant in VARIANTS}:
        wanted = ", ".join((*(variant.name for variant in VARIANTS), NONE))
        return Refusal(VARIANT_VARIABLE, repr(of), f"one of {wanted}", "installation")
    found = tuple(variant for variant in VARIANTS if of in ("", variant.name) and variant.needs <= cpu_features())
    if found:
        return found
    kind = f"{platform.machine()} on {platform.system()}"
    wanted = "; ".join(f"{v.name}: {' '.join(sorted(v.needs))}" for v in VARIANTS if of in ("", v.name))
    return Refusal("cpu", kind, f"features that Linux reports ({wanted})", "machine")
