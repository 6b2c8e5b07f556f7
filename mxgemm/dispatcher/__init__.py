"""CK-tile bridge: kernel configurations become compiled, callable kernels (docs/dispatcher.md)."""

from mxgemm.dispatcher.abquant import ABQuantKernelConfig
from mxgemm.dispatcher.aquant import AQuantKernelConfig
from mxgemm.dispatcher.arch import detect_arch
from mxgemm.dispatcher.bquant import BQuantKernelConfig
from mxgemm.dispatcher.build import BuildResult, build
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.errors import DispatcherError, DispatcherUnsupported, ToolchainMissing
from mxgemm.dispatcher.grouped import (
    GroupedABQuantKernelConfig,
    GroupedAQuantKernelConfig,
    GroupedBQuantKernelConfig,
    GroupedRowColQuantKernelConfig,
    GroupedTensorQuantKernelConfig,
)
from mxgemm.dispatcher.library import Library
from mxgemm.dispatcher.mx_gemm import MxGemmKernelConfig
from mxgemm.dispatcher.names import config_named
from mxgemm.dispatcher.operation import Inputs, Problem
from mxgemm.dispatcher.operations import OPERATIONS, operation_of
from mxgemm.dispatcher.rowcolquant import RowColQuantKernelConfig
from mxgemm.dispatcher.runner import Verdict, judge, make_inputs, reference, verify
from mxgemm.dispatcher.several import Call
from mxgemm.dispatcher.sweeps import Sweep, document_of, read_config, read_sweep, sweep_of
from mxgemm.dispatcher.tensor_quant import TensorQuantKernelConfig
from mxgemm.errors import BuildError

__all__ = [
    "OPERATIONS",
    "ABQuantKernelConfig",
    "AQuantKernelConfig",
    "BQuantKernelConfig",
    "BuildError",
    "BuildResult",
    "Call",
    "DispatcherError",
    "DispatcherUnsupported",
    "GroupedABQuantKernelConfig",
    "GroupedAQuantKernelConfig",
    "GroupedBQuantKernelConfig",
    "GroupedRowColQuantKernelConfig",
    "GroupedTensorQuantKernelConfig",
    "Inputs",
    "KernelConfig",
    "Library",
    "MxGemmKernelConfig",
    "Problem",
    "RowColQuantKernelConfig",
    "Sweep",
    "TensorQuantKernelConfig",
    "ToolchainMissing",
    "Verdict",
    "build",
    "config_named",
    "detect_arch",
    "document_of",
    "judge",
    "make_inputs",
    "operation_of",
    "read_config",
    "read_sweep",
    "reference",
    "sweep_of",
    "verify",
]
