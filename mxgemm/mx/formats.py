"""Element formats and block scales of the OCP Microscaling (MX) formats, as data.

Facts (OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6):

* A *block* is 32 consecutive elements along K that share one scale.
* A scale is an E8M0 byte ``e`` worth ``2**(e - 127)``: no sign, no zero, no infinity; 255 is NaN.
* ``e2m1`` (fp4) has the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 and neither infinity nor NaN.
* ``e4m3`` ends at 448 and has NaN but no infinity; ``e5m2`` ends at 57344 and has both.

The one rule for choosing a block's scale lives here too, see :func:`scale_addend`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

BLOCK: Final = 32
"""Elements along K that share one scale."""

E8M0_BIAS: Final = 127
"""Byte ``e`` is worth ``2**(e - E8M0_BIAS)``."""

E8M0_NAN: Final = 255
"""The scale byte of a block that holds a NaN or an infinity."""

FormatName = Literal["e2m1", "e4m3", "e5m2"]
ScaleRounding = Literal["even", "floor", "ceil", "rceil"]
ActivationFormat = Literal["e2m1", "e4m3", "bf16"]

SCALE_ROUNDINGS: Final[tuple[str, ...]] = get_args(ScaleRounding)
ACTIVATION_FORMATS: Final[tuple[str, ...]] = get_args(ActivationFormat)


@dataclass(frozen=True, slots=True)
class ElementFormat:
    """One element format.

    Attributes:
        name: the OCP name in lower case, ``e<exponent bits>m<mantissa bits>``.
        max: the largest finite magnitude.
        emax: the exponent of ``max``: ``max = (1 + fraction) * 2**emax``.
        mantissa_bits: stored mantissa bits, without the hidden one.
        bits: storage of one element.
        pack: elements in one byte, the lower nibble first.
    """

    name: FormatName
    max: float
    emax: int
    mantissa_bits: int
    bits: int
    pack: int

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], ElementFormat], tuple[str]]:
        return element_format, (self.name,)  # a copy is the format itself: code asks `is`


E2M1: Final = ElementFormat("e2m1", max=6.0, emax=2, mantissa_bits=1, bits=4, pack=2)
E4M3: Final = ElementFormat("e4m3", max=448.0, emax=8, mantissa_bits=3, bits=8, pack=1)
E5M2: Final = ElementFormat("e5m2", max=57344.0, emax=15, mantissa_bits=2, bits=8, pack=1)

FORMATS: Final[dict[str, ElementFormat]] = {f.name: f for f in (E2M1, E4M3, E5M2)}

E2M1_VALUES: Final[tuple[float, ...]] = (
    *(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
    *(-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0),
)
"""The value of each of the sixteen e2m1 codes."""

_FP32_MANTISSA_BITS: Final = 23
_FP32_MANTISSA_MASK: Final = (1 << _FP32_MANTISSA_BITS) - 1


def element_format(name: str, argument: str = "format") -> ElementFormat:
    """Look a format up by name.

    Raises:
        ValueError: ``name`` is not one of :data:`FORMATS`; the message names ``argument``.
    """
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise ValueError(f"{argument}: got {name!r}, want one of {', '.join(FORMATS)}") from None


def scale_addend(fmt: ElementFormat, rounding: str) -> int:
    """Return the integer that turns fp32 bits of a block's amax into its scale's exponent.

    Every rounding rule is the same three steps on the bits ``u`` of ``amax`` (a non-negative fp32):
    add a constant, keep the exponent, subtract ``emax``::

        byte = max(((u + scale_addend(fmt, rounding)) >> 23) - fmt.emax, 0)

    because adding to the mantissa carries into the exponent exactly where a rule rounds up. With
    ``amax = m * 2**e`` and ``1 <= m < 2`` the rules round up where

    * ``floor`` (OCP MX 1.0, section 6.3): never;
    * ``even`` (AMD Quark, AITER's Triton quantiser): ``m`` rounds up to 2 in the element's own precision,
      half an ulp of it or more, 1.75 for e2m1;
    * ``rceil`` (NVIDIA's rule, ``ceil(log2(amax / max))``): ``m`` exceeds the mantissa of ``fmt.max``;
    * ``ceil`` (``ceil(log2 amax) - emax``): ``m > 1``.

    amax = 0 and every fp32 subnormal give byte 0 (2**-127) under all four rules, since ``emax >= 2``. A block
    whose amax is Inf or NaN gets :data:`E8M0_NAN`, which the caller selects. Finite blocks stay below 255.

    Raises:
        ValueError: ``rounding`` is not one of :data:`SCALE_ROUNDINGS`.
    """
    if not isinstance(rounding, str) or rounding not in SCALE_ROUNDINGS:
        raise ValueError(f"scale_rounding: got {rounding!r}, want one of {', '.join(SCALE_ROUNDINGS)}")
    if rounding == "floor":
        return 0
    if rounding == "even":
        return 1 << (_FP32_MANTISSA_BITS - fmt.mantissa_bits - 1)
    if rounding == "ceil":
        return _FP32_MANTISSA_MASK
    mantissa_of_max = int((fmt.max / 2**fmt.emax - 1.0) * (1 << _FP32_MANTISSA_BITS))
    return _FP32_MANTISSA_MASK - mantissa_of_max
