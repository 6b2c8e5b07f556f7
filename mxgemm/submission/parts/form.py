"""What a form of the product is, and the rule that all of them quantise by."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

EVEN_RULE = 0x200000
"""Added to the bits of a block's largest magnitude before its exponent is taken: rounds up from 1.75 on."""

Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(A, B_shuffle, B_scale_sh) -> C``, in fresh memory."""


class NotHere(Exception):
    """A form is not meant for this machine or shape; the next one is, and nothing is wrong."""


class FormKind(NamedTuple):
    """A way to compute the product.

    ``tiles(m, n, k, arch)`` gives its tiles for a shape by what they are called, the one that should be fastest first,
    or raises NotHere; ``build(m, n, k, device, tile)`` makes one of them a form.
    """

    tiles: Callable[[int, int, int, str], dict[str, Any]]
    build: Callable[[int, int, int, torch.device, Any], Form]


said: set[str] = set()


def say_once(text: str) -> None:
    """Print to standard error what was not said before."""
    if text not in said:
        said.add(text)
        print(text, file=sys.stderr, flush=True)
