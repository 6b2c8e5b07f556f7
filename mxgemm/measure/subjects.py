"""From text to something that parity can measure: routes, peers, functions, built kernels."""

from __future__ import annotations

import ctypes
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm import shared_library
from mxgemm.dispatcher import codecs
from mxgemm.dispatcher.execution import EmulatorExecution
from mxgemm.dispatcher.library import Library
from mxgemm.dispatcher.names import config_named
from mxgemm.dispatcher.operation import Inputs, Problem
from mxgemm.dispatcher.quantise import quantise
from mxgemm.errors import Refusal
from mxgemm.gemm import gemm
from mxgemm.measure.parity import Run, Subject
from mxgemm.measure.peers import PEERS
from mxgemm.mx.tensor import MXTensor
from mxgemm.quantize import quantize
from mxgemm.routes import ROUTES

FORMS: Final = "route:NAME, route:auto, peer:NAME, python:MODULE:FUNCTION or so:/path/to/library.so"


def subject_of(spec: str, device: torch.device, *, prepared: bool = True) -> Subject:
    """Read one side of a comparison.

    Args:
        spec: one of :data:`FORMS`. A function takes (activations, weight) and returns the product; if it has a
            parameter ``out``, it gets one.
        device: where it will run.
        prepared: a route gets ``weight.prepare()``, otherwise the row-major weight.

    Raises:
        ValueError: the text has another form, or names something that is not here.
    """
    kind, _, rest = spec.partition(":")
    makers: dict[str, Callable[[str, torch.device], Subject]] = {
        "route": lambda name, device: _route(name, prepared), "peer": _peer, "python": _function, "so": _library
    }  # fmt: skip
    if kind not in makers or not rest:
        raise ValueError(f"subject: got {spec!r}, want {FORMS}")
    return makers[kind](rest, device)


def _route(name: str, prepared: bool) -> Subject:
    if name not in ("auto", *ROUTES):
        raise ValueError(f"route: got {name!r}, want auto or one of {', '.join(ROUTES)}")

    def bind(a: Tensor, weight: MXTensor) -> Run:
        held, route = weight.prepare() if prepared else weight, None if name == "auto" else name
        return lambda out: gemm(a, held, route=route, out=out)

    return Subject(f"route {name}", bind, takes_out=True)


def _peer(name: str, device: torch.device) -> Subject:
    if name not in PEERS:
        raise ValueError(f"peer: got {name!r}, want one of {', '.join(PEERS)}")
    peer = PEERS[name]
    absent = peer.absent(device)
    if absent:
        raise ValueError(f"peer: {name} is absent: {absent}")

    def bind(a: Tensor, weight: MXTensor) -> Run:
        refusal = peer.refuses(a.shape[0], *weight.shape)
        if refusal:
            raise ValueError(refusal.reason)
        activations, loaded = peer.activations(a), peer.load(weight)
        return lambda out: peer.call(activations, loaded)

    return Subject(f"peer {name}", bind)


def _function(path: str, device: torch.device) -> Subject:
    del device
    module_name, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"python: got {path!r}, want MODULE:FUNCTION that can be imported ({error})") from error
    takes_out = "out" in inspect.signature(function).parameters

    def bind(a: Tensor, weight: MXTensor) -> Run:
        return (lambda out: function(a, weight, out=out)) if takes_out else (lambda out: function(a, weight))

    return Subject(path, bind, takes_out)


def _library(path: str, device: torch.device) -> Subject:
    missing = _missing_for_libraries(device)
    if missing:
        return _emulated(Path(path), missing)
    library = Library(path, _config_of(Path(path)))
    dtype = _result_dtype(library.config)

    def bind(a: Tensor, weight: MXTensor) -> Run:
        left, right, left_scales, right_scales = _operands(library.config, a, weight)
        own = torch.empty(a.shape[0], weight.shape[0], dtype=dtype, device=a.device)
        launch = library.bind(left, right, own, left_scales, right_scales)

        def run(out: Tensor | None) -> Tensor:
            if out is None:
                launch()
                return own
            library.bind(left, right, out, left_scales, right_scales)()
            return out

        return run

    return Subject(library.name, bind, takes_out=True, out_dtype=dtype)


def _emulated(path: Path, missing: Refusal) -> Subject:
    """Return a built kernel in the gfx950 emulator, where there is no GPU for it: its results, without a time."""
    config, source = _config_of(path), _source_of(path)
    place = EmulatorExecution()
    nor = place.missing(config, source)
    if nor:
        raise ValueError(f"so: {missing}; and {nor}")
    dtype = _result_dtype(config)

    def bind(a: Tensor, weight: MXTensor) -> Run:
        operands = [_array(x) for x in _operands(config, a, weight)]
        problem = Problem(a.shape[0], *weight.shape)
        left, right, left_scales, right_scales = operands
        inputs = Inputs(problem, left, right, left_scales, right_scales)

        def run(out: Tensor | None) -> Tensor:
            result = torch.from_numpy(place.run(config, path, inputs)[0])
            result = result.view(dtype) if result.dtype == torch.uint16 else result
            return result if out is None else out.copy_(result)

        return run

    return Subject(f"{config.name} (emulated)", bind, takes_out=True, out_dtype=dtype, timed=False)


def _array(x: Tensor | None) -> Any:
    """Return an operand as numpy has it: fp8 as bytes, bf16 as its bits."""
    if x is None:
        return None
    if x.dtype == torch.float32:
        return x.cpu().numpy()
    return x.cpu().view(torch.uint16 if x.dtype == torch.bfloat16 else torch.uint8).numpy()


def _result_dtype(config: Any) -> torch.dtype:
    return torch.bfloat16 if config.dtype.startswith("mx_") else torch.float16


def _missing_for_libraries(device: torch.device) -> Refusal | None:
    if device.type != "cuda" or torch.version.hip is None:
        needed = "an AMD GPU: built kernels are for one"
        return Refusal("device", device, needed, "machine", f"got device {device}, want {needed}")
    return None


def _config_of(path: Path) -> Any:
    """Find the configuration that a library was built from, by the name that it gives."""
    if not path.is_file():
        raise ValueError(f"so: got {path}, want the shared library of a built kernel")
    try:
        built = shared_library.load(path)
        for function in (built.dispatcher_get_kernel_name, built.dispatcher_get_arch):
            function.restype = ctypes.c_char_p
        name, arch = built.dispatcher_get_kernel_name().decode(), built.dispatcher_get_arch().decode()
    except (OSError, AttributeError) as error:
        raise ValueError(f"so: got {path}, want the shared library of a built kernel ({error})") from error
    return config_named(name, arch)


def _source_of(path: Path) -> str:
    built = shared_library.load(path)
    built.dispatcher_get_source.restype = ctypes.c_char_p
    source: bytes = built.dispatcher_get_source()
    return source.decode()


def _operands(config: Any, a: Tensor, weight: MXTensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Quantise both sides as a kernel takes them: A, B, scales of A, of B."""
    values = weight.dequantize(torch.bfloat16)
    if config.operation == "mx_gemm":
        left = quantize(a, format="e2m1" if config.dtype == "fp4" else "e4m3")
        right = weight if config.dtype == "fp4" else quantize(values, format="e4m3")
        return left.data, right.data, left.scales, right.scales
    if config.operation not in ("rowcolquant", "tensor_quant"):
        return quantise(config, a, values)
    name = codecs.storage_name(config.dtype, config.arch)
    one_scale = config.operation == "tensor_quant"
    left_bytes, left_scales = _scaled(a, getattr(torch, name), one_scale)
    right_bytes, right_scales = _scaled(values, getattr(torch, name), one_scale)
    return left_bytes, right_bytes, left_scales, right_scales


def _scaled(x: Tensor, dtype: torch.dtype, one_scale: bool) -> tuple[Tensor, Tensor]:
    """Quantise ``[rows, K]`` to an fp8 type with one fp32 scale for all of it, else one a row."""
    most = torch.finfo(dtype).max
    amax = x.abs().amax().view(1) if one_scale else x.abs().amax(1)
    scale = amax.float().clamp(min=2.0**-100) / most
    return (x.float() / scale[:, None]).clamp(-most, most).to(dtype), scale
