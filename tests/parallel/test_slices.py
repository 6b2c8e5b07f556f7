"""Slices of layers, models and checkpoints, in one process: what each of several ranks holds, and what is refused."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mxgemm
from mxgemm.checkpoints.store import Store
from mxgemm.mx.accuracy import judge
from mxgemm.nn import MXExperts, MXLinear
from mxgemm.parallel import (
    ColumnParallelMXLinear,
    ExpertParallelMXExperts,
    ParallelMXLinear,
    Ranks,
    RowParallelMXLinear,
    gather_quantized,
    load_into,
    parallelize_,
    ranks_of,
)
from tests.cases import spread
from tests.experts.cases import GPT_OSS, layer

pytest.importorskip("safetensors", reason="pip install 'mxgemm[checkpoints]'")
from safetensors.torch import save_file


@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
def test_slices_make_the_whole(a_format: Any) -> None:
    x, weight = spread(5, 192, torch.bfloat16), mxgemm.quantize(spread(66, 192, seed=1))
    bias = torch.randn(66)
    rows, sums = [], []
    for rank in range(3):
        ranks = Ranks(rank, 3)
        column = ColumnParallelMXLinear.from_mx(weight, bias, a_format=a_format, group=ranks)
        assert (column.out_features, column.in_features) == (22, 192)
        rows.append(column(x))
        row = RowParallelMXLinear.from_mx(weight, bias, a_format=a_format, group=ranks)
        assert (row.out_features, row.in_features) == (66, 64)
        sums.append(row._partial(x[:, rank * 64 : (rank + 1) * 64]))
    assert judge(torch.cat(rows, 1), x, weight, a_format=a_format, bias=bias).passed
    assert all(part.dtype == torch.float32 for part in sums)
    assert judge(sum(sums).bfloat16(), x, weight, a_format=a_format, bias=bias).passed


def test_a_layer_alone_is_the_whole() -> None:
    x, weight, one = spread(3, 64), mxgemm.quantize(spread(33, 64, seed=2)), Ranks(0, 1)
    want = MXLinear.from_mx(weight, a_format="e2m1")(x)
    for kind in (ColumnParallelMXLinear, RowParallelMXLinear):
        for ends in ({}, {"output": "whole" if kind is ColumnParallelMXLinear else "rows"}):
            layer = kind.from_mx(weight, a_format="e2m1", group=one, **ends)
            assert torch.equal(layer(x), want)
            assert "rank 0 of 1" in repr(layer)


def test_what_was_prepared_stays_so_and_what_was_trained_does_not() -> None:
    weight = mxgemm.quantize(spread(64, 64)).prepare("gfx950")
    bias = nn.Parameter(torch.ones(64))
    layer = ColumnParallelMXLinear.from_mx(weight, bias, group=Ranks(1, 2))
    assert "prepared as" in repr(layer)
    assert layer.bias is not None
    assert not layer.bias.requires_grad
    assert bias.requires_grad
    other = copy.deepcopy(layer)
    assert other.ranks is layer.ranks
    assert torch.equal(other.weight, layer.weight)
    assert layer.weight.untyped_storage().nbytes() == 32 * 32


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: ColumnParallelMXLinear(64, 33, group=Ranks(0, 2)),
            "out_features: got 33, want a multiple of 2",
        ),
        (
            lambda: RowParallelMXLinear(96, 4, group=Ranks(0, 2)),
            "in_features: got 96, want a multiple of 64",
        ),
        (
            lambda: RowParallelMXLinear.from_linear(nn.Linear(96, 4)),
            "group: torch.distributed is not initialised",
        ),
        (
            lambda: ColumnParallelMXLinear(64, 32, group=Ranks(0, 2), output="rows"),
            "output: got 'rows', want one of",
        ),
        (lambda: RowParallelMXLinear(64, 32, group=Ranks(0, 2), input="rows"), "input: got 'rows', want one of split"),
        (lambda: Ranks(2, 2), "group: got rank 2 of 2"),
        (lambda: ranks_of(), "group: torch.distributed is not initialised"),
        (lambda: gather_quantized(torch.zeros(2, 2, 32), Ranks(0, 1)), r"x: got shape \(2, 2, 32\), want \[M, K\]"),
    ],
    ids=["n", "k", "no group", "output", "input", "rank", "not initialised", "rows"],
)
def test_what_cannot_be_divided_is_refused(make: Any, message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        make()


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64, bias=False), nn.LayerNorm(64), nn.Linear(64, 30)]
    return nn.Sequential(*layers).bfloat16()


PLAN = {"0": "colwise", "2": "rowwise"}


@pytest.mark.parametrize(
    "plan, message",
    [
        ({"5": "colwise"}, "plan: got '5', which fits no module"),
        ({"0": "packed_colwise"}, "plan: got 'packed_colwise' for 0, want one of colwise, "),
        ({"0": "colwise", "4": "colwise"}, "plan: got 'colwise' for 4, which is not MX"),
        ({"0": "colwise", "2": "rowwise"}, "out_features: got 128, want a multiple of 3 for 3 ranks"),
    ],
)
def test_plans_that_do_not_fit_leave_the_model_as_it_was(plan: dict[str, str], message: str, tmp_path: Path) -> None:
    whole = model()
    mxgemm.quantize_(whole, filter_fn=lambda layer, name: name != "4")
    before = repr(whole)
    with pytest.raises(ValueError, match=message):
        parallelize_(whole, plan, Ranks(0, 3))
    assert repr(whole) == before
    checkpoint = mxgemm.checkpoints.open(written(whole, tmp_path), format="quark", a_format="bf16")
    with torch.device("meta"):
        empty = model()
    with pytest.raises(ValueError, match=message):
        load_into(empty, checkpoint, plan, Ranks(0, 3))
    assert all(parameter.is_meta for parameter in empty.parameters())


def test_experts_of_a_plan() -> None:
    """By ranks without a group, which hold what they would hold; what does not fit changes nothing."""
    one = layer(3, 2, experts=6)
    whole = MXExperts(one.w13, one.w2, activation=GPT_OSS, b13=one.b13, b2=one.b2)
    whole.prepare("sm_90")
    model = nn.ModuleDict({"experts": whole, "again": nn.ModuleDict({"experts": whole}), "head": nn.Linear(4, 4)})
    before = repr(model)
    for plan, message in (
        ({"experts": "ep_dispatch_experts"}, "experts: got 6, want a multiple of 4 for 4 ranks"),
        ({"experts.up": "grouped_gemm"}, "plan: got 'experts.up', which fits no module"),
        ({"head": "ep_dispatch_experts"}, "plan: got 'ep_dispatch_experts' for head, which is not MX"),
    ):
        with pytest.raises(ValueError, match=message):
            parallelize_(model, plan, Ranks(1, 4))
        assert repr(model) == before
    parallelize_(model, {"experts.down_proj_bias": "grouped_gemm", "experts": "ep_dispatch_experts"}, Ranks(1, 3))
    part = model["experts"]
    assert isinstance(part, ExpertParallelMXExperts)
    assert part is model.get_submodule("again.experts")
    assert (part.count, part.first_expert) == (2, 2)
    assert torch.equal(part.down_proj.weight, one.w2.data[2:4])
    made = part.gate_up_proj.prepared_tensor().prepared
    assert made is not None
    assert made.kind == "stack_fragments"
    with pytest.raises(ValueError, match="shared out already"):
        parallelize_(model, {"experts": "ep_dispatch_experts"}, Ranks(1, 2))


def test_what_is_not_mx_may_stay_whole_where_it_gives_all_of_its_result() -> None:
    whole = model()
    mxgemm.quantize_(whole, filter_fn=lambda layer, name: name != "4")
    parallelize_(whole, {**PLAN, "4": "colwise_gather_output", "3": "replicated"}, Ranks(1, 2))
    assert isinstance(whole[0], ColumnParallelMXLinear)
    assert isinstance(whole[2], RowParallelMXLinear)
    assert type(whole[4]) is nn.Linear


def written(module: nn.Module, folder: Path) -> Path:
    path = folder / "model.safetensors"
    save_file(module.state_dict(), path)
    return path


@pytest.mark.parametrize("format", ["quark", "compressed-tensors", "torchao-swizzled"])
def test_a_rank_reads_its_slice_alone(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    whole = model()
    mxgemm.quantize_(whole, mxgemm.MXConfig("e2m1"), filter_fn=lambda layer, name: name != "4")
    given: Any = {"a_format": "e2m1", "scale_rounding": "even"}
    checkpoint = mxgemm.checkpoints.open(written(whole, tmp_path), format="quark", **given)
    if format != "quark":
        mxgemm.checkpoints.convert(checkpoint, tmp_path / "other", format, dtype="bfloat16")
        checkpoint = mxgemm.checkpoints.open(tmp_path / "other", **given)
    read: list[str] = []
    plain = Store.read
    monkeypatch.setattr(Store, "read", lambda self, name: read.append(name) or plain(self, name))
    for rank in range(2):
        with torch.device("meta"):
            own = model()
        load_into(own, checkpoint, PLAN, Ranks(rank, 2))
        expected = copy.deepcopy(whole)
        parallelize_(expected, PLAN, Ranks(rank, 2))
        state = expected.state_dict()
        assert own.state_dict().keys() == state.keys()
        assert all(torch.equal(value, state[name]) for name, value in own.state_dict().items())
        assert [type(layer) for layer in own] == [type(layer) for layer in expected]
    quantized = [name for name in read if name.startswith(("0.", "2.")) and not name.endswith("bias")]
    assert bool(quantized) is (format == "torchao-swizzled")  # whose bytes lie in tiles


def test_parts_of_a_checkpoint(tmp_path: Path) -> None:
    weight = mxgemm.quantize(spread(33, 128))
    path = tmp_path / "w.safetensors"
    other = torch.zeros(3, 32)
    save_file({"w.weight": weight.data, "w.weight_scale": weight.scales, "o.weight": other}, path)
    checkpoint = mxgemm.checkpoints.open(path, format="quark", a_format="bf16")
    part = checkpoint.part("w.weight", slice(30, 33), slice(32, 96))
    assert part.shape == (3, 64)
    assert torch.equal(part.dequantize(), weight.dequantize()[30:, 32:96])
    assert torch.equal(checkpoint.part("w.weight").dequantize(), weight.dequantize())
    for given, message in (
        ({"rows": slice(0, 34)}, "rows: got 0:34, want a part of 0:33, without a step"),
        ({"rows": slice(3, 3)}, "rows: got 3:3"),
        ({"rows": slice(0, 4, 2)}, "without a step"),
        ({"columns": slice(16, 64)}, "columns: got 16:64, want a part of 0:128 in multiples of 32"),
    ):
        with pytest.raises(ValueError, match=message):
            checkpoint.part("w.weight", **given)
    with pytest.raises(TypeError, match="rows: got 3, want a slice"):
        checkpoint.part("w.weight", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"o.weight: is .*, want an MX weight"):
        checkpoint.part("o.weight")
    save_file({"w.weight": weight.data[:16], "w.weight_scale": weight.scales[:16]}, path)
    with pytest.raises(mxgemm.checkpoints.reader.FileError, match=r"w.weight: (is not what it was|cannot be read)"):
        checkpoint.part("w.weight", slice(0, 3))


def test_mxgemm_does_without_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "mxgemm.parallel" in sys.modules  # by this file; mxgemm itself imports it nowhere
    root = Path(mxgemm.__file__).parent
    users = [path for path in root.rglob("*.py") if "mxgemm.parallel" in path.read_text(encoding="utf-8")]
    assert all(path.parent.name == "parallel" for path in users), users


def test_layers_of_a_group_are_not_trained() -> None:
    layer = ColumnParallelMXLinear(32, 4, group=Ranks(0, 2))
    with pytest.raises(RuntimeError, match="x: requires grad"):
        layer(torch.zeros(2, 32, requires_grad=True))
    assert isinstance(layer, ParallelMXLinear)
    out: Tensor = layer(torch.zeros(2, 32))
    assert out.shape == (2, 2)
