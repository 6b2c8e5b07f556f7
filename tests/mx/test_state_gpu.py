"""Prepared weights on a GPU: made, changed, moved and loaded there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mxgemm
from mxgemm.mx.tensor import MXTensor
from tests.cases import make

pytestmark = pytest.mark.gpu
STALE = r"b: its bytes were changed after prepare\(\)"


@pytest.mark.parametrize("arch", [None, "sm_90", "gfx950"])
@pytest.mark.parametrize("memory", ["fast", "compact"])
@pytest.mark.parametrize("part", ["data", "scales"])
def test_a_write_on_the_device_is_noticed(part: str, memory: str, arch: str | None) -> None:
    case, other = make(16, 256, 512, device="cuda", octaves=3), make(16, 256, 512, device="cuda", octaves=3, seed=4)
    for update in ("default stream", "side stream", "inference mode"):
        p = case.weight.prepare(arch, memory=memory)  # type: ignore[arg-type]
        case.check(mxgemm.gemm(case.a, p))
        stream = torch.cuda.Stream() if update == "side stream" else torch.cuda.current_stream()
        saved = getattr(p, part).clone()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream), torch.inference_mode(update == "inference mode"):
            getattr(p, part).copy_(getattr(other.weight, part))
        torch.cuda.synchronize()
        assert p.prepared is not None
        if p.prepared.stamp is not None:
            with pytest.raises(RuntimeError, match=STALE):
                mxgemm.gemm(case.a, p)
        anew = p.to("cuda")
        want = mxgemm.gemm(case.a.cpu(), MXTensor(p.data.cpu(), p.scales.cpu(), p.format, p.shape))
        torch.testing.assert_close(
            mxgemm.gemm(case.a, anew).cpu(), want, rtol=2e-2, atol=1e-2 * float(want.abs().max())
        )
        getattr(p, part).copy_(saved)
        case.check(mxgemm.gemm(case.a, p.to("cuda")))


def test_parameters_that_a_module_moves_take_the_weight_along_and_the_prepared_form_is_refused() -> None:
    case = make(16, 256, 512, octaves=3)
    module = torch.nn.Module()
    module.data = torch.nn.Parameter(case.weight.data, requires_grad=False)
    module.scales = torch.nn.Parameter(case.weight.scales, requires_grad=False)
    w = MXTensor.wrap(module.data, module.scales)
    p = w.prepare("sm_90")
    module.to("cuda")  # assigns .data of the parameters
    assert w.device.type == "cuda"
    case.check(mxgemm.gemm(case.a.cuda(), w))
    with pytest.raises(RuntimeError, match=STALE):
        mxgemm.gemm(case.a.cuda(), p)
    case.check(mxgemm.gemm(case.a.cuda(), p.prepare()))


def test_to_and_load_reach_the_device(tmp_path: Path) -> None:
    case = make(16, 256, 512, octaves=3)
    for memory in ("fast", "compact"):
        p = case.weight.prepare(memory=memory)  # type: ignore[arg-type]
        for device in ("cuda", "cuda:0", torch.device("cuda", 0), 0):
            moved = p.to(device)
            assert moved.prepared is not None
            assert moved.prepared.arguments == (None, memory, True, "e2m1")
            assert moved.to(device) is moved
            case.check(mxgemm.gemm(case.a.cuda(), moved))
    torch.save(moved, tmp_path / "w.pt")
    for where in ("cuda", "cpu"):
        back = torch.load(tmp_path / "w.pt", weights_only=True, map_location=where)
        assert (back.device.type, back.prepared) == (where, None)
        case.check(mxgemm.gemm(case.a.to(where), back))
        case.check(mxgemm.gemm(case.a.to(where), back.prepare()))
