"""``mxgemm.nn.MXExperts``: state, gradients, and the layouts of gpt-oss's and DeepSeek's checkpoints and back."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

import mxgemm
from mxgemm.checkpoints import experts_state, load_experts
from mxgemm.experts import layer as experts_layer
from mxgemm.nn import MXExperts
from tests.checkpoints import made
from tests.experts.cases import DEEPSEEK, GPT_OSS, layer, stack


def module(activation: mxgemm.SwiGLU = GPT_OSS, **options: object) -> tuple[MXExperts, object]:
    bias = activation is GPT_OSS
    one = layer(9, 2, bias=bias, activation=activation)
    return MXExperts(one.w13, one.w2, activation=activation, b13=one.b13, b2=one.b2, **options), one


@pytest.mark.parametrize("a_format", ["bf16", "e2m1"])
def test_it_is_moe_with_the_dtype_of_x(a_format: str) -> None:
    ours, one = module(a_format=a_format)
    want = one.run(a_format)
    assert torch.equal(ours(one.x, one.ids, one.weights), want)
    assert ours(one.x.float(), one.ids, one.weights).dtype == torch.float32
    names = {f"{name}.{part}" for name in ("gate_up_proj", "down_proj") for part in ("weight", "weight_scale")}
    assert set(ours.state_dict()) == names | {"gate_up_proj_bias", "down_proj_bias"}
    other = MXExperts(stack(5, 128, 96), stack(5, 96, 64), activation=GPT_OSS, b13=one.b13 * 0, b2=one.b2 * 0)
    other.a_format = a_format
    other.load_state_dict(ours.state_dict())
    assert torch.equal(other(one.x, one.ids, one.weights), want)
    assert torch.equal(copy.deepcopy(ours)(one.x, one.ids, one.weights), want)


def test_gradients_reach_tokens_and_router() -> None:
    ours, one = module(DEEPSEEK)
    x, weights = one.x.float().requires_grad_(), one.weights.clone().requires_grad_()
    out = ours(x, one.ids, weights)
    with torch.no_grad():
        assert (out - ours(x, one.ids, weights)).norm() / out.norm() < 5e-3
    out.sum().backward()
    w13, w2 = (w.dequantize().double() for w in (one.w13, one.w2))
    exact_x, exact_weights = x.detach().double().requires_grad_(), weights.detach().double().requires_grad_()
    total = 0
    for j in range(2):
        h = torch.einsum("tk,tnk->tn", exact_x, w13[one.ids[:, j]])
        gate, up = h.chunk(2, -1)
        y = torch.einsum("tk,tnk->tn", torch.nn.functional.silu(gate) * up, w2[one.ids[:, j]])
        total = total + y * exact_weights[:, j : j + 1]
    total.sum().backward()
    for got, want in ((x.grad, exact_x.grad), (weights.grad, exact_weights.grad)):
        assert (got - want).norm() / want.norm() < 1e-2


@pytest.mark.parametrize("layout", ["gpt-oss", "deepseek", "deepseek-v4"])
def test_layouts_there_and_back(layout: str) -> None:
    ours, one = module(GPT_OSS if layout == "gpt-oss" else DEEPSEEK)
    state = experts_state(ours, "mlp.experts", layout)
    first = "mlp.experts.gate_up_proj" if layout == "gpt-oss" else "mlp.experts.3."
    assert any(name.startswith(first) for name in state)
    again = load_experts(state, "mlp.experts")
    assert again.activation == ours.activation
    theirs, mine = again.state_dict(), ours.state_dict()
    assert theirs.keys() == mine.keys()
    assert all(torch.equal(theirs[name], mine[name]) for name in mine)
    part = load_experts(state, "mlp.experts", experts=range(1, 4))
    assert part.count == 3
    assert part.first_expert == 1
    rest = [load_experts(state, "mlp.experts", experts=r) for r in (range(1), range(4, 5))]
    x = one.x.float()
    total = sum(some(x, one.ids, one.weights) for some in (part, *rest))
    whole = ours(x, one.ids, one.weights)
    assert (total - whole).norm() / whole.norm() < 1e-6
    if layout != "gpt-oss":
        alone = state["mlp.experts.2." + ("up_proj" if layout == "deepseek" else "w3") + ".weight"]
        assert torch.equal(alone.data, one.w13.data[2, 64:])


def test_published_files(tmp_path: Path) -> None:
    """Stacks as gpt-oss publishes them, and single weights in Quark's files with activations of their own."""
    pytest.importorskip("safetensors", reason="pip install 'mxgemm[checkpoints]'")
    stacks = {"mlp.experts.gate_up_proj": made.weight(3, 128, 96), "mlp.experts.down_proj": made.weight(3, 96, 64)}
    bias = {
        "mlp.experts.gate_up_proj_bias": np.ones((3, 128), np.float32),
        "mlp.experts.down_proj_bias": np.ones((3, 96), np.float32),
    }
    folder = made.folder(tmp_path / "a", {**made.gpt_oss(stacks), **bias}, made.GPT_OSS_CONFIG)
    ours = load_experts(mxgemm.checkpoints.open(folder), "mlp.experts")
    assert ours.a_format == "bf16"
    assert ours.activation == GPT_OSS
    got = ours.gate_up_proj.mx_tensor().dequantize().double().numpy()
    assert np.array_equal(got, stacks["mlp.experts.gate_up_proj"].values)
    assert ours.gate_up_proj_bias is not None

    sizes = {"gate_proj": (64, 96), "up_proj": (64, 96), "down_proj": (96, 64)}
    single = {
        f"mlp.experts.{e}.{name}.weight": made.weight(*shape, seed=10 * e + i)
        for e in range(3)
        for i, (name, shape) in enumerate(sizes.items())
    }
    folder = made.folder(tmp_path / "b", made.quark(single), made.quark_config("fp4"))
    ours = load_experts(mxgemm.checkpoints.open(folder), "mlp.experts")
    assert ours.a_format == "e2m1"
    assert ours.activation == DEEPSEEK
    whole = ours.gate_up_proj.mx_tensor().dequantize().double().numpy()
    assert np.array_equal(whole[2, 64:], single["mlp.experts.2.up_proj.weight"].values)
    assert ours(torch.randn(4, 96), torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1)).shape == (4, 96)


def test_compiled_in_one_graph() -> None:
    ours, one = module()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(one.x, one.ids, one.weights), ours(one.x, one.ids, one.weights))


def test_what_does_not_belong_together_is_refused() -> None:
    ours, one = module(DEEPSEEK)
    state = experts_state(ours, "e", "deepseek")
    with pytest.raises(ValueError, match="layout: got gpt-oss for gate and up one after the other"):
        experts_state(ours, "e", "gpt-oss")
    with pytest.raises(KeyError, match=r"nothing\.gate_up_proj"):
        load_experts(state, "nothing")
    with pytest.raises(ValueError, match=r"experts: got range\(3, 9\), want a range of consecutive ones"):
        load_experts(state, "e", experts=range(3, 9))
    with pytest.raises(TypeError, match=r"e\.1\.up_proj\.weight: got Tensor, want an MXTensor"):
        load_experts(state | {"e.1.up_proj.weight": torch.zeros(64, 96)}, "e")
    with pytest.raises(ValueError, match=r"w2: got shape \(4, 96, 64\), want \(5, H, 64\)"):
        MXExperts(one.w13, one.w2[:4], activation=DEEPSEEK)
    with pytest.raises(TypeError, match="activation: got None, want a mxgemm.SwiGLU"):
        MXExperts(one.w13, one.w2, activation=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a_format"):
        MXExperts(one.w13, one.w2, activation=DEEPSEEK, a_format="e5m2")  # type: ignore[arg-type]


def test_warmed_calls_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    one = layer(3, 2)
    module = MXExperts(one.w13, one.w2, activation=one.activation, b13=one.b13, b2=one.b2, a_format="e2m1")
    module.prepare()  # nothing on a CPU
    module.warmup([1, 3], 2)
    monkeypatch.setattr(experts_layer, "_make_plan", None)
    assert module(one.x, one.ids, one.weights).shape == one.x.shape
    for given, named in (((["3"], 2), "tokens"), (([3], 0), "top_k"), (([0], 2), "tokens"), (([1], 2, int), "dtype")):
        with pytest.raises((TypeError, ValueError), match=named):
            module.warmup(*given)
