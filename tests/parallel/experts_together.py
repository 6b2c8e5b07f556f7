"""Experts in two processes must give what one process gives; each function here runs in both (test_processes.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mxgemm.nn import MXExperts
from mxgemm.parallel import ExpertParallelMXExperts, parallelize_
from tests.experts.cases import CPU_ROUTES, DEEPSEEK, GPT_OSS, layer


def experts_are_those_of_one_process(folder: Path) -> None:
    rank = dist.get_rank()
    for a_format in ("e2m1", "e4m3", "bf16"):
        for activation, bias in ((GPT_OSS, True), (DEEPSEEK, False)):
            one = layer(11, 3, experts=6, activation=activation, bias=bias)
            one.ids[2] = -1
            one.ids[4, 1], one.ids[5, 0] = 6, 0
            whole = MXExperts(one.w13, one.w2, activation=activation, b13=one.b13, b2=one.b2, a_format=a_format)
            want = whole(one.x, one.ids, one.weights)
            shared = ExpertParallelMXExperts.from_experts(whole)
            assert shared.count == 3
            assert shared.first_expert == 3 * rank
            for part in ((slice(0, 7), slice(7, 11)), (slice(0, 0), slice(0, 11))):  # one process may have no tokens
                mine = part[rank]
                got = shared(one.x[mine], one.ids[mine], one.weights[mine])
                assert got.shape == want[mine].shape
                if CPU_ROUTES[0] == "cpu_native":
                    assert torch.equal(got, want[mine]), (a_format, activation)
                else:
                    torch.testing.assert_close(got, want[mine], rtol=2e-2, atol=2e-2)
            far = torch.full_like(one.ids, 5 if rank else 4)  # all to one rank, none to the other
            assert torch.equal(shared(one.x, far, one.weights), whole(one.x, far, one.weights))


def wrong_tokens_are_refused_before_anything_is_sent(folder: Path) -> None:
    """In one process alone, so that whatever was sent would wait for ever."""
    if dist.get_rank():
        return
    one = layer(4, 2, experts=6)
    whole = MXExperts(one.w13, one.w2, activation=GPT_OSS)
    shared = ExpertParallelMXExperts.from_experts(whole)
    with pytest.raises(ValueError, match="x: got K = 64"):
        shared(one.x[:, :64], one.ids, one.weights)
    with pytest.raises(RuntimeError, match="x: requires grad"):
        shared(one.x.float().requires_grad_(), one.ids, one.weights)
    odd = layer(4, 2, experts=5)
    with pytest.raises(ValueError, match="layer: got 5, want a multiple of 2 for 2 ranks"):
        ExpertParallelMXExperts.from_experts(MXExperts(odd.w13, odd.w2, activation=GPT_OSS))


def a_plan_shares_out_the_experts_of_a_model(folder: Path) -> None:
    rank = dist.get_rank()
    one = layer(11, 3, experts=6)
    whole = MXExperts(one.w13, one.w2, activation=GPT_OSS, b13=one.b13, b2=one.b2, a_format="e2m1")
    want = whole(one.x, one.ids, one.weights)
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"mlp": nn.ModuleDict({"experts": whole})})])})
    plan = {
        "layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
        "layers.*.mlp.experts.gate_up_proj_bias": "grouped_gemm",
        "layers.*.mlp.experts": "ep_dispatch_experts",
    }  # as transformers says it of gpt-oss
    parallelize_(model, plan)
    shared = model.get_submodule("layers.0.mlp.experts")
    assert isinstance(shared, ExpertParallelMXExperts)
    mine = slice(0, 7) if rank == 0 else slice(7, 11)
    torch.testing.assert_close(shared(one.x[mine], one.ids[mine], one.weights[mine]), want[mine], rtol=2e-2, atol=2e-2)


CHECKS = (
    experts_are_those_of_one_process,
    a_plan_shares_out_the_experts_of_a_model,
    wrong_tokens_are_refused_before_anything_is_sent,
)
