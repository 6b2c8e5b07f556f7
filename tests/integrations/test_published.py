"""Published quantization_config dictionaries: what is read, what is asked for, what is refused."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from mxgemm.integrations.published import read
from tests.integrations.models import PUBLISHED, compressed_tensors, quark


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(name: str) -> None:
    config, a_format = PUBLISHED[name]
    before = copy.deepcopy(config)
    found = read(config)
    assert config == before
    assert (found.a_format, found.scale_rounding) == (a_format, "even")
    assert not found.experts
    assert [bool(re.match(found.not_converted[0], name)) for name in ("lm_head", "lm_head2", "model.lm_head")] == [
        True, False, False,
    ]  # fmt: skip


def test_gpt_oss_quantises_the_weights_of_experts_alone() -> None:
    found = read({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})
    assert (found.a_format, found.experts, found.not_converted) == ("bf16", True, (".*",))
    with pytest.raises(ValueError, match="a_format: got 'e2m1', but the checkpoint says 'bf16'"):
        read({"quant_method": "mxfp4"}, a_format="e2m1")


def test_what_the_file_leaves_open_is_asked_for() -> None:
    config = quark("fp4")
    del config["global_quant_config"]["input_tensors"]["scale_calculation_mode"]
    with pytest.raises(ValueError, match="scale_rounding: the checkpoint does not say; want scale_rounding="):
        read(config)
    assert read(config, scale_rounding="floor").scale_rounding == "floor"
    assert read(config, a_format="e2m1", scale_rounding="even").a_format == "e2m1"


def test_what_the_file_says_is_not_overruled() -> None:
    with pytest.raises(ValueError, match="a_format: got 'e4m3', but the checkpoint says 'e2m1'"):
        read(quark("fp4"), a_format="e4m3")
    with pytest.raises(ValueError, match="scale_rounding: got 'floor', but the checkpoint says 'even'"):
        read(compressed_tensors(4), scale_rounding="floor")
    with pytest.raises(ValueError, match="a_format: got 'fp4', want one of"):
        read(quark("fp4"), a_format="fp4")


def test_patterns() -> None:
    theirs = {**quark(None), "exclude": ["a.b", "*.gate", r"re:.*\.down", "layers.*.mlp"]}
    found = read(theirs).not_converted

    def left_out(name: str) -> bool:
        return any(re.match(pattern, name) for pattern in found)

    for name in ("a.b", "x.gate", "x.down", "x.down_proj", "layers.3.mlp"):
        assert left_out(name), name
    for name in ("axb", "a.bc", "x.gate_proj", "x.up", "layers.3.mlp.up", "y.layers.3.mlp"):
        assert not left_out(name), name


def changed(config: dict[str, Any], *path: Any) -> dict[str, Any]:
    *way, last, value = path
    at = config
    for key in way:
        at = at[key]
    at[last] = value
    return config


WEIGHT = ("global_quant_config", "weight")
GROUP = ("config_groups", "group_0")
BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "none": (lambda: {}, "quant_method: got None"),
    "awq": (lambda: {"quant_method": "awq"}, "quant_method: got 'awq', want quark, compressed-tensors or mxfp4"),
    "fp8": (lambda: changed(quark(None), *WEIGHT, "dtype", "fp8_e4m3"), r"weight: got dtype fp8_e4m3"),
    "group": (lambda: changed(quark(None), *WEIGHT, "group_size", 128), "group_size 128"),
    "scales": (lambda: changed(quark(None), *WEIGHT, "scale_format", "float"), "scale_format float"),
    "no weight": (lambda: changed(quark(None), *WEIGHT, None), "weight: got None"),
    "int8": (lambda: changed(quark("fp4"), "global_quant_config", "input_tensors", "dtype", "int8"), "dtype int8"),
    "layers": (lambda: changed(quark(None), "layer_quant_config", {"a": 1}), "layer_quant_config: got a"),
    "rule": (
        lambda: changed(quark("fp4"), "global_quant_config", "input_tensors", "scale_calculation_mode", "best"),
        "scale_rounding: got 'best'",
    ),
    "exclude": (lambda: changed(quark(None), "exclude", "lm_head"), "exclude: got 'lm_head', want a list"),
    "expression": (lambda: changed(quark(None), "exclude", ["re:("]), r"pattern: got '\(', want a regular"),
    "groups": (
        lambda: changed(compressed_tensors(4), "config_groups", {"a": {}, "b": {}}),
        "config_groups: got 2, want one scheme",
    ),
    "targets": (lambda: changed(compressed_tensors(4), *GROUP, "targets", ["re:.*q"]), r"targets: got \['re:"),
    "A group": (lambda: changed(compressed_tensors(8), *GROUP, "input_activations", "group_size", 128), "size 128"),
    "bits": (lambda: changed(compressed_tensors(4), *GROUP, "weights", "num_bits", 8), "num_bits 8"),
    "old": (lambda: changed(compressed_tensors(4), "version", "0.13.1"), "scale bytes are off by two"),
}


@pytest.mark.parametrize("what", BAD)
def test_other_configurations_are_refused_by_what_is_wrong(what: str) -> None:
    make, message = BAD[what]
    with pytest.raises(ValueError, match=message):
        read(make())
