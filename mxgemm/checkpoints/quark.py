"""AMD Quark's OCP MX export: ``X.weight`` uint8 ``[N, K/2]``, ``X.weight_scale`` uint8 ``[N, K/32]`` of E8M0 bytes.

``config.json`` says in ``quantization_config`` what is quantised how: ``layer_quant_config`` by patterns of module
names, of which the last holds, as Quark itself goes through them; ``layer_type_quant_config`` by class;
``global_quant_config``; and ``exclude``. Names and bytes are mxgemm's own (``MXLinear``), low nibble first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Any, Final

from torch import Tensor

from mxgemm.arguments import shown
from mxgemm.checkpoints.base import Entry, Format, foreign_entry, mx_entry, plain_entry
from mxgemm.checkpoints.scheme import (
    EVERY,
    Given,
    Rule,
    Scheme,
    expression,
    has,
    names,
    one_scheme,
    rule_of,
    short,
)
from mxgemm.checkpoints.store import Store
from mxgemm.mx.formats import E2M1, SCALE_ROUNDINGS
from mxgemm.mx.tensor import MXTensor

SUFFIX: Final = "_scale"
_MX: Final = {"qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
_NAMES: Final = {"e2m1": "fp4", "e4m3": "fp8_e4m3"}
_SHOWN: Final = ("dtype", "qscheme", "group_size", "scale_format", "scale_calculation_mode")


class Quark(Format):
    """See the module."""

    name = "quark"
    rows_as_stored = True

    def detects(self, store: Store) -> bool:
        """By ``quant_method``."""
        return store.quantization.get("quant_method") == "quark"

    def entries(self, store: Store, given: Given) -> Iterator[Entry]:
        """Yield weights with their scales as one, and the rest."""
        del given
        rules = self.stored_rules(store) if store.quantization else []
        for name, stored in store.tensors.items():
            if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in store.tensors:
                continue
            scales = name + SUFFIX
            if scales not in store.tensors:
                if stored.type == "U8" and name.endswith("weight"):
                    raise store.error(name, f"is U8 and has no {scales} beside it")
                if stored.type == "U8" and name.endswith(("_blocks", ".blocks")):
                    raise store.error(name, "is named as gpt-oss's blocks, in a checkpoint that says quark")
                yield plain_entry(name, store)
                continue
            module = name.rpartition(".")[0]
            rule = rule_of(module, rules) or Rule(EVERY, "", Scheme(says="nothing without config.json"))
            if rule.foreign:
                yield foreign_entry(name, (name, scales), store, f"{module}: weight: {rule.foreign}")
                continue
            yield mx_entry(name, name, scales, store, rule.scheme)

    def decode(self, entry: Entry, store: Store) -> MXTensor:
        """Take the bytes as they are."""
        return MXTensor.wrap(*(store.read(part) for part in entry.parts))

    def encode(self, name: str, weight: MXTensor) -> dict[str, Tensor]:
        """Give the bytes as they are.

        Raises:
            ValueError: not e2m1.
        """
        require_e2m1(name, weight, self.name)
        return {name: weight.data, name + SUFFIX: weight.scales}

    def rules(self, config: Mapping[str, Any]) -> Iterator[Rule]:
        """Yield what holds by name, by class and for all others.

        Raises:
            ValueError: names or classes are no object.
        """
        for pattern, spec in reversed(_object(config, "layer_quant_config").items()):
            yield _rule(translate(pattern), f"layer_quant_config.{pattern}", spec)
        for kind, spec in _object(config, "layer_type_quant_config").items():
            if kind.rpartition(".")[2] == "Linear":
                yield _rule(EVERY, f"layer_type_quant_config.{kind}", spec)
                return
        yield _rule(EVERY, "global_quant_config", config.get("global_quant_config"))

    def excluded(self, config: Mapping[str, Any]) -> Iterator[str]:
        """Yield the patterns of ``exclude``."""
        for name in names("exclude", config.get("exclude")):
            yield expression(name[3:]) if name.startswith("re:") else translate(name)

    def quantization_config(self, schemes: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
        """Return Quark's configuration of one scheme for all layers."""
        scheme = one_scheme(schemes, self.name)
        weight = {
            **{"dtype": "fp4", **_MX, "ch_axis": -1, "is_dynamic": False, "symmetric": None},
            "observer_cls": "PerBlockMXObserver",
        }
        activations = None
        if scheme.a_format != "bf16":
            activations = {**weight, "dtype": _NAMES[str(scheme.a_format)], "is_dynamic": True}
            activations["scale_calculation_mode"] = scheme.scale_rounding
        return {
            "quant_method": "quark",
            "export": {"kv_cache_group": [], "pack_method": "order", "weight_format": "real_quantized"},
            "global_quant_config": {
                **{"weight": weight, "input_tensors": activations, "output_tensors": None, "bias": None},
                "target_device": None,
            },
            "layer_quant_config": {},
            "layer_type_quant_config": {},
            "exclude": list(plain),
        }


def require_e2m1(name: str, weight: MXTensor, format: str) -> None:
    """Refuse a weight that is not MXFP4.

    Raises:
        ValueError: it is not.
    """
    if weight.format is not E2M1:
        raise ValueError(f"{name}: got {weight.format}, want e2m1, which is what {format} files are read with")


def _object(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = config.get(key) or {}
    if not isinstance(found, dict):
        raise ValueError(f"{key}: got {shown(found)}, want an object")
    return found


def _rule(pattern: str, where: str, spec: Any) -> Rule:
    spec = spec if isinstance(spec, dict) else {}
    weight = _alone(spec.get("weight"))
    foreign = "" if has(weight, {**_MX, "dtype": "fp4"}) else short(weight, _SHOWN)
    return Rule(pattern, f"{where}.weight", _scheme_of(_alone(spec.get("input_tensors"))), foreign)


def _scheme_of(spec: Any) -> Scheme:
    if spec is None:
        return Scheme("bf16", None, "input_tensors: null")
    says = f"input_tensors: {short(spec, _SHOWN)}"
    for a_format, dtype in _NAMES.items():
        if has(spec, {**_MX, "dtype": dtype}):
            mode = spec.get("scale_calculation_mode")
            rounding = mode if mode in SCALE_ROUNDINGS else None
            return Scheme(a_format, rounding, says)  # type: ignore[arg-type]
    return Scheme(says=says)


def _alone(spec: Any) -> Any:
    return spec[0] if isinstance(spec, list) and len(spec) == 1 else spec
