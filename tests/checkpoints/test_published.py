"""A quantization_config alone: what is read of it, what is asked for, what is refused."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from mxgemm.checkpoints.published import Published
from mxgemm.checkpoints.published import read as read_config
from mxgemm.checkpoints.scheme import Given, rule_of
from tests.integrations.models import PUBLISHED, compressed_tensors, quark


def read(config: dict[str, Any], **given: Any) -> Published:
    return read_config(config, Given(**given))


def scheme(found: Published, module: str = "model.layers.0.q_proj") -> tuple[str | None, str | None]:
    rule = rule_of(module, found.rules)
    assert rule is not None
    return rule.scheme.a_format, rule.scheme.scale_rounding


def left_out(found: Published, module: str) -> bool:
    return any(re.match(pattern, module) for pattern in found.excluded)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(name: str) -> None:
    config, a_format = PUBLISHED[name]
    before = copy.deepcopy(config)
    found = read(config)
    assert config == before
    assert scheme(found) == (a_format, None if a_format == "bf16" else "even")
    assert (len(found.rules), found.experts) == (1, False)
    assert [left_out(found, name) for name in ("lm_head", "lm_head2", "model.lm_head")] == [True, False, False]


def test_gpt_oss_quantises_the_weights_of_experts_alone() -> None:
    found = read({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})
    assert (scheme(found), found.experts, found.excluded) == (("bf16", None), True, (".*",))
    with pytest.raises(
        ValueError, match=r"a_format: got e2m1, but the checkpoint says bf16 of quant_method .*leave it"
    ):
        read({"quant_method": "mxfp4"}, a_format="e2m1")


def test_what_the_file_leaves_open_is_asked_for() -> None:
    config = quark("fp4")
    del config["global_quant_config"]["input_tensors"]["scale_calculation_mode"]
    with pytest.raises(
        ValueError,
        match=r"scale_rounding: the checkpoint says input_tensors: dtype fp4.*; want scale_rounding=, one of",
    ):
        read(config)
    assert scheme(read(config, scale_rounding="floor")) == ("e2m1", "floor")
    assert scheme(read(config, a_format="e2m1", scale_rounding="even")) == ("e2m1", "even")
    unknown = changed(compressed_tensors(8), *GROUP, "input_activations", "group_size", 128)
    assert scheme(read(unknown, a_format="bf16")) == ("bf16", None)
    unsaid = compressed_tensors(4)
    del unsaid["version"]
    with pytest.raises(ValueError, match="scale_bias: the checkpoint says version None; want scale_bias=125 for files"):
        read(unsaid)
    assert scheme(read(unsaid, scale_bias=127)) == ("e2m1", "even")
    with pytest.raises(ValueError, match="scale bytes are off by two"):
        read(unsaid, scale_bias=125)


def test_what_the_file_says_is_not_overruled() -> None:
    said = (
        r"a_format: got e4m3, but the checkpoint says e2m1 of global_quant_config \(input_tensors: .*\); leave it out"
    )
    with pytest.raises(ValueError, match=said):
        read(quark("fp4"), a_format="e4m3")
    with pytest.raises(ValueError, match="scale_rounding: got floor, but the checkpoint says even of config_groups"):
        read(compressed_tensors(4), scale_rounding="floor")


def test_patterns() -> None:
    found = read({**quark(None), "exclude": ["a.b", "*.gate", r"re:.*\.down", "layers.*.mlp"]})
    for name in ("a.b", "x.gate", "x.down", "x.down_proj", "layers.3.mlp"):
        assert left_out(found, name), name
    for name in ("axb", "a.bc", "x.gate_proj", "x.up", "layers.3.mlp.up", "y.layers.3.mlp"):
        assert not left_out(found, name), name


def test_quarks_schemes_of_several_layers() -> None:
    config = quark("fp4")
    whole = config["global_quant_config"]
    config["layer_quant_config"] = {"*.mlp.*": {**whole, "input_tensors": None}, "*.mlp.down": whole}
    found = read(config)
    wanted = {"x.mlp.up": "bf16", "x.mlp.down": "e2m1", "x.q": "e2m1"}  # of the patterns that fit the last holds
    assert {name: scheme(found, name)[0] for name in wanted} == wanted
    config["layer_type_quant_config"] = {
        "torch.nn.Linear": {**whole, "input_tensors": None},
        "Conv2d": {"weight": None},
    }
    assert scheme(read(config), "x.q") == ("bf16", None)  # a class comes before what holds for all
    config["layer_quant_config"] = {"*.mlp.*": {**whole, "input_tensors": None}}
    assert len(read(config).rules) == 1


def test_a_group_of_embeddings_is_not_asked() -> None:
    config = compressed_tensors(4)
    config["config_groups"]["group_1"] = {"targets": ["Embedding"], "weights": {"type": "int", "num_bits": 8}}
    assert [scheme(read(config))[0], len(read(config).rules)] == ["e2m1", 1]


def test_compressed_tensors_groups_of_several_layers() -> None:
    config = compressed_tensors(4)
    groups = config["config_groups"]
    plain = {**groups["group_0"], "input_activations": None}
    groups["group_1"] = {**plain, "targets": ["re:.*mlp", "x.q"]}
    found = read(config)
    wanted = {"x.mlp.up": "bf16", "x.q": "bf16", "x.k": "e2m1", "x.q.a": "e2m1"}
    assert {name: scheme(found, name)[0] for name in wanted} == wanted
    assert not any(left_out(found, name) for name in wanted)
    groups["group_0"]["targets"] = ["re:.*mlp.*up", "re:.*attn"]
    found = read(config)
    wanted = {
        "x.mlp.up": "bf16",
        "x.mlp.down": "bf16",
        "x.attn.q": "e2m1",
        "x.q": "bf16",
    }  # .*mlp sorts before the other
    assert {name: scheme(found, name)[0] for name in wanted} == wanted
    assert [left_out(found, name) for name in (*wanted, "x.o", "x.q2", "embed")] == [False] * 4 + [True] * 3


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
    "layers": (
        lambda: changed(quark(None), "layer_quant_config", {"a": 1}),
        r"layer_quant_config\.a\.weight: got None",
    ),
    "no object": (
        lambda: changed(quark(None), "layer_quant_config", ["a"]),
        r"layer_quant_config: got list, want an",
    ),
    "class": (
        lambda: changed(quark(None), "layer_type_quant_config", {"Linear": {"weight": {"dtype": "int8"}}}),
        r"layer_type_quant_config\.Linear\.weight: got dtype int8, want MXFP4",
    ),
    "rule": (
        lambda: changed(quark("fp4"), "global_quant_config", "input_tensors", "scale_calculation_mode", "best"),
        "scale_rounding: .* scale_calculation_mode best; want scale_rounding=",
    ),
    "exclude": (lambda: changed(quark(None), "exclude", "lm_head"), "exclude: got 'lm_head', want a list"),
    "expression": (lambda: changed(quark(None), "exclude", ["re:("]), r"pattern: got '\(', want a regular"),
    "groups": (
        lambda: changed(compressed_tensors(4), "config_groups", {"a": {}, "b": {}}),
        "config_groups: got no group with a target",
    ),
    "one target": (
        lambda: changed(
            compressed_tensors(4), "config_groups", "group_1", compressed_tensors(8)["config_groups"]["group_0"]
        ),
        "config_groups: got Linear in several groups, want one",
    ),
    "target": (
        lambda: changed(compressed_tensors(4), *GROUP, "targets", ["re:("]),
        r"pattern: got '\(', want a regular",
    ),
    "A group": (lambda: changed(compressed_tensors(8), *GROUP, "input_activations", "group_size", 128), "size 128"),
    "bits": (lambda: changed(compressed_tensors(4), *GROUP, "weights", "num_bits", 8), "num_bits 8"),
    "old": (lambda: changed(compressed_tensors(4), "version", "0.13.1"), "scale bytes are off by two"),
}


@pytest.mark.parametrize("what", BAD)
def test_other_configurations_are_refused_by_what_is_wrong(what: str) -> None:
    make, message = BAD[what]
    with pytest.raises(ValueError, match=message):
        read(make())
