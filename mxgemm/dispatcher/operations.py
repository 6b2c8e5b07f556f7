"""The operations of the bridge by name."""

from __future__ import annotations

from typing import Final

from mxgemm.arguments import shown
from mxgemm.dispatcher.abquant import ABQuant
from mxgemm.dispatcher.aquant import AQuant
from mxgemm.dispatcher.bquant import BQuant
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.grouped import (
    GroupedABQuant,
    GroupedAQuant,
    GroupedBQuant,
    GroupedRowColQuant,
    GroupedTensorQuant,
)
from mxgemm.dispatcher.mx_gemm import MxGemm
from mxgemm.dispatcher.operation import Operation
from mxgemm.dispatcher.rowcolquant import RowColQuant
from mxgemm.dispatcher.tensor_quant import TensorQuant

_ALL: Final[tuple[Operation, ...]] = (
    *(MxGemm(), RowColQuant(), TensorQuant(), AQuant(), ABQuant(), BQuant()),
    *(GroupedRowColQuant(), GroupedTensorQuant(), GroupedAQuant(), GroupedABQuant(), GroupedBQuant()),
)
OPERATIONS: Final[dict[str, Operation]] = {operation.name: operation for operation in _ALL}


def operation_of(config: KernelConfig) -> Operation:
    """Return the operation that a configuration is of.

    Raises:
        TypeError: it is no configuration of one.
    """
    operation = OPERATIONS.get(getattr(config, "operation", ""))
    if operation is None or not isinstance(config, operation.config_type):
        raise TypeError(f"config: got {shown(config)}, want a configuration of {', '.join(OPERATIONS)}")
    return operation
