"""mxgemm as a quantisation method of Hugging Face transformers: importing this module registers it.

    import mxgemm.integrations.transformers as mx
    model = AutoModelForCausalLM.from_pretrained(name, quantization_config=mx.MXGemmConfig())  # quantised on load
    model.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)  # the same bytes

Published MXFP4 checkpoints of AMD Quark, compressed-tensors and gpt-oss are loaded by :func:`adopt`.
"""

from __future__ import annotations

import copy
import re
from typing import Any, Final

import torch
from torch import Tensor, nn

from mxgemm.arguments import check_bool, check_type, shown
from mxgemm.checkpoints import published
from mxgemm.checkpoints.compressed_tensors import PACKED
from mxgemm.checkpoints.gpt_oss import BLOCKS, SCALES
from mxgemm.checkpoints.scheme import check_given
from mxgemm.integrations.gpt_oss import MXGptOssExperts
from mxgemm.mx.formats import ActivationFormat, ScaleRounding
from mxgemm.mx.parts import DATA_DTYPES, SCALE_DTYPES, describe
from mxgemm.mx.prepared import Memory
from mxgemm.nn import MXConfig, MXLinear, check_state
from mxgemm.nn.convert import refusal
from mxgemm.nn.linear import DEFAULT_FORMAT
from mxgemm.nn.pretrained import METHOD
from mxgemm.quantize import quantize

try:
    from transformers.core_model_loading import ConversionOps, WeightConverter, WeightRenaming
    from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
    from transformers.quantizers.quantizers_utils import get_module_from_name, should_convert_module
    from transformers.utils.quantization_config import QuantizationConfigMixin

    HfQuantizer.get_new_dtype  # noqa: B018  # without it bytes may be converted as numbers while they are loaded
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"mxgemm.integrations.transformers needs transformers >= 5.24 (pip install 'mxgemm[transformers]'): {error}"
    ) from error

_PARTS: Final = {"weight": DATA_DTYPES["e2m1"], "weight_scale": SCALE_DTYPES}
_THEIRS: Final = (rf"\.weight{PACKED}$", f"_proj{SCALES}$", f"_proj{BLOCKS}$")
"""Names of compressed-tensors' bytes, and of gpt-oss's scales and bytes."""


@register_quantization_config(METHOD)
class MXGemmConfig(QuantizationConfigMixin):
    """How a model's linear layers are, or become, MXFP4; saved in its ``config.json``.

    Args:
        a_format: what activations are rounded to: "bf16", "e4m3" or "e2m1".
        scale_rounding: rule for the block scales of weights, where they are quantised on load, and of activations.
        modules_to_not_convert: names or regular expressions, as transformers matches them. By default the output layer,
            the last layer and what is tied to another; a list replaces this, but tied layers are never converted.
        layers: of layers whose activations are treated otherwise: ``{"pattern": ..., "a_format": ..., "scale_rounding":
            ...}``, a regular expression of whole names; the first that fits holds.
        prepare: "fast" or "compact": call :meth:`mxgemm.nn.MXLinear.prepare` on each layer once it is loaded.
        experts: the checkpoint's experts, as gpt-oss has them, are MXFP4; :func:`adopt` says so.

    Raises:
        TypeError: another argument, or a list that is none.
        ValueError: another name of a format, rule or memory; a pattern that is no regular expression.
    """

    def __init__(
        self,
        a_format: ActivationFormat = DEFAULT_FORMAT,
        scale_rounding: ScaleRounding = "even",
        modules_to_not_convert: list[str] | None = None,
        prepare: Memory | None = None,
        experts: bool = False,
        layers: list[dict[str, Any]] | None = None,
        **more: Any,
    ) -> None:
        method = more.pop("quant_method", METHOD)
        if more or method != METHOD:
            raise TypeError(f"MXGemmConfig: got {', '.join(more) or f'quant_method {method!r}'}, want none such")
        MXConfig(a_format, scale_rounding, prepare)
        names = modules_to_not_convert
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise TypeError(f"modules_to_not_convert: got {names!r}, want a list of names")
        check_bool("experts", experts)
        self.quant_method, self.experts = METHOD, experts
        self.a_format, self.scale_rounding, self.prepare = a_format, scale_rounding, prepare
        self.modules_to_not_convert = names
        self.layers = [_layer(given) for given in check_type("layers", layers or [], list, "a list")]

    def scheme(self, name: str) -> tuple[ActivationFormat, ScaleRounding]:
        """Return what a layer's activations are rounded to, and the rule for their scales."""
        for given in self.layers:
            if re.fullmatch(given["pattern"], name):
                return given["a_format"], given["scale_rounding"]
        return self.a_format, self.scale_rounding


@register_quantizer(METHOD)
class MXGemmHfQuantizer(HfQuantizer):
    """Puts :class:`mxgemm.nn.MXLinear` in the place of linear layers before a checkpoint is loaded."""

    requires_calibration = False
    quantized_element_size = 0.5 + 1 / 32
    is_trainable = True  # adapters: gradients reach the inputs of layers
    is_compileable = True

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        config = self.quantization_config
        patterns = self.get_modules_to_not_convert(model, config.modules_to_not_convert, model._keep_in_fp32_modules)
        tied = {name.removesuffix(".weight") for pair in model.all_tied_weights_keys.items() for name in pair}
        self._weights: list[str] = []
        for name, module in list(model.named_modules()):
            if config.experts and type(module).__name__ == "GptOssExperts":
                model.set_submodule(name, self._experts(module))
                self._weights += [f"{name}.gate_up_proj", f"{name}.down_proj"]
            elif isinstance(module, nn.Linear) and name not in tied and should_convert_module(name, patterns):
                if refusal(module, model.get_submodule(name.rpartition(".")[0])):
                    continue
                model.set_submodule(name, self._layer(name, module))
                self._weights.append(name)
        if not self._weights:
            raise ValueError(f"modules_to_not_convert: got {patterns}, which leaves no linear layer to be MXFP4")

    def _experts(self, experts: nn.Module) -> MXGptOssExperts:
        if not self.pre_quantized:
            raise ValueError("experts: got True for a model that is not quantised, want a checkpoint whose experts are")
        with torch.device("meta"):
            return MXGptOssExperts(experts, self.quantization_config.a_format, self.quantization_config.scale_rounding)

    def _layer(self, name: str, linear: nn.Linear) -> MXLinear:
        a_format, scale_rounding = self.quantization_config.scheme(name)
        layer = MXLinear(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            a_format=a_format,
            scale_rounding=scale_rounding,
            device="meta",
            dtype=linear.weight.dtype,
        )
        if not self.pre_quantized:  # as the file holds it: device maps count its elements
            layer.weight = nn.Parameter(torch.empty_like(linear.weight, device="meta"), requires_grad=False)
        return layer

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        """Say whether a tensor of the file is a weight to quantise."""
        module, name = get_module_from_name(model, param_name)
        return isinstance(module, MXLinear) and name == "weight" and not self.pre_quantized

    def get_quantize_ops(self) -> ConversionOps:
        """Return what quantises one."""
        return Quantize(self.quantization_config.scale_rounding)

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> torch.dtype | None:
        """Leave bytes as they are: casting ``float8_e8m0fnu`` to uint8 would convert numbers."""
        return None if dtype == torch.uint8 else super().get_new_dtype(converter, param, dtype)

    def get_weight_conversions(self) -> list[Any]:
        """Take compressed-tensors' and gpt-oss's names for ours, and gpt-oss's blocks for rows."""
        if not self.pre_quantized:
            return []
        packed, scales, blocks = _THEIRS
        conversions = [*super().get_weight_conversions(), WeightRenaming(packed, ".weight")]
        if self.quantization_config.experts:
            conversions.append(WeightRenaming(scales, "_proj.weight_scale"))
            conversions.append(WeightConverter(blocks, "_proj.weight", [Flatten()]))
        return conversions

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        conversions = getattr(model, "_weight_conversions", None)
        if conversions:  # which save_pretrained would undo
            model._weight_conversions = [one for one in conversions if not _is_ours(one)]
        wrong = []
        for name in self._weights:
            weight = model.get_submodule(name)
            wrong += [f"{name}.{part}: {fault}" for part in _PARTS if (fault := _settle(weight, part))]
            if not wrong and self.quantization_config.prepare is not None and len(weight.shape) == 2:
                weight.prepare(memory=self.quantization_config.prepare)
        if wrong:
            raise ValueError("checkpoint: " + "; ".join(wrong))
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[None, dict[str, str]]:
        """Refuse to save what would be lost; the state is the model's own."""
        check_state(model)
        return None, {}

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        """Models are saved and loaded again to the byte."""
        return True


class Quantize(ConversionOps):
    """Makes bytes and scales of a weight while a checkpoint is loaded.

    Args:
        scale_rounding: rule for the scales.
    """

    def __init__(self, scale_rounding: ScaleRounding) -> None:
        self.scale_rounding = scale_rounding

    def convert(self, input_dict: dict[str, Any], full_layer_name: str = "", **kwargs: Any) -> dict[str, Tensor]:
        """Quantise one tensor."""
        ((_, value),) = input_dict.items()
        weight = quantize(value[0] if isinstance(value, list) else value, scale_rounding=self.scale_rounding)
        return {full_layer_name: weight.data, f"{full_layer_name}_scale": weight.scales}


class Flatten(ConversionOps):
    """Makes rows ``[E, N, K/2]`` of blocks ``[E, N, K/32, 16]``."""

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Tensor]:
        """Flatten one tensor."""
        ((_, value),) = input_dict.items()
        value = value[0] if isinstance(value, list) else value
        return {target_patterns[0]: value.flatten(-2)}


def adopt(
    config: Any, *, a_format: str | None = None, scale_rounding: str | None = None, scale_bias: int | None = None
) -> Any:
    """Return a model's configuration under which a published MXFP4 checkpoint loads with mxgemm.

        config = adopt(AutoConfig.from_pretrained(folder))
        model = AutoModelForCausalLM.from_pretrained(folder, config=config)

    Args:
        config: of a checkpoint of AMD Quark (OCP MX: w4a4, w4a8, w4a16), compressed-tensors (mxfp4-pack-quantized) or
            gpt-oss (mxfp4, weights alone), whose experts become :class:`mxgemm.integrations.gpt_oss.MXGptOssExperts`.
        a_format: what activations are rounded to, only where the checkpoint does not say.
        scale_rounding: the rule for their scales, only where the checkpoint does not say.
        scale_bias: 127, of compressed-tensors' scale bytes, only where the checkpoint does not say which version wrote
            it. Those with 125 are not loaded but by :func:`mxgemm.checkpoints.open`, and put right by ``convert``.

    Returns:
        a copy whose ``quantization_config`` is mxgemm's; what is saved of the model is a checkpoint of mxgemm's.

    Raises:
        TypeError: a bias that is no int.
        ValueError: a checkpoint that is not quantised, or in a way that mxgemm has not; something that it leaves open
            and nobody gives, or that is given otherwise. The message says which.
    """
    given = check_given(a_format, scale_rounding, scale_bias)
    theirs = getattr(config, "quantization_config", None)
    if theirs is None:
        raise ValueError("config: got one without quantization_config, want that of a quantised checkpoint")
    found = published.read(theirs if isinstance(theirs, dict) else theirs.to_dict(), given)
    *others, all_others = [
        {"a_format": rule.scheme.a_format, "scale_rounding": rule.scheme.scale_rounding or "even"}  # bf16 has no scales
        for rule in found.rules
    ]
    layers = [{"pattern": rule.pattern, **scheme} for rule, scheme in zip(found.rules, others, strict=False)]
    ours = MXGemmConfig(
        **all_others,  # type: ignore[arg-type]
        modules_to_not_convert=list(found.excluded),
        experts=found.experts,
        layers=layers,
    )
    adopted = copy.deepcopy(config)
    adopted.quantization_config = ours.to_dict()
    return adopted


def _layer(given: Any) -> dict[str, Any]:
    """Check what is said of some layers.

    Raises:
        TypeError: other fields, or a pattern that is no text.
        ValueError: a name, or a pattern that is no regular expression.
    """
    if not isinstance(given, dict) or set(given) != {"pattern", "a_format", "scale_rounding"}:
        raise TypeError(f"layers: got {shown(given)}, want objects of pattern, a_format and scale_rounding")
    check_type("pattern", given["pattern"], str, "a regular expression")
    MXConfig(given["a_format"], given["scale_rounding"])
    try:
        re.compile(given["pattern"])
    except re.error as error:
        raise ValueError(f"pattern: got {shown(given['pattern'])}, want a regular expression ({error})") from None
    return dict(given)


def _settle(weight: nn.Module, part: str) -> str:
    """Make a loaded parameter uint8, whichever of torch's dtypes its bytes came in; or say what is wrong with it."""
    parameter = getattr(weight, part)
    if parameter.is_meta:  # offloaded
        return ""
    if not getattr(parameter, "_is_hf_initialized", False):
        return "missing, want the bytes"
    if parameter.dtype not in _PARTS[part]:
        return f"got {describe(parameter)}, want bytes"
    if parameter.dtype != torch.uint8 or parameter.requires_grad:
        setattr(weight, part, nn.Parameter(parameter.detach().view(torch.uint8), requires_grad=False))
    return ""


def _is_ours(conversion: Any) -> bool:
    return any(str(pattern) in _THEIRS for pattern in getattr(conversion, "source_patterns", ()))
