"""Layers of experts against the two products of Humming's w4a16 kernels (humming-kernels on PyPI): one run, one clock.

    PYTHONPATH=. python bench/experts_humming.py warm      # compiles what Humming launches
    PYTHONPATH=. python bench/experts_humming.py time [--tokens 1 4 16 64]

Ours is a whole layer: sorting, quantising, both products, activation, sums. Of Humming it is the two indexed products
alone, whose rows are sorted beforehand: that is less than a layer takes with it. Its configurations are those of its
own heuristics; N is padded where they ask for it, as servers do that use it. A line of JSON for each figure.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.experts import Weight, floor_us, heat, in_order, measure, planned, run_layer, tell
from mxgemm.device import machine_of
from mxgemm.experts.w4_mma import GroupedMMA
from mxgemm.measure.moe import make_layer, make_tokens, turns_of
from mxgemm.measure.moe_sets import MOE_SETS, ExpertsSet

PADDED = (1, 128, 256)
"""Multiples that N is padded to: the first one that Humming's heuristics can take."""


def humming_weight(w: Any, n: int, k: int, experts: int, pad: int) -> Any:
    """Repack a stack of weights."""
    layer = importlib.import_module("humming.layer").HummingLayer(
        shape_n=n, shape_k=k, weight_config={"quant_method": "mxfp4"}, num_experts=experts, torch_dtype=torch.bfloat16,
        pad_n_to_multiple=pad,
    )  # fmt: skip
    layer = layer.to(w.data.device)
    layer.load_from_tensors({"weight": w.data, "weight_scale": w.scales})
    layer.transform()
    return layer


def config_of(layer: Any, rows: int) -> dict[str, Any]:
    """Return what its heuristics choose for so many pairs."""
    tune = importlib.import_module("humming.tune")
    return dict(tune.get_heuristics_config(layer.humming_config, shape_m=rows, gemm_type="indexed"))


def aligned(ids: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return pairs in their experts' order, each expert's filled up to blocks, the blocks' experts, their rows."""
    flat = ids.reshape(-1)
    pairs: list[int] = []
    experts: list[int] = []
    for expert in torch.unique(flat).tolist():
        own = torch.nonzero(flat == expert).reshape(-1).tolist()
        blocks = -(-len(own) // block)
        pairs += own + [flat.numel()] * (blocks * block - len(own))
        experts += [expert] * blocks
    return tuple(torch.tensor(v, dtype=torch.int32, device=ids.device) for v in (pairs, experts, [len(pairs)]))  # type: ignore[return-value]


def product(layer: Any, x: Tensor, config: dict[str, Any], where: tuple[Tensor, Tensor, Tensor], top_k: int) -> Tensor:
    """Multiply by Humming."""
    pairs, experts, count = where
    out: Tensor = layer(
        x, sorted_ids=pairs, expert_ids=experts, num_tokens_padded=count, top_k=top_k,
        compute_config={"gemm_type": "indexed"}, tuning_config=config,
    )  # fmt: skip
    return out


def taken(
    one: ExpertsSet, layer: Any, x: Tensor, ids: Tensor, kept: dict[tuple[int, int], Any]
) -> tuple[list[Any], list[dict[str, Any]], list[int]]:
    """Return Humming's two weights, configurations and paddings: the least padding that it takes."""
    found: tuple[list[Any], list[Any], list[int]] = ([], [], [])
    rows = ids.numel()
    for w, n, k, top_k in (
        (layer.w13, 2 * one.inner, one.hidden, one.top_k), (layer.w2, one.hidden, one.inner, 1),
    ):  # fmt: skip
        given = x if top_k > 1 else torch.zeros((rows, k), dtype=x.dtype, device=x.device)
        refused = ""
        for pad in PADDED:
            try:
                if (n, pad) not in kept:
                    kept[n, pad] = humming_weight(w, n, k, one.experts, pad)
                made = kept[n, pad]
                config = config_of(made, rows)
                product(made, given, config, aligned(ids, config["block_shape"][0]), top_k)
                torch.cuda.synchronize()
            except (AssertionError, RuntimeError, ValueError, TypeError) as error:
                refused = f"{type(error).__name__}: {error}"[:300]
                continue
            for some, value in zip(found, (made, config, pad), strict=True):
                some.append(value)
            break
        else:
            raise RuntimeError(f"Humming does not take ({n}, {k}): {refused}")
    return found


def run_tokens(
    one: ExpertsSet, layer: Any, count: int, only_compile: bool, weights_in_order: tuple[Weight, Weight],
    kept: dict[tuple[int, int], Any],
) -> None:  # fmt: skip
    """Compile, or measure, layers of so many tokens."""
    x, ids, weights = make_tokens(one, count, layer.w13.device)
    made, configs, pads = taken(one, layer, x, ids, kept)
    if only_compile:
        tell(what="humming compiled", tokens=count, pads=pads, blocks=[c["block_shape"] for c in configs])
        return
    turns, floor = turns_of(one, ids, int(torch.unique(ids).numel())), floor_us(one, ids)
    inner = torch.randn((ids.numel(), one.inner), device=x.device).to(torch.bfloat16)
    calls: list[Callable[[], Tensor]] = []
    for turn in turns:
        first, second = (aligned(turn, c["block_shape"][0]) for c in configs)

        def both(first: Any = first, second: Any = second) -> Tensor:
            product(made[0], x, configs[0], first, one.top_k)
            return product(made[1], inner, configs[1], second, 1)

        calls.append(both)
    ours: dict[str, float] = {}
    common = {"set": one.name, "tokens": count}
    for fmt in ("bf16", "e2m1"):
        p = planned(one, count, fmt, machine_of(x.device), True)
        launches = GroupedMMA().bind_layer(p.problems, p.routing, p.tokens)
        layers = [partial(run_layer, launches, p, *weights_in_order, layer, x, turn, weights) for turn in turns]
        ours[fmt] = measure("w4_mma, a layer", layers, floor, a_format=fmt, **common)
    got = product(made[0], x, configs[0], aligned(ids, configs[0]["block_shape"][0]), one.top_k).float()
    some = [layer.w13[e].dequantize() @ x[pair // one.top_k].float() for pair, e in enumerate(ids.reshape(-1).tolist())]
    want = torch.stack(some)
    off = round(float((got.view_as(want) - want).norm() / want.norm()), 5)
    peer = measure("humming, two products", calls, floor, a_format="bf16", off=off, pads=pads, **common)
    tell(what="ours / humming", **common, **{fmt: round(us / peer, 3) for fmt, us in ours.items()})


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("warm", "time"))
    parser.add_argument("--set", default="moe-gpt-oss-20b", choices=MOE_SETS)
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 4, 16, 64])
    chosen = parser.parse_args()
    one = MOE_SETS[chosen.set]
    layer = make_layer(one, torch.device("cuda", 0))
    prepared, kept = in_order(layer), dict[tuple[int, int], Any]()
    if chosen.command == "time":
        heat()
    for count in chosen.tokens:
        try:
            run_tokens(one, layer, count, chosen.command == "warm", prepared, kept)
        except Exception as error:  # a peer that cannot take a size: the others are compared
            tell(what="humming", tokens=count, error=f"{type(error).__name__}: {error}"[:400])


if __name__ == "__main__":
    main()
