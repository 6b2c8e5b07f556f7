"""What a form of the product is, and the rule that all of them quantise by."""

from collections.abc import Callable

import torch

EVEN_RULE = 0x200000
"""Added to the bits of a block's largest magnitude before its exponent is taken: rounds up from 1.75 on."""

Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(A, B_shuffle, B_scale_sh) -> C``, in fresh memory."""


class NotHere(Exception):
    """A form is not meant for this machine or shape; the next one is, and nothing is wrong."""
