"""Models that transformers made, told what they are: their ``config`` is saved beside their weights.

Without it ``save_pretrained`` would write a checkpoint that loads as random weights. Nothing of transformers is
imported: its quantiser, ``mxgemm.integrations.transformers``, reads what is written here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from torch import nn

from mxgemm.nn.config import LayerReport, MXConfig

METHOD: Final = "mxgemm"
"""``quant_method`` of these configurations; files hold it."""


def saved_configs(model: nn.Module) -> dict[str, Any]:
    """Return the configurations of the outermost models of transformers' in a model, by their names.

    Raises:
        ValueError: one of them is quantised already.
    """
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        inside = any(not outer or name.startswith(f"{outer}.") for outer in found)
        if inside or not (hasattr(module, "save_pretrained") and hasattr(config, "to_dict")):
            continue
        if getattr(config, "quantization_config", None) is not None:
            raise ValueError(f"model: got {name or 'one'} with a quantization_config, want one that is not quantised")
        found[name] = config
    return found


def tell(
    configs: Mapping[str, Any],
    config: MXConfig,
    reports: Iterable[LayerReport],
    others: Mapping[str, MXConfig] = MappingProxyType({}),
) -> None:
    """Write into each configuration how its model's layers were quantised, if any were.

    Args:
        configs: as :func:`saved_configs` gives them.
        config: of the layers.
        reports: of all linear layers: their names, and whether they were kept.
        others: configurations of layers that have their own, by name.
    """
    layers = list(reports)
    for name, its in configs.items():
        prefix = f"{name}." if name else ""
        inner = [layer for layer in layers if layer.name.startswith(prefix)]
        if all(layer.kept for layer in inner):
            continue
        its.quantization_config = {
            "quant_method": METHOD,
            "a_format": config.a_format,
            "scale_rounding": config.scale_rounding,
            "modules_to_not_convert": [f"{re.escape(x.name.removeprefix(prefix))}$" for x in inner if x.kept],
            "prepare": config.prepare,
            "layers": [
                {
                    "pattern": re.escape(layer.removeprefix(prefix)),
                    "a_format": own.a_format,
                    "scale_rounding": own.scale_rounding,
                }
                for layer, own in others.items()
                if layer.startswith(prefix)
            ],
        }
