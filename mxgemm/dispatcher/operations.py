"""The operations of the bridge by name."""

from __future__ import annotations

from typing import Final

from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.mx_gemm import MxGemm
from mxgemm.dispatcher.operation import Operation
from mxgemm.dispatcher.rowcolquant import RowColQuant
from mxgemm.dispatcher.tensor_quant import TensorQuant

_ALL: Final[tuple[Operation, ...]] = (MxGemm(), RowColQuant(), TensorQuant())
OPERATIONS: Final[dict[str, Operation]] = {operation.name: operation for operation in _ALL}


def operation_of(config: KernelConfig) -> Operation:
    """Return the operation that a configuration is of."""
    return OPERATIONS[config.operation]
