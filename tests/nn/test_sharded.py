"""MXLinear under FSDP2 (``fully_shard``), over gloo on the CPU."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

from mxgemm.nn import MXLinear

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_one_process() -> None:
    check(1)


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(process, (2, str(tmp_path / "meet")), nprocs=2)


def process(rank: int, count: int, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=count)
    check(count)
    dist.destroy_process_group()


def check(count: int) -> None:
    """Forward, gradients, a full state to the byte, loading one, and what is refused: against the same unsharded."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.manual_seed(0)
    whole = nn.Sequential(
        nn.Linear(32, 64),
        MXLinear.from_linear(nn.Linear(64, 33)),  # N = 33: shards of different sizes
        nn.Linear(33, 32),
        MXLinear.from_linear(nn.Linear(32, 16, bias=False), a_format="e2m1"),
    )
    sharded = copy.deepcopy(whole)
    mesh = init_device_mesh("cpu", (count,))
    fully_shard(sharded[1], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    assert isinstance(sharded[1].weight, DTensor)
    x = torch.randn(4, 32)
    out, want = sharded(x), whole(x)
    assert torch.equal(out, want)
    out.square().sum().backward()
    want.square().sum().backward()
    for (name, got), parameter in zip(sharded.named_parameters(), whole.parameters(), strict=True):
        if parameter.grad is not None:
            assert torch.allclose(got.grad.full_tensor(), parameter.grad, rtol=1e-5), name
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(sharded, options=options)
    assert all(torch.equal(state[name].full_tensor() if isinstance(state[name], DTensor) else state[name], value)
               for name, value in whole.state_dict().items() if name in state)  # fmt: skip
    other = {name: value ^ 1 if name.endswith("weight") and value.dtype == torch.uint8 else value.clone()
             for name, value in whole.state_dict().items()}  # fmt: skip
    whole.load_state_dict(other)
    set_model_state_dict(sharded, other, options=options)
    assert torch.equal(sharded(x), whole(x))
    with pytest.raises(ValueError, match="prepare: got a weight that is a DTensor"):
        sharded[1].prepare()
