"""Every argument of every public call gets things of every wrong kind: an error that names it, or a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import mxgemm
from mxgemm import dispatcher
from mxgemm.dispatcher import jit
from mxgemm.errors import RouteUnavailable
from mxgemm.mx.formats import ElementFormat

WEIGHT = mxgemm.quantize(torch.ones(32, 64))
CONFIG = dispatcher.MxGemmKernelConfig(gpu_target="gfx950")
PROBLEM = dispatcher.Problem(2, 3, 32)
INPUTS = dispatcher.make_inputs(CONFIG, PROBLEM)


class Unhashable:
    """Cannot be looked up in a set or a dict."""

    __hash__ = None  # type: ignore[assignment]


WRONG: dict[str, Any] = {
    "None": None,
    **{repr(number): number for number in (0, -1, 7, 2**70, 1.5, float("nan"), 1j, True)},
    **{repr(text): text for text in ("x", "", "[/x]\0\udcff", b"", np.str_("y"))},
    **{repr(several): several for several in ([], ["e2m1"], (), {}, {1})},
    "object": object(),
    "unhashable": Unhashable(),
    "class": int,
    "function": len,
    "array": np.zeros((2, 3)),
    "numpy int": np.int64(5),
    "tensor": torch.zeros(2, 3),
    "int tensor": torch.zeros(2, 3, dtype=torch.int32),
    "bytes tensor": torch.zeros(7, 5, dtype=torch.uint8),
    "double tensor": torch.zeros(2, 64, dtype=torch.float64),
    "scalar": torch.tensor(1.0),
    "empty tensor": torch.empty(0),
    "dtype": torch.int8,
    "device": torch.device("meta"),
    "MXTensor": mxgemm.quantize(torch.ones(5, 96)),
    "configuration": dispatcher.RowColQuantKernelConfig(gfx_arch="gfx950"),
    "element format": ElementFormat,
}


def _calls() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    a = torch.ones(4, 64, dtype=torch.bfloat16)
    yield "gemm", mxgemm.gemm, {"a": a, "b": WEIGHT.data, "b_scales": WEIGHT.scales}
    yield "gemm of an MXTensor", mxgemm.gemm, {"a": a, "b": WEIGHT}
    yield "gemm_mx", mxgemm.gemm_mx, {"a": mxgemm.quantize(a), "b": WEIGHT}
    yield "quantize", mxgemm.quantize, {"x": a}
    yield "dequantize", mxgemm.dequantize, {"x": WEIGHT}
    yield "explain", mxgemm.explain, {"m": 4, "n": 32, "k": 64, "device": "gfx950"}
    yield "MXTensor.wrap", mxgemm.MXTensor.wrap, {"data": WEIGHT.data, "scales": WEIGHT.scales}
    yield "MXTensor.prepare", WEIGHT.prepare, {"arch": "gfx950"}
    yield "MXTensor.dequantize", WEIGHT.dequantize, {}
    yield "operation_of", dispatcher.operation_of, {"config": CONFIG}
    yield "config_named", dispatcher.config_named, {"name": CONFIG.name, "gfx_arch": "gfx950"}
    yield "build", dispatcher.build, {"configs": [], "gfx_arch": "gfx950"}
    yield "Library", dispatcher.Library, {"path": __file__, "config": CONFIG}
    yield "make_inputs", dispatcher.make_inputs, {"config": CONFIG, "problem": PROBLEM}
    yield "reference", dispatcher.reference, {"config": CONFIG, "inputs": INPUTS}
    out = np.zeros((2, 3), np.float16)
    yield "judge", dispatcher.judge, {"problem": PROBLEM, "out": out, "expected": out, "time_ms": None}
    yield "Problem", dispatcher.Problem, {"m": 1, "n": 1, "k": 32}
    yield "pinned", CONFIG.pinned, {"gfx_arch": "gfx950"}
    shapes = {"a": (2, 32), "b": (3, 32), "a_scales": (2, 1), "b_scales": (3, 1)}
    operands = {name: torch.zeros(shape, dtype=torch.uint8) for name, shape in shapes.items()}
    yield "quant_gemm", jit.quant_gemm, {**operands, "kind": "e4m3"}
    yield "Tile", jit.Tile, {}


CALLS = {name: (function, given) for name, function, given in _calls()}
NAMED_BY = {"data": ("data", "shape"), "config": ("config", "inputs", str(__file__))}
"""What else a message may name: the shape that bytes make, what does not belong to a configuration that is right."""
ARGUMENTS = [
    (name, argument) for name, (function, _) in CALLS.items() for argument in inspect.signature(function).parameters
]


def _error_of(function: Callable[..., Any], **given: Any) -> Exception | None:
    try:
        function(**given)
    except (TypeError, ValueError, RouteUnavailable, OSError, dispatcher.ToolchainMissing) as error:
        return error
    return None


@pytest.mark.parametrize("name, argument", ARGUMENTS)
def test_a_wrong_argument_is_named(name: str, argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # nothing is to be built or asked
    function, given = CALLS[name]
    refused = 0
    for kind, wrong in WRONG.items():
        error = _error_of(function, **{**given, argument: wrong})
        if error is not None:
            refused += 1
            named = any(part in str(error) for part in NAMED_BY.get(argument, (argument,)))
            assert named, (kind, type(error), str(error))
            assert len(str(error)) < 2000, (kind, len(str(error)))
    assert refused >= len(WRONG) // 2, "a test that most wrong things pass tells little"


@pytest.mark.parametrize("kind", [dispatcher.MxGemmKernelConfig, dispatcher.RowColQuantKernelConfig])
def test_a_configuration_names_each_wrong_field(kind: type[dispatcher.KernelConfig]) -> None:
    for field in inspect.signature(kind).parameters:
        for wrong in WRONG.values():
            config = kind(**{field: wrong})
            assert isinstance(config.name, str)
            if not config.is_valid("gfx950"):
                said = [str(refusal) for refusal in config.refusals("gfx950")]
                assert any(field.rpartition("_")[0] in reason or field in reason for reason in said)
                with pytest.raises((TypeError, ValueError)):
                    dispatcher.build([config], gfx_arch="gfx950")


def test_verify_names_what_is_wrong() -> None:
    class Nowhere(dispatcher.verify.__globals__["Execution"]):  # type: ignore[misc, name-defined]
        name = "nowhere"

        def missing(self, *_: object) -> str:
            return ""

        def run(self, *_: object) -> Any:
            raise AssertionError("nothing is run")

    good = {"config": CONFIG, "library": __file__, "execution": Nowhere(), "problem": PROBLEM, "seed": 0}
    for argument in good:
        for kind in ("object", "1.5", "[]", "tensor", "unhashable"):
            with pytest.raises((TypeError, ValueError), match=argument):
                dispatcher.verify(**{**good, argument: WRONG[kind]})


NAMES = ("a_format", "b_format", "scale_rounding", "weight_layout", "scale_layout", "a_scale_layout", "route")


@pytest.mark.parametrize("name", ["gemm", "gemm_out", "gemm_mx", "gemm_mx_out"])
@pytest.mark.parametrize("meta", [False, True])
def test_the_operators_name_a_wrong_name(name: str, meta: bool) -> None:
    operator = getattr(torch.ops.mxgemm, name.replace("_mx", ""))
    a = mxgemm.quantize(torch.ones(4, 64))
    given: dict[str, Any] = {"b": WEIGHT.data, "b_scales": WEIGHT.scales}
    given |= {"a": a.data, "a_scales": a.scales} if "mx" in name else {"a": torch.ones(4, 64)}
    given |= {"out": torch.empty(4, 32, dtype=torch.bfloat16)} if "out" in name else {}
    if meta:
        given = {key: value.to("meta") for key, value in given.items()}
    taken = {argument.name for argument in operator.default._schema.arguments}
    for option in NAMES:
        if option not in taken or (meta and option not in ("a_format", "b_format")):
            continue
        if meta and ("out" in name or (option, name) == ("a_format", "gemm")):
            continue  # a fake kernel that reads no such name
        for wrong in ("", "x", "E2M1", "e2m1 ", "[/x]", "row-major"):
            with pytest.raises(ValueError, match=f"^{option}: got "):
                operator(**{**given, option: wrong})
        for wrong in (1.5, [], torch.ones(1)):
            with pytest.raises((TypeError, RuntimeError), match=option):
                operator(**{**given, option: wrong})


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_layout_of_scales_that_are_not_given(device: str) -> None:
    given = [tensor.to(device) for tensor in (torch.ones(4, 64), WEIGHT.data, WEIGHT.scales)]
    with pytest.raises(ValueError, match="^a_scale_layout: got 'shuffled', want 'row_major' where a_scales is None"):
        torch.ops.mxgemm.gemm(*given, a_scale_layout="shuffled")
