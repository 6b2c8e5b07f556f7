"""What pickles and ``torch.save`` files of an MXTensor name: users' files hold this module's name and the function's.

The arguments are tensors and plain values, so that ``torch.load(weights_only=True)`` needs to know nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mxgemm.mx.formats import FormatName, element_format
from mxgemm.mx.layouts import Layout, ScaleLayout, WeightLayout
from mxgemm.mx.tensor import MXTensor


def load(
    data: Tensor,
    scales: Tensor,
    format: FormatName,
    shape: tuple[int, ...],
    weight_layout: WeightLayout,
    scale_layout: ScaleLayout,
) -> MXTensor:
    """Build what was saved, through the checks of the constructor.

    Raises:
        TypeError, ValueError: as :class:`mxgemm.MXTensor`; a damaged or foreign file.
    """
    return MXTensor(data, scales, element_format(format), shape, Layout(weight_layout, scale_layout))


torch.serialization.add_safe_globals([load])
