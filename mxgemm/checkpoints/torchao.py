"""torchao's MXTensor in safetensors files: ``X._weight_qdata``, ``X._weight_scale``, and a header that says the rest.

What torchao's ``flatten_tensor_state_dict`` writes, and transformers with it: for every parameter a text field of the
header is JSON of its type and attributes. Scales are E8M0, row-major ``[N, K/32]`` or swizzled, ``swizzled_32_4_4``
(``is_swizzled_scales``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.checkpoints.base import Entry, Format, foreign_entry, plain_entry
from mxgemm.checkpoints.scheme import Given, Scheme, one_scheme
from mxgemm.checkpoints.store import Store
from mxgemm.files import FileError, shown
from mxgemm.mx.formats import BLOCK, FORMATS, SCALE_ROUNDINGS
from mxgemm.mx.layouts import scale_shape, swizzle_scales
from mxgemm.mx.tensor import MXTensor

NAMES: Final = "tensor_names"
_DTYPES: Final = {"e2m1": "float4_e2m1fn_x2", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
_FORMATS: Final = {dtype: name for name, dtype in _DTYPES.items()}
_STORED: Final = {"e2m1": "U8", "e4m3": "F8_E4M3", "e5m2": "F8_E5M2"}
_PARTS: Final = ("qdata", "scale")
_E8M0: Final = getattr(torch, "float8_e8m0fnu", torch.uint8)


class TorchAO(Format):
    """See the module.

    Attributes:
        swizzled: scales are written in torch's ``SWIZZLE_32_4_4`` order.
    """

    def __init__(self, *, swizzled: bool) -> None:
        self.swizzled = swizzled
        self.name = "torchao-swizzled" if swizzled else "torchao"

    def detects(self, store: Store) -> bool:
        """By the header's list of tensors; both orders of scales are read by one."""
        return not self.swizzled and NAMES in store.metadata

    def entries(self, store: Store, given: Given) -> Iterator[Entry]:
        """Yield MX tensors, tensors of other classes, and the rest."""
        del given
        listed = _listed(store)
        seen: set[str] = set()
        for name in listed:
            about = _json(store, name)
            if not isinstance(about, dict):
                raise FileError(f"{store.files[0]}: header field {name}: got {shown(about)}, want an object")
            if about.get("_type") == "Tensor":
                if name in store.tensors:
                    seen.add(name)
                    yield plain_entry(name, store)
                    continue
                raise FileError(f"{store.files[0]}: {name}: is listed in the header and not there")
            parts = part_names(name)
            named = about.get("_tensor_data_names")
            held = [parts[0].removesuffix(_PARTS[0]) + str(part) for part in named] if isinstance(named, list) else []
            for part in held:
                if part not in store.tensors:
                    raise FileError(f"{store.files[0]}: {name}: has no {part}, which the header lists")
            if not held:
                raise FileError(f"{store.files[0]}: {name}: the header lists no tensor of it")
            seen.update(held)
            attributes = about.get("_data")
            if about.get("_type") != "MXTensor" or not isinstance(attributes, dict):
                yield foreign_entry(name, held, store, f"a {about.get('_type')}")
                continue
            yield self._entry(name, parts, attributes, store)
        for name in store.tensors:
            if name not in seen:
                yield plain_entry(name, store)

    def _entry(self, name: str, parts: tuple[str, str], attributes: Mapping[str, Any], store: Store) -> Entry:
        dtype, block = _plain(attributes.get("elem_dtype")), attributes.get("block_size")
        if dtype not in _FORMATS or block != BLOCK:
            return foreign_entry(name, parts, store, f"an MXTensor of {dtype} in blocks of {block}")
        fmt, swizzled = FORMATS[_FORMATS[str(dtype)]], attributes.get("is_swizzled_scales")
        if type(swizzled) is not bool:
            raise store.error(parts[0], f"is_swizzled_scales: got {shown(swizzled)}, want true or false")
        if any(part not in store.tensors for part in parts):
            raise FileError(f"{store.files[0]}: {name}: want {' and '.join(parts)}")
        data, scales = (store.tensors[part] for part in parts)
        if data.type != _STORED[fmt.name] or scales.type not in ("F8_E8M0", "U8"):
            want = f"{_STORED[fmt.name]} and F8_E8M0"
            raise store.error(parts[0], f"got dtypes {data.type} and {scales.type}, want {want}")
        if not data.shape or data.shape[-1] * fmt.pack % BLOCK:
            raise store.error(parts[0], f"got shape {list(data.shape)}, want whole blocks of {BLOCK}")
        shape = (*data.shape[:-1], data.shape[-1] * fmt.pack)
        layout = "swizzled_32_4_4" if swizzled else "row_major"
        if swizzled and len(shape) != 2:
            return foreign_entry(name, parts, store, f"swizzled scales of shape {list(shape)}, want two dimensions")
        want_shape = scale_shape(layout, *shape) if swizzled else (*shape[:-1], shape[-1] // BLOCK)
        if scales.shape != tuple(want_shape):
            raise store.error(parts[1], f"got shape {list(scales.shape)}, want {list(want_shape)} ({layout})")
        scheme = _scheme_of(attributes.get("act_quant_kwargs"))
        size = data.nbytes + scales.nbytes
        words = "swizzled scales" if swizzled else ""
        return Entry(name, "mx", shape, fmt.name, parts, size, words, scheme, argument=layout)

    def decode(self, entry: Entry, store: Store) -> MXTensor:
        """Take the bytes and their layout as they are."""
        data, scales = (store.read(part) for part in entry.parts)
        return MXTensor.wrap(data, scales, format=entry.type, scale_layout=entry.argument)  # type: ignore[arg-type]

    def encode(self, name: str, weight: MXTensor) -> dict[str, Tensor]:
        """Give the bytes, with scales in this format's order.

        Raises:
            ValueError: no module in the name, or swizzled scales of a stack.
        """
        if "." not in name:
            raise ValueError(f"{name}: torchao's files name a parameter of a module, such as layer.weight")
        if self.swizzled and len(weight.shape) != 2:
            raise ValueError(f"{name}: got shape {weight.shape}, want two dimensions for swizzled scales")
        data, scales = part_names(name)
        stored = weight.scales
        if self.swizzled and weight.device.type == "meta":
            stored = torch.empty(scale_shape("swizzled_32_4_4", *weight.shape), dtype=torch.uint8, device="meta")
        elif self.swizzled:
            stored = swizzle_scales(weight.scales)
        elements = (
            weight.data if weight.format.pack == 2 else weight.data.view(getattr(torch, _DTYPES[weight.format.name]))
        )
        return {data: elements, scales: stored.view(_E8M0)}

    def quantization_config(self, schemes: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
        """Return transformers' configuration around torchao's."""
        scheme = self._scheme(schemes)
        about = {
            "block_size": BLOCK,
            "activation_dtype": _typed("torch.dtype", _DTYPES[str(scheme.a_format)]),
            "weight_dtype": _typed("torch.dtype", _DTYPES["e2m1"]),
            "kernel_preference": _typed("KernelPreference", "AUTO"),
            "scaling_mode": _typed("ScaleCalculationMode", str(scheme.scale_rounding).upper()),
        }
        kind = {"_type": "MXDynamicActivationMXWeightConfig", "_version": 1, "_data": about}
        return {
            **{"quant_method": "torchao", "quant_type": {"default": kind}, "quant_type_kwargs": {}},
            **{"modules_to_not_convert": list(plain), "include_input_output_embeddings": False},
        }

    def metadata(self, schemes: Mapping[str, Scheme], plain: Sequence[str], dtype: str | None) -> dict[str, str]:
        """Return a field for every parameter."""
        if schemes and dtype is None:
            raise ValueError("dtype: the source says nothing of the model's, and torchao has to; want dtype=")
        fields = {"format": "pt", NAMES: json.dumps([*schemes, *plain])}
        fields |= {name: json.dumps({"_type": "Tensor"}) for name in plain}
        scheme = self._scheme(schemes) if schemes else None
        for name in schemes:
            assert scheme is not None
            preference = _typed("KernelPreference", "AUTO")
            activations = {
                "elem_dtype": _typed("torch.dtype", _DTYPES[str(scheme.a_format)]),
                "block_size": BLOCK,
                "scaling_mode": _typed("ScaleCalculationMode", str(scheme.scale_rounding).upper()),
                **{"kernel_preference": preference, "is_swizzled_scales": self.swizzled},
            }
            attributes = {
                "elem_dtype": _typed("torch.dtype", _DTYPES["e2m1"]),
                **{"block_size": BLOCK, "orig_dtype": _typed("torch.dtype", str(dtype))},
                **{"kernel_preference": preference},
                "act_quant_kwargs": _typed("QuantizeTensorToMXKwargs", activations),
                "is_swizzled_scales": self.swizzled,
            }
            fields[name] = json.dumps({**_typed("MXTensor", attributes), "_tensor_data_names": list(_PARTS)})
        return fields

    def _scheme(self, schemes: Mapping[str, Scheme]) -> Scheme:
        scheme = one_scheme(schemes, self.name)
        if scheme.a_format == "bf16":
            raise ValueError("a_format: got bf16, want e2m1 or e4m3: torchao's MXTensor has no linear layer without")
        return scheme


def part_names(name: str) -> tuple[str, str]:
    """Return the stored names of a parameter's elements and scales."""
    module, _, parameter = name.rpartition(".")
    prefix = f"{module}._{parameter}_" if module else f"_{parameter}_"
    return prefix + _PARTS[0], prefix + _PARTS[1]


def _scheme_of(about: Any) -> Scheme:
    if about is None:
        return Scheme("bf16", None, "act_quant_kwargs: null")
    attributes = about.get("_data") if isinstance(about, dict) else None
    if not isinstance(attributes, dict):
        return Scheme(says=f"act_quant_kwargs: {shown(about)}")
    dtype, mode = _plain(attributes.get("elem_dtype")), str(_plain(attributes.get("scaling_mode"))).lower()
    says = f"act_quant_kwargs: {dtype}, {mode}"
    name = _FORMATS.get(str(dtype))
    if name not in ("e2m1", "e4m3") or attributes.get("block_size") != BLOCK:
        return Scheme(says=says)
    return Scheme(name, mode if mode in SCALE_ROUNDINGS else None, says)  # type: ignore[arg-type]


def _typed(kind: str, value: Any) -> dict[str, Any]:
    return {"_type": kind, "_data": value}


def _plain(value: Any) -> Any:
    return value.get("_data") if isinstance(value, dict) else value


def _listed(store: Store) -> list[str]:
    """Return the parameters that the headers list, all of them in each or those of each file."""
    found: dict[str, None] = {}
    for file, header in zip(store.files, store.headers, strict=True):
        names = _loads(header.get(NAMES, "[]"), f"{file}: header field {NAMES}")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FileError(f"{file}: header field {NAMES}: got {shown(names)}, want a list of names")
        found |= dict.fromkeys(names)
    return list(found)


def _json(store: Store, key: str) -> Any:
    return _loads(store.metadata.get(key, "null"), f"{store.files[0]}: header field {key}")


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{where}: not JSON ({error})") from error
