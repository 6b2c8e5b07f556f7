"""The state of MXLinear and MXWeight: saved, loaded, moved, copied, written to; and what was derived of it."""

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

import mxgemm
from mxgemm import notices
from mxgemm.mx.layouts import Layout
from mxgemm.nn import MXLinear, MXWeight
from tests.cases import spread

N, K = 64, 128
X = torch.randn(3, K, generator=torch.Generator().manual_seed(5))
FORMS = {"raw": None, "sm_90": ("sm_90", True), "gfx950": ("gfx950", True), "gfx950 alone": ("gfx950", False)}
"""Architecture and ``keep``: none, read beside the bytes, in their place, and them."""


def layer(seed: int = 0, form: str = "raw", bias: bool = True) -> MXLinear:
    weight = mxgemm.quantize(spread(N, K, seed=seed))
    made = MXLinear.from_mx(weight, torch.randn(N) if bias else None, a_format="e2m1")
    arguments = FORMS[form]
    if arguments:
        made.prepare(arguments[0], keep=arguments[1])
    return made


def by_hand(state: dict[str, Tensor]) -> Tensor:
    """The product of row-major bytes, past any layer."""
    return mxgemm.gemm(X, state["weight"], state["weight_scale"], bias=state.get("bias"), out_dtype=torch.float32)


def cloned(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# ---- saving and loading


@pytest.mark.parametrize("form", FORMS)
def test_the_state_is_the_row_major_bytes_by_quarks_names(form: str) -> None:
    want = mxgemm.quantize(spread(N, K))
    state = layer(form=form).state_dict()
    assert list(state) == ["weight", "weight_scale", "bias"]
    assert torch.equal(state["weight"], want.data)
    assert torch.equal(state["weight_scale"], want.scales)
    assert all(value.is_contiguous() for value in state.values())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["state_dict", "assign", "torch.save", "safetensors", "save_model"])
def test_round_trips_to_the_byte(way: str, form: str, bias: bool, tmp_path: Path) -> None:
    saved, loaded = layer(1, form, bias), layer(2, form, bias)
    state, file = cloned(saved), tmp_path / "state"
    if way == "torch.save":
        torch.save(saved.state_dict(), file)
        loaded.load_state_dict(torch.load(file, weights_only=True))
    elif way == "safetensors":
        save_file(saved.state_dict(), file)
        loaded.load_state_dict(load_file(file))
    elif way == "save_model" and FORMS[form] != ("gfx950", False):
        save_model(saved, str(file))
        load_model(loaded, file)
    else:
        loaded.load_state_dict(state, assign=way == "assign")
    assert same(cloned(loaded), state)
    assert torch.equal(loaded(X), by_hand(state))


def test_a_file_of_quarks_names_loads_into_a_model(tmp_path: Path) -> None:
    weight, bias = mxgemm.quantize(spread(N, K)), torch.randn(N)
    save_file({"0.weight": weight.data, "0.weight_scale": weight.scales, "0.bias": bias}, tmp_path / "quark")
    model = nn.Sequential(MXLinear(K, N))
    model.load_state_dict(load_file(tmp_path / "quark"))
    assert torch.equal(model(X), mxgemm.gemm(X, weight, bias=bias, a_format="bf16", out_dtype=torch.float32))


@pytest.mark.parametrize("form", FORMS)
def test_torchs_own_dtypes_load_as_the_bytes_that_they_are(form: str) -> None:
    state, loaded = cloned(layer(1)), layer(2, form)
    own = {"weight": torch.float4_e2m1fn_x2, "weight_scale": torch.float8_e8m0fnu}
    typed = {name: value.view(own[name]) if name in own else value for name, value in state.items()}
    loaded.load_state_dict(typed)
    assert same(cloned(loaded), state)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("weight", torch.ones(N, K), "these are the values of an unquantised weight"),
        ("weight", torch.ones(N, K // 2), "got a torch.float32 tensor"),
        ("weight_scale", torch.ones(N, K // 32), "got a torch.float32 tensor"),
        ("weight", torch.ones(N, K // 2, dtype=torch.float8_e4m3fn), "got a torch.float8_e4m3fn tensor"),
        ("weight", torch.ones(N, K // 2, dtype=torch.int8), "got a torch.int8 tensor"),
        ("weight", torch.ones(N, K // 4, dtype=torch.uint8), "size mismatch"),
        ("weight_scale", torch.ones(256, 8, dtype=torch.uint8), "size mismatch"),
    ],
    ids=["values", "floats", "float scales", "fp8", "int8", "K", "shuffled"],
)
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_what_are_not_the_bytes_is_refused_and_nothing_is_converted(
    form: str, assign: bool, name: str, value: Tensor, message: str
) -> None:
    loaded = layer(form=form)
    before = cloned(loaded)
    with pytest.raises(RuntimeError, match=message):
        loaded.load_state_dict({**before, name: value}, assign=assign)
    assert same(cloned(loaded), before)
    assert torch.equal(loaded(X), by_hand(before))


@pytest.mark.parametrize("form", FORMS)
def test_a_missing_part_is_named_and_the_other_is_taken(form: str) -> None:
    loaded, other = layer(form=form), cloned(layer(1))
    before = cloned(loaded)
    with pytest.raises(RuntimeError, match="Missing key.*weight_scale"):
        loaded.load_state_dict({name: other[name] for name in ("weight", "bias")})
    loaded.load_state_dict({"weight": other["weight"]}, strict=False)
    assert same(cloned(loaded), {**other, "weight_scale": before["weight_scale"]})
    assert torch.equal(loaded(X), by_hand(cloned(loaded)))


def test_made_on_meta_and_loaded_later() -> None:
    state = cloned(layer(1))
    with torch.device("meta"):
        models = [MXLinear(K, N, a_format="e2m1") for _ in range(3)]
    assert all(parameter.is_meta for model in models for parameter in model.parameters())
    assert models[0](X.to("meta")).shape == (3, N)
    models[0].prepare()
    models[0].load_state_dict(state, assign=True)
    models[1].to_empty(device="cpu").load_state_dict(state)
    models[2].to_empty(device="cpu").reset_parameters()
    assert torch.equal(models[0](X), by_hand(state))
    assert torch.equal(models[1](X), by_hand(state))
    assert models[2](X).isnan().all()


# ---- moving and copying


@pytest.mark.parametrize("form", FORMS)
def test_a_change_of_dtype_is_one_of_the_bias(form: str) -> None:
    moved, state = layer(form=form), cloned(layer(form=form))
    for move in (lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.float(), lambda m: m.to("cpu")):
        move(moved)
        assert {moved.weight.dtype, moved.weight_scale.dtype} == {torch.uint8}
    state["bias"] = state["bias"].bfloat16().half().float()
    moved.bias.data = state["bias"]
    assert torch.equal(moved(X), by_hand({**cloned(moved), "bias": state["bias"]}))
    assert torch.equal(moved.state_dict()["weight"], state["weight"])


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "deepcopy in a model": lambda module: copy.deepcopy(nn.Sequential(module))[0],
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("form", FORMS)
def test_copies_have_bytes_of_their_own_and_forms_of_their_own(form: str, way: str) -> None:
    first = layer(form=form)
    state = cloned(first)
    second = COPIES[way](first)
    assert same(cloned(second), state)
    assert repr(second) == repr(first)  # prepared in the same way
    first.weight.zero_()
    assert torch.equal(second(X), by_hand(state))
    assert torch.equal(first(X), by_hand(cloned(first)))


def test_what_was_derived_is_not_copied() -> None:
    size = len(pickle.dumps(layer()))
    assert all(len(pickle.dumps(layer(form=form))) < size + 2000 for form in FORMS)


def test_a_saved_module_comes_back(tmp_path: Path) -> None:
    saved = layer(form="gfx950 alone")
    torch.save(saved, tmp_path / "module")
    loaded = torch.load(tmp_path / "module", weights_only=False)
    assert same(cloned(loaded), cloned(saved))
    assert torch.equal(loaded(X), saved(X))


@pytest.mark.gpu
@pytest.mark.parametrize("keep", [True, False])
def test_there_and_back_on_a_gpu(keep: bool) -> None:
    moved = layer()
    state, want = cloned(moved), moved(X)
    arch = "gfx950" if not keep else None
    moved.cuda().prepare(arch, keep=keep)
    for _ in range(2):
        assert torch.allclose(moved(X.cuda()).cpu(), want, rtol=1e-2, atol=1e-2)
        assert all(parameter.is_cuda for parameter in moved.parameters())
        moved.load_state_dict(state)
    assert torch.equal(moved.cpu()(X), want)
    assert same(cloned(moved), state)


# ---- what is derived


@pytest.mark.parametrize("form", FORMS)
def test_a_prepared_layer_gives_the_same_bits(form: str) -> None:
    prepared = layer(form=form)
    assert torch.equal(prepared(X), by_hand(cloned(prepared)))


WRITES: dict[str, Callable[[MXLinear], object]] = {
    "weight in place": lambda m: m.weight.bitwise_xor_(1),
    "scales in place": lambda m: m.weight_scale.add_(1),
    "a row": lambda m: m.weight[3].fill_(7),
    "a view": lambda m: m.weight.view(-1)[5:9].zero_(),
    "a new parameter": lambda m: setattr(m, "weight", nn.Parameter(m.weight.data ^ 8, requires_grad=False)),
    "new scales": lambda m: setattr(m, "weight_scale", nn.Parameter(m.weight_scale + 1, requires_grad=False)),
    ".data =": lambda m: setattr(m.weight, "data", m.weight.data ^ 8),
    "both swapped": lambda m: torch.utils.swap_tensors(m.weight, nn.Parameter(m.weight.data ^ 8, requires_grad=False)),
    "loaded": lambda m: m.load_state_dict(layer(3).state_dict()),
    "assigned": lambda m: m.load_state_dict(layer(3).state_dict(), assign=True),
    "to_empty": lambda m: m.to_empty(device="cpu").load_state_dict(layer(3).state_dict()),
    "reset": lambda m: m.reset_parameters(),
    "another thread": lambda m: _in_a_thread(lambda: m.weight.zero_()),
    "inference mode": lambda m: _under_inference_mode(lambda: m.weight.add_(1)),
}


def _in_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def _under_inference_mode(call: Callable[[], object]) -> None:
    with torch.inference_mode():
        call()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("form", FORMS)
def test_changed_bytes_are_seen(form: str, write: str) -> None:
    changed = layer(form=form)
    before = changed(X)
    WRITES[write](changed)
    after = changed(X)
    assert torch.equal(after, by_hand(cloned(changed))) or (after.isnan() & by_hand(cloned(changed)).isnan()).all()
    assert not torch.equal(after, before)


@pytest.mark.parametrize("form", FORMS)
def test_bytes_of_inference_mode_become_bytes_whose_changes_count(form: str) -> None:
    changed, other = layer(form=form), layer(3)
    with torch.inference_mode():
        changed.load_state_dict(cloned(other), assign=True)
    assert torch.equal(changed(X), by_hand(cloned(other)))
    if form != "raw":
        assert changed._made_anew == 0
    changed.prepare("sm_90")
    with torch.inference_mode():
        changed.weight.bitwise_xor_(1)
        assert torch.equal(changed(X), by_hand(cloned(changed)))


def test_a_form_is_made_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = mxgemm.MXTensor.prepare
    monkeypatch.setattr(mxgemm.MXTensor, "prepare", lambda self, *a, **n: made.append(self) or real(self, *a, **n))
    prepared = layer(form="sm_90")
    for _ in range(3):
        prepared(X)
    assert len(made) == 1
    prepared.weight.add_(1)
    for _ in range(3):
        prepared(X)
    assert len(made) == 2


def test_a_weight_that_is_always_written_is_said_to_be_no_gain(caplog: pytest.LogCaptureFixture) -> None:
    notices._said.pop("nn made anew", None)
    prepared = layer(form="sm_90")
    for _ in range(12):
        prepared.weight.bitwise_xor_(1)
        assert torch.equal(prepared(X), by_hand(cloned(prepared)))
    assert caplog.text.count("such a weight is better left unprepared") == 1


def test_what_prepare_had_been_asked_of_a_weight_is_repeated() -> None:
    weight = mxgemm.quantize(spread(N, K)).prepare("sm_90")
    assert "prepared as fp8_fold" in repr(MXLinear.from_mx(weight))
    alone = mxgemm.quantize(spread(N, K)).prepare("gfx950", keep=False)
    made = MXLinear.from_mx(alone, a_format="e2m1")
    assert made.layout == alone.layout
    assert torch.equal(made(X), by_hand(cloned(made)))


def test_only_the_fragment_order_is_left() -> None:
    made, plain = layer(), layer(1)
    before = cloned(made)
    made.prepare("sm_90", keep=False)
    assert made.layout == Layout("fragments", "fragments")
    assert same(made.state_dict(), before)
    assert torch.equal(made(X), by_hand(before))
    made.load_state_dict(plain.state_dict())
    assert torch.equal(made(X), by_hand(cloned(plain)))


def test_prepare_says_what_it_does_not_do() -> None:
    with pytest.raises(ValueError, match="keep: got False, but on sm_90"):
        MXLinear.from_mx(mxgemm.quantize(spread(48, 96))).prepare("sm_90", keep=False)
    with pytest.raises(ValueError, match="memory: got 'slow'"):
        layer().prepare(memory="slow")  # type: ignore[arg-type]
    kept = layer()
    kept.prepare()
    assert "prepared" not in repr(kept)  # a CPU wants nothing


def test_a_replaced_parameter_of_functional_call() -> None:
    prepared, other = layer(form="sm_90"), cloned(layer(4))
    want = prepared(X)
    assert torch.equal(torch.func.functional_call(prepared, other, (X,)), by_hand(other))
    assert torch.equal(prepared(X), want)


@pytest.mark.parametrize("form", FORMS)
def test_replicas_and_parametrised_layers_multiply(form: str) -> None:
    """torch.nn.DataParallel's replicas hold tensors in the place of parameters, as a parametrised layer does."""
    prepared = layer(form=form)
    want = prepared(X)
    replica = prepared._replicate_for_data_parallel()
    for name, parameter in prepared.named_parameters():
        setattr(replica, name, parameter.detach().clone())
    assert torch.equal(replica(X), want)
    if form in ("raw", "sm_90"):
        torch.nn.utils.parametrize.register_parametrization(prepared, "weight", nn.Identity())
        assert torch.equal(prepared(X), want)


# ---- MXWeight, and MXTensor in a module


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = MXWeight(mxgemm.quantize(torch.randn(4, N, K)))
        self.down = MXWeight(mxgemm.quantize(torch.randn(K, N), format="e4m3"))


def test_an_mx_tensor_of_any_shape_and_format_is_state_of_a_module(tmp_path: Path) -> None:
    saved, loaded = Experts(), Experts()
    save_file(saved.state_dict(), tmp_path / "f")
    loaded.load_state_dict(load_file(tmp_path / "f"))
    assert list(loaded.state_dict()) == [
        f"{name}.{part}" for name in ("up", "down") for part in ("weight", "weight_scale")
    ]
    for name in ("up", "down"):
        got, want = getattr(loaded, name).mx_tensor(), getattr(saved, name).mx_tensor()
        assert (got.shape, got.format) == (want.shape, want.format)
        assert torch.equal(got.dequantize(), want.dequantize())
    assert "e2m1, shape=(4, 64, 128)" in repr(saved)
    before = saved.up.mx_tensor().dequantize()
    saved.up.prepare("sm_90")
    assert torch.equal(saved.up.prepared_tensor().dequantize(), before)
    with pytest.raises(ValueError, match=r"want a weight \(N, K\) or a stack of them \(E, N, K\)"):
        MXWeight(mxgemm.quantize(torch.randn(2, 2, N, K))).prepare()


def test_an_mx_tensor_by_itself_is_no_state_and_torch_says_so() -> None:
    module, weight = nn.Module(), mxgemm.quantize(torch.randn(N, K))
    for register in (
        lambda: module.register_buffer("w", weight),
        lambda: module.register_parameter("w", weight),
        lambda: nn.Parameter(weight),
        lambda: nn.ParameterList([weight])[0] and module.register_module("w", weight),
    ):
        with pytest.raises((TypeError, AttributeError)):
            register()
    with pytest.raises(TypeError, match="tensor: got Parameter, want an MXTensor|want an MXTensor"):
        MXWeight(torch.ones(2, 2))  # type: ignore[arg-type]
