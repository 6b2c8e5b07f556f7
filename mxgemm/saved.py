"""How an MXTensor is pickled, copied and saved: as a call of :func:`load`.

Users' files hold the name ``mxgemm.saved.load``, which is therefore permanent, with the order of its arguments. These
are tensors and plain values, so that ``torch.load(weights_only=True)`` needs to know nothing else. Pickle finds the
rule in ``copyreg``: the class itself knows nothing of files.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

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


def _reduce(tensor: MXTensor) -> tuple[Callable[..., MXTensor], tuple[Any, ...]]:
    if tensor.prepared is not None and not tensor.prepared.arguments.keep:
        tensor = tensor.row_major()
    sizes = tuple(int(size) for size in tensor.shape)
    return load, (tensor.data, tensor.scales, tensor.format.name, sizes, tensor.layout.data, tensor.layout.scales)


copyreg.pickle(MXTensor, _reduce)
torch.serialization.add_safe_globals([load])
