"""quantize_: what it replaces, what it keeps and says of it, what it refuses before anything is changed."""

import gc
import math
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import mxgemm
from mxgemm.nn import MXLinear
from tests.cases import spread


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Language(nn.Module):
    """A model as language models are: embedding, blocks, output layer."""

    def __init__(self, tied: bool = False, width: int = 64, words: int = 100) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.odd = nn.Linear(width, 50)
        self.back = nn.Linear(50, width)  # K = 50: no multiple of 32
        self.lm_head = nn.Linear(width, words, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x + self.back(self.odd(x))))


IDS = torch.arange(12).view(3, 4)
REPLACED = ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "odd"]


def kinds(model: nn.Module) -> dict[str, str]:
    return {name: type(module).__name__ for name, module in model.named_modules() if "Linear" in type(module).__name__}


@pytest.mark.parametrize("tied", [False, True])
def test_by_default_all_linear_layers_but_the_output(tied: bool) -> None:
    model = Language(tied)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = mxgemm.quantize_(model)
    got = kinds(model)
    assert [name for name, kind in got.items() if kind == "MXLinear"] == REPLACED
    assert [layer.name for layer in report.quantized] == REPLACED
    kept = {layer.name: layer.kept for layer in report.layers if layer.kept}
    assert kept == {
        "back": "its weight has shape (64, 50); want N of at least 1, K a multiple of 32",
        "lm_head": "it is the output layer",
    }
    for name in ("embed.weight", "lm_head.weight", "back.weight", "norm.weight", "blocks.0.up.bias"):
        assert torch.equal(model.state_dict()[name], before[name])
    assert (model.lm_head.weight is model.embed.weight) == tied
    for name in REPLACED:
        want = mxgemm.quantize(before[f"{name}.weight"])
        assert torch.equal(model.get_submodule(name).weight, want.data)
        assert torch.equal(model.get_submodule(name).weight_scale, want.scales)
    assert model(IDS).isfinite().all()


def test_the_result_is_that_of_the_dequantised_model() -> None:
    model = Language().bfloat16()
    exact = Language().bfloat16()
    exact.load_state_dict(model.state_dict())
    for name in REPLACED:
        weight = exact.get_submodule(name).weight
        weight.data = mxgemm.quantize(weight).dequantize(torch.bfloat16)
    mxgemm.quantize_(model, mxgemm.MXConfig())
    difference = (model(IDS) - exact(IDS)).float().norm() / exact(IDS).float().norm()
    assert difference < 2e-2  # of bf16 in another order; a weight that is wrong gives 1


def test_the_report_says_errors_and_bytes() -> None:
    model = Language()
    weights = {name: model.get_submodule(name).weight.detach().double() for name in REPLACED}
    report = mxgemm.quantize_(model, mxgemm.MXConfig("e4m3", "floor"))
    for layer in report.quantized:
        exact = weights[layer.name]
        decoded = mxgemm.quantize(exact.float(), scale_rounding="floor").dequantize().double()
        assert layer.shape == tuple(exact.shape)
        assert math.isclose(layer.error, float((decoded - exact).norm() / exact.norm()), rel_tol=1e-6)
        assert layer.bytes_before == exact.numel() * 4
        assert layer.bytes_after == exact.numel() // 2 + exact.numel() // 32
    kept = 4 * (50 * 64 + 100 * 64)
    assert report.bytes_before == sum(layer.bytes_before for layer in report.quantized) + kept
    assert report.bytes_after == sum(layer.bytes_after for layer in report.quantized) + kept
    linear = {id(layer.weight) for layer in model.modules() if isinstance(layer, (nn.Linear, MXLinear))}
    scales = {id(layer.weight_scale) for layer in model.modules() if isinstance(layer, MXLinear)}
    assert report.other_bytes == sum(p.nbytes for p in model.parameters() if id(p) not in linear | scales)
    text = str(report)
    assert f"{report.other_bytes:,} in other parameters" in text
    assert "5 of 7 linear layers in MXFP4, largest error 0." in text
    assert "K a multiple of 32" in text
    assert (model.odd.a_format, model.odd.scale_rounding) == ("e4m3", "floor")


def test_errors_of_special_weights() -> None:
    model = nn.Sequential(nn.Linear(32, 8), nn.Linear(32, 8), nn.Linear(32, 8).to("meta"))
    with torch.no_grad():
        model[0].weight.zero_()
        model[1].weight[2, 3] = torch.nan
    errors = [layer.error for layer in mxgemm.quantize_(model).layers]
    assert errors[0] == 0.0
    assert math.isnan(errors[1])
    assert math.isnan(errors[2])


def test_a_filter_is_asked_of_linear_layers_alone_and_obeyed() -> None:
    asked = []

    def choose(layer: nn.Module, name: str) -> bool:
        asked.append((type(layer), name))
        return name.endswith("up") or name == "lm_head"

    model = Language()
    report = mxgemm.quantize_(model, filter_fn=choose)
    assert {kind for kind, _ in asked} == {nn.Linear}
    assert [name for name, kind in kinds(model).items() if kind == "MXLinear"] == [
        "blocks.0.up",
        "blocks.1.up",
        "lm_head",
    ]
    assert {layer.kept for layer in report.layers if layer.name.endswith("down")} == {"filter_fn says so"}


def test_again_is_nothing() -> None:
    model = Language()
    mxgemm.quantize_(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert not mxgemm.quantize_(model).quantized
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_state_comes_back_into_a_model_quantised_likewise() -> None:
    saved, loaded = Language(), Language()
    for model in (saved, loaded):
        mxgemm.quantize_(model, mxgemm.MXConfig(prepare="fast"))
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(loaded(IDS), saved(IDS))


def test_a_model_on_meta_gets_its_weights_later() -> None:
    saved = Language()
    mxgemm.quantize_(saved)
    with torch.device("meta"):
        skeleton = Language()
    mxgemm.quantize_(skeleton)
    skeleton.load_state_dict(saved.state_dict(), assign=True)
    assert torch.equal(skeleton(IDS), saved(IDS))


def test_memory_goes_down_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    weights = [weakref.ref(layer.weight) for layer in model]
    alive = []
    real = MXLinear.from_linear.__func__

    def watched(cls: type, linear: nn.Linear, **options: str) -> MXLinear:
        gc.collect()
        alive.append(sum(weight() is not None for weight in weights))
        return real(cls, linear, **options)

    monkeypatch.setattr(MXLinear, "from_linear", classmethod(watched))
    mxgemm.quantize_(model)
    assert alive == [4, 3, 2, 1]


# ---- sharing


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(32, 32)
        self.b = nn.Linear(32, 32)
        self.b.weight = self.a.weight
        self.c = self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + 2 * self.b(x) + 4 * self.c(x)


def test_one_layer_by_two_names_and_one_weight_in_two_layers_stay_one() -> None:
    model = Shared()
    bias = model.b.bias
    report = mxgemm.quantize_(model)
    assert [layer.name for layer in report.layers] == ["a", "b"]
    assert [layer.bytes_before for layer in report.layers] == [4096, 0]
    assert model.a is model.c
    assert model.a is not model.b
    assert model.a.weight is model.b.weight
    assert model.a.weight_scale is model.b.weight_scale
    assert model.b.bias is bias
    with torch.no_grad():
        model.a.weight.bitwise_xor_(8)
    x = torch.randn(2, 32)
    assert torch.equal(model.b(x) - model.b.bias, model.a(x) - model.a.bias) or torch.allclose(
        model.b(x) - model.b.bias, model.a(x) - model.a.bias, atol=1e-5
    )


def test_a_tie_to_what_is_kept_is_kept_or_refused() -> None:
    model = Language()
    model.odd = nn.Linear(64, 100, bias=False)
    model.odd.weight = model.lm_head.weight = model.embed.weight
    model.back = nn.Linear(100, 64)
    before = kinds(model)
    with pytest.raises(ValueError, match=r"chose odd, but it shares its weight with embed.weight, not chosen"):
        mxgemm.quantize_(model, filter_fn=lambda layer, name: name in ("odd", "blocks.0.up"))
    assert kinds(model) == before  # nothing was changed
    report = mxgemm.quantize_(model)
    (odd,) = [layer for layer in report.layers if layer.name == "odd"]
    assert odd.kept == "it shares its weight with embed.weight"


def test_ties_to_ties_are_followed() -> None:
    """b keeps its weight because its layer has hooks, so a, which has the same one, keeps it too."""
    model = Shared()
    model.b.register_forward_hook(lambda *_: None)
    report = mxgemm.quantize_(model)
    assert {layer.name: layer.kept for layer in report.layers} == {
        "a": "it shares its weight with b.weight",
        "b": "it has hooks",
    }


# ---- what is no plain linear layer


class Subclass(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def _hooked() -> nn.Module:
    layer = nn.Linear(32, 32)
    layer.register_forward_pre_hook(lambda *_: None)
    return nn.Sequential(layer)


def _replaced_forward() -> nn.Module:
    layer = nn.Linear(32, 32)
    layer.forward = lambda x: x  # type: ignore[method-assign]
    return nn.Sequential(layer)


SPECIAL: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "subclass": (lambda: nn.Sequential(Subclass(32, 32)), "Subclass has a forward of its own"),
    "hooks": (_hooked, "it has hooks"),
    "forward": (_replaced_forward, "Linear has a forward of its own"),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(32, 32))),
        "its weight is made of other tensors",
    ),
    "attention": (lambda: nn.MultiheadAttention(32, 4), "its MultiheadAttention reads the weight past the layer"),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(32, 4, 64),
        "its TransformerEncoderLayer reads the weight past the layer",
    ),
    "float64": (lambda: nn.Sequential(nn.Linear(32, 32).double()), "its weight is a Parameter of torch.float64"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(32)), "its weight is a UninitializedParameter"),
}


@pytest.mark.parametrize("what", SPECIAL)
def test_layers_that_are_more_than_a_product_are_kept_or_refused(what: str) -> None:
    make, reason = SPECIAL[what]
    model = make()
    before = dict(model.named_modules())
    report = mxgemm.quantize_(model)
    assert not report.quantized
    assert all(layer.kept.startswith(reason) or "reads the weight" in layer.kept for layer in report.layers)
    assert any(layer.kept.startswith(reason) for layer in report.layers)
    with pytest.raises(ValueError, match=f"filter_fn: chose .*, but {reason}|reads the weight"):
        mxgemm.quantize_(model, filter_fn=lambda layer, name: True)
    assert dict(model.named_modules()) == before


def test_an_encoder_still_runs_and_its_other_layers_are_quantised() -> None:
    encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    model = nn.Sequential(encoder, nn.Linear(64, 32)).eval()
    assert len(mxgemm.quantize_(model).quantized) == 1
    with torch.no_grad():
        assert model(torch.randn(2, 5, 64)).isfinite().all()


# ---- refusals


class Holder(nn.Module):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.w = value
        self.linear = nn.Linear(32, 32)


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_mx_tensor_as_a_plain_attribute_is_refused(wrapped: bool) -> None:
    weight = mxgemm.quantize(torch.randn(32, 32))
    model = Holder([weight] if wrapped else weight)
    with pytest.raises(ValueError, match=r"model: got an MXTensor as the attribute inner\.w"):
        mxgemm.quantize_(model)
    assert type(model.linear) is nn.Linear
    with pytest.raises(ValueError, match=r"want mxgemm\.nn\.MXWeight"):
        mxgemm.nn.check_state(model)
    model.inner.w = mxgemm.nn.MXWeight(weight)
    assert len(mxgemm.quantize_(model).quantized) == 1
    model.linear.prepare("sm_90")
    mxgemm.nn.check_state(model)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: mxgemm.quantize_(torch.ones(2)), TypeError, "model: got Tensor, want a torch.nn.Module"),
        (lambda: mxgemm.quantize_(nn.Linear(32, 32)), ValueError, "want MXLinear.from_linear"),
        (lambda: mxgemm.quantize_(nn.ReLU(), {"a_format": "bf16"}), TypeError, "config: got dict"),
        (lambda: mxgemm.quantize_(nn.ReLU(), filter_fn="all"), TypeError, "filter_fn: got 'all'"),
        (lambda: mxgemm.MXConfig(a_format="fp4"), ValueError, "a_format: got 'fp4', want one of e2m1, e4m3, bf16"),
        (lambda: mxgemm.MXConfig(scale_rounding=None), ValueError, "scale_rounding: got None"),
        (lambda: mxgemm.MXConfig(prepare="slow"), ValueError, "prepare: got 'slow', want one of fast, compact"),
    ],
    ids=["model", "linear", "config", "filter", "a_format", "rounding", "prepare"],
)
def test_wrong_arguments_are_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_filter_that_cannot_decide_is_refused() -> None:
    with pytest.raises(ValueError, match="got both answers for one layer, a, c; want one"):
        mxgemm.quantize_(Shared(), filter_fn=lambda layer, name: name == "a")


def test_block_scales_differ_as_the_weights_do() -> None:
    model = nn.Sequential(nn.Linear(96, 33))
    model[0].weight.data = spread(33, 96)
    mxgemm.quantize_(model)
    assert len(model[0].weight_scale.unique()) > 6
