"""What two processes compute must be what one does; each function here runs in both at once (test_processes.py)."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import mxgemm
from mxgemm.mx.accuracy import judge
from mxgemm.nn import MXLinear
from mxgemm.parallel import ColumnParallelMXLinear, RowParallelMXLinear, gather_quantized, load_into, parallelize_
from tests.cases import spread
from tests.parallel import experts_together

SIZES = ((33, 66, 192), (1, 2, 64), (5, 130, 2880), (0, 32, 64))
FORMATS = ("e2m1", "e4m3", "bf16")


def same_everywhere(value: Tensor) -> None:
    """Check that all processes have the same bytes."""
    own = value.contiguous().view(-1).view(torch.uint8)
    theirs = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, own)
    assert all(torch.equal(part, own) for part in theirs)


def right(out: Tensor, x: Tensor, weight: mxgemm.MXTensor, bias: Tensor | None, a_format: str) -> bool:
    return not out.numel() or judge(out, x, weight, a_format=a_format, bias=bias).passed


def drawn(m: int, n: int, k: int, seed: int) -> tuple[Tensor, mxgemm.MXTensor, Tensor]:
    """Operands, the same in every process."""
    x = spread(m, k, torch.bfloat16, seed=seed)
    bias = torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    return x, mxgemm.quantize(spread(n, k, seed=seed + 1)), bias


def mine(x: Tensor, dim: int) -> Tensor:
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def layers_are_those_of_one_process(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for seed, (m, n, k) in enumerate(SIZES):
        for a_format in FORMATS:
            x, weight, bias = drawn(m, n, k, seed)
            how: dict[str, Any] = {"a_format": a_format, "group": mesh}
            column = ColumnParallelMXLinear.from_mx(weight, bias, **how, output="whole")
            out = column(x)
            assert right(out, x, weight, bias, a_format), (m, n, k, a_format)
            same_everywhere(out)
            split = ColumnParallelMXLinear.from_mx(weight, bias, **how)(x)
            assert torch.equal(split, mine(out, -1))
            row = RowParallelMXLinear.from_mx(weight, bias, **how)
            out = row(mine(x, -1))
            assert right(out, x, weight, bias, a_format), (m, n, k, a_format)
            same_everywhere(out)
            assert torch.equal(RowParallelMXLinear.from_mx(weight, bias, **how, input="whole")(x), out)
            assert right(RowParallelMXLinear.from_mx(weight, None, **how)(mine(x, -1)), x, weight, None, a_format)


def rows_are_gathered_as_bytes(folder: Path) -> None:
    for seed, a_format in enumerate(FORMATS):
        x, weight, bias = drawn(34, 66, 192, seed)
        if a_format != "bf16":
            whole = mxgemm.quantize(x, format=a_format)
            gathered = gather_quantized(mine(x, 0), format=a_format)
            assert torch.equal(gathered.data, whole.data)
            assert torch.equal(gathered.scales, whole.scales)
        column = ColumnParallelMXLinear.from_mx(weight, bias, a_format=a_format, input="rows", output="whole")
        out = column(mine(x, 0))
        assert right(out, x, weight, bias, a_format)
        row = RowParallelMXLinear.from_mx(weight, bias, a_format=a_format)
        rows = RowParallelMXLinear.from_mx(weight, bias, a_format=a_format, output="rows")
        assert torch.equal(rows(mine(x, -1)), mine(row(mine(x, -1)), 0))


def nan_is_nan_everywhere(folder: Path) -> None:
    x, weight, bias = drawn(4, 32, 128, 3)
    x[1, 5] = torch.nan
    out = RowParallelMXLinear.from_mx(weight, bias)(mine(x, -1))
    assert out[1].isnan().all()
    assert not out[[0, 2, 3]].isnan().any()


class Model(nn.Module):
    """Two layers that belong together, and one that stays whole."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64, bias=False))
        self.head = nn.Linear(64, 34)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.mlp(x))


PLAN = {"mlp.0": "colwise", "mlp.2": "rowwise", "head": "colwise_gather_output"}


def a_model_is_split_in_place(folder: Path) -> None:
    torch.manual_seed(0)
    whole = Model().bfloat16().requires_grad_(False)
    mxgemm.quantize_(whole, mxgemm.MXConfig("e4m3", prepare="fast"), filter_fn=lambda layer, name: True)
    split = copy.deepcopy(whole)
    parallelize_(split, PLAN)
    assert [type(layer).__name__ for layer in split.modules() if isinstance(layer, MXLinear)] == [
        "ColumnParallelMXLinear", "RowParallelMXLinear", "ColumnParallelMXLinear"
    ]  # fmt: skip
    x = torch.randn(7, 64, dtype=torch.bfloat16)
    out, want = split(x), whole(x)
    torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)
    same_everywhere(out)
    other = copy.deepcopy(split)
    assert torch.equal(other(x), out)
    other.load_state_dict(split.state_dict())
    assert torch.equal(other(x), out)
    with pytest.raises(TypeError, match=r"save its state_dict\(\)"):
        pickle.dumps(split)


def a_checkpoint_is_read_in_slices(folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    for flavour in ("llama-quark-w4a8", "qwen2-ct-w4a4"):
        models = []
        for load in (mxgemm.checkpoints.load_into, lambda *given: load_into(*given, plan)):  # noqa: B023
            config = AutoConfig.from_pretrained(folder / flavour)
            plan = config.base_model_tp_plan
            del config.quantization_config
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            real = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            model.model.rotary_emb = real.model.rotary_emb  # its buffers are in no file
            load(model, mxgemm.checkpoints.open(folder / flavour))
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    parameter.data = parameter.data.float()
            models.append(model.eval())
        whole, split = models
        ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
        with torch.no_grad():
            out, want = split(ids).logits, whole(ids).logits
        same_everywhere(out)
        assert float((out.log_softmax(-1) - want.log_softmax(-1)).abs().max()) < 1e-4, flavour
        layer = split.model.layers[1].mlp.down_proj
        assert tuple(layer.weight.shape) == (256, 256 // dist.get_world_size())


def compiled_and_eager_agree(folder: Path) -> None:
    torch.manual_seed(1)
    model = Model().bfloat16().requires_grad_(False)
    mxgemm.quantize_(model, mxgemm.MXConfig("e2m1"), filter_fn=lambda layer, name: True)
    parallelize_(model, PLAN)
    x = torch.randn(9, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), model(x))


def wrong_calls_are_refused_before_anything_is_sent(folder: Path) -> None:
    """In one process alone, so that whatever was sent would wait for ever."""
    if dist.get_rank():
        return
    x, weight, bias = drawn(3, 32, 64, 0)
    with pytest.raises(ValueError, match=r"x: got shape \(3, 64\), want \[\.\.\., 32\]"):
        RowParallelMXLinear.from_mx(weight, bias)(x)
    with pytest.raises(RuntimeError, match="x: requires grad"):
        RowParallelMXLinear.from_mx(weight, bias)(x[:, :32].requires_grad_())
    with pytest.raises(ValueError, match="x: got 3, want a multiple of 2 for 2 ranks"):
        RowParallelMXLinear.from_mx(weight, bias, output="rows")(x[:, :32].detach())
    with pytest.raises(ValueError, match=r"x: got shape \(1, 3, 64\), want \[M, 64\]"):
        ColumnParallelMXLinear.from_mx(weight, bias, input="rows")(x.detach()[None])
    with pytest.raises(TypeError, match="x: got "):
        ColumnParallelMXLinear.from_mx(weight, bias)(x.detach().long())


def dtensors_follow_the_rules(folder: Path) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x, weight, bias = drawn(6, 34, 128, 5)

    def put(tensor: Tensor, dim: int | None) -> Any:
        return distribute_tensor(tensor, mesh, [Replicate() if dim is None else Shard(dim)])

    def call(xd: int | None, wd: int | None, b: Tensor | None = None, **named: Any) -> Any:
        data, scales = put(weight.data, wd), put(weight.scales, wd)
        return torch.ops.mxgemm.gemm(put(x, xd), data, scales, None if b is None else put(b, wd), **named)

    want = mxgemm.gemm(x, weight, bias=bias)
    for xd, wd, placed in ((None, None, Replicate()), (0, None, Shard(0)), (None, 0, Shard(1))):
        out = call(xd, wd, bias)
        assert out.placements == (placed,), (xd, wd, out.placements)
        assert right(out.full_tensor(), x, weight, bias, "e2m1")
    out = call(1, 1, out_dtype=torch.float32)
    assert isinstance(out.placements[0], Partial)
    assert right(out.full_tensor(), x, weight, None, "e2m1")
    out = call(1, 1)  # the same tensors: a sum in bf16 is not offered
    assert not isinstance(out.placements[0], Partial)
    assert right(out.full_tensor(), x, weight, None, "e2m1")
    out = call(1, 1, out_dtype=torch.float32)
    assert isinstance(out.placements[0], Partial)

    odd, narrow = drawn(6, 34, 96, 6)[:2]  # three blocks: torch would cut the middle one
    out = torch.ops.mxgemm.gemm(
        put(odd, 1), put(narrow.data, 1), put(narrow.scales, 1), out_dtype=torch.float32
    ).full_tensor()
    assert right(out, odd, narrow, None, "e2m1")

    other = mxgemm.quantize(spread(32, 128, seed=8))
    assert right(torch.ops.mxgemm.gemm(put(x, None), put(other.data, 0), put(other.scales, 0)).full_tensor(), x, other,
                 None, "e2m1")  # fmt: skip
    shuffled = other.prepare("gfx950").operand()  # the same shapes in another order: not to be split
    out = torch.ops.mxgemm.gemm(
        put(x, None), put(shuffled[0], 0), put(shuffled[1], None), None, weight_layout="preshuffled",
        scale_layout="shuffled",
    )  # fmt: skip
    assert right(out.full_tensor(), x, other, None, "e2m1")

    layer = MXLinear.from_mx(weight, bias, a_format="e4m3")
    for name in ("weight", "weight_scale", "bias"):
        value = getattr(layer, name)
        setattr(layer, name, nn.Parameter(put(value.detach(), 0), requires_grad=name == "bias"))
    given = put(x.float(), None).requires_grad_()
    out = layer(given)
    assert out.placements == (Shard(1),)
    out.sum().backward()
    alone = MXLinear.from_mx(weight, bias, a_format="e4m3")
    single = x.float().requires_grad_()
    alone(single).sum().backward()
    torch.testing.assert_close(given.grad.full_tensor(), single.grad, rtol=1e-4, atol=1e-4)

    data, scales = torch.ops.mxgemm.quantize(put(x, 1))
    assert data.placements == scales.placements == (Shard(1),)
    assert torch.equal(data.full_tensor(), mxgemm.quantize(x).data)
    assert torch.equal(scales.full_tensor(), mxgemm.quantize(x).scales)
    data, scales = torch.ops.mxgemm.quantize(put(odd, 1))
    assert torch.equal(data.full_tensor(), mxgemm.quantize(odd).data)
    values = torch.ops.mxgemm.dequantize(put(weight.data, 0), put(weight.scales, 0))
    assert values.placements == (Shard(0),)
    assert torch.equal(values.full_tensor(), weight.dequantize())
    del want


CHECKS = (
    *experts_together.CHECKS,
    layers_are_those_of_one_process,
    rows_are_gathered_as_bytes,
    nan_is_nan_everywhere,
    a_model_is_split_in_place,
    a_checkpoint_is_read_in_slices,
    compiled_and_eager_agree,
    wrong_calls_are_refused_before_anything_is_sent,
    dtensors_follow_the_rules,
)


def process(rank: int, count: int, meet: str, folder: str, results: Any) -> None:
    """Run every check in one of the processes; both go on after a failure, unless one waits for the other."""
    import traceback
    from datetime import timedelta

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meet}", rank=rank, world_size=count, timeout=timedelta(seconds=120)
    )
    for check in CHECKS:
        try:
            check(Path(folder))
            results.put((check.__name__, rank, ""))
        except BaseException:
            results.put((check.__name__, rank, traceback.format_exc()))
        dist.barrier()
    dist.destroy_process_group()
