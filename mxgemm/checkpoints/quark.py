"""AMD Quark's OCP MX export: ``X.weight`` uint8 ``[N, K/2]``, ``X.weight_scale`` uint8 ``[N, K/32]`` of E8M0 bytes.

``config.json`` says in ``quantization_config`` what is quantised how: ``global_quant_config``, ``layer_quant_config``
by patterns of module names, and ``exclude``. Names and bytes are mxgemm's own (``MXLinear``), low nibble first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from torch import Tensor

from mxgemm.checkpoints.base import (
    A_FORMATS,
    Entry,
    Format,
    Given,
    Scheme,
    foreign_entry,
    mx_entry,
    one_scheme,
    plain_entry,
)
from mxgemm.checkpoints.store import Store
from mxgemm.mx.formats import E2M1, SCALE_ROUNDINGS
from mxgemm.mx.tensor import MXTensor

SUFFIX: Final = "_scale"
_MX: Final = {"qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
_NAMES: Final = {"e2m1": "fp4", "e4m3": "fp8_e4m3"}


class Quark(Format):
    """See the module."""

    name = "quark"

    def detects(self, store: Store) -> bool:
        """By ``quant_method``."""
        return store.quantization.get("quant_method") == "quark"

    def entries(self, store: Store, given: Given) -> Iterator[Entry]:
        """Yield weights with their scales as one, and the rest."""
        del given
        config = store.quantization
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
            spec = _spec_of(module, config)
            if config and not is_mx(spec.get("weight"), "fp4"):
                note = f"{module}: weight: {_short(spec.get('weight'))}"
                yield foreign_entry(name, (name, scales), store, note)
                continue
            scheme = scheme_of(spec.get("input_tensors")) if config else Scheme(says="nothing without config.json")
            yield mx_entry(name, name, scales, store, scheme)

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


def is_mx(spec: Any, dtype: str) -> bool:
    """Say whether a Quark specification is MX blocks of 32 with E8M0 scales."""
    return isinstance(spec, dict) and all(spec.get(key) == value for key, value in {**_MX, "dtype": dtype}.items())


def scheme_of(spec: Any) -> Scheme:
    """Read ``input_tensors``."""
    spec = _alone(spec)
    if spec is None:
        return Scheme("bf16", None, "input_tensors: null")
    says = f"input_tensors: {_short(spec)}"
    for dtype, a_format in A_FORMATS.items():
        if is_mx(spec, dtype):
            mode = spec.get("scale_calculation_mode")
            rounding = mode if mode in SCALE_ROUNDINGS else None
            return Scheme(a_format, rounding, says)  # type: ignore[arg-type]
    return Scheme(says=says)


def require_e2m1(name: str, weight: MXTensor, format: str) -> None:
    """Refuse a weight that is not MXFP4.

    Raises:
        ValueError: it is not.
    """
    if weight.format is not E2M1:
        raise ValueError(f"{name}: got {weight.format}, want e2m1, which is what {format} files are read with")


def _spec_of(module: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what holds for a module: of the patterns that name it the last, as Quark itself goes through them."""
    named = config.get("layer_quant_config")
    found: Any = config.get("global_quant_config")
    for pattern, spec in (named if isinstance(named, dict) else {}).items():
        if fnmatchcase(module, pattern):
            found = spec
    return {key: _alone(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _alone(spec: Any) -> Any:
    return spec[0] if isinstance(spec, list) and len(spec) == 1 else spec


def _short(spec: Any) -> str:
    if not isinstance(spec, dict):
        return repr(spec)
    shown = ("dtype", "qscheme", "group_size", "scale_format", "scale_calculation_mode")
    return ", ".join(f"{key} {spec[key]}" for key in shown if key in spec)
