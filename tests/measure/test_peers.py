"""Whom the benchmark asks: who is here, what each takes, and its statement. No GPU needed."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from mxgemm import measure
from mxgemm.device import Machine
from mxgemm.measure.oracle import Oracle
from mxgemm.measure.peers import PEERS, base
from mxgemm.measure.peers.aiter import AiterA4W4
from mxgemm.measure.spread import Effort
from mxgemm.mx.tensor import MXTensor

CPU = torch.device("cpu")
QUICK = Effort(seconds=0.0, least=2, most=2)


class TestPeers:
    def test_absent_ones_say_why(self) -> None:
        reasons = {name: str(peer.absent(CPU)) for name, peer in PEERS.items()}
        assert reasons["torch_mm"] == reasons["torch_mm_fp32"] == "None"
        assert "needs a CPU" in str(PEERS["torch_mm_fp32"].absent(torch.device("cuda")))
        assert "needs one of sm_90" in reasons["scaled_mm_fp8"]
        assert reasons["aiter_a4w4"] == reasons["aiter_a16wfp4"] == "arch is cpu; needs gfx950"
        assert "needs a GPU" in reasons["triton_kernels"]
        assert "needs an NVIDIA GPU" in reasons["humming"]

    @pytest.mark.parametrize("name", ["aiter_a4w4", "aiter_a16wfp4", "triton_kernels", "humming"])
    def test_a_missing_package_is_named_with_how_to_get_it(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        peer = PEERS[name]
        monkeypatch.setattr(type(peer), "wrong_device", lambda self, device: None)
        monkeypatch.setattr(base.importlib.util, "find_spec", lambda module: None)
        assert str(peer.absent(CPU)) == f"{peer.module} is not installed: {peer.install}"

    def test_the_unrelated_aiter_is_told_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mxgemm.measure.peers.aiter.machine_of", lambda device: Machine("gfx950", 256, ""))
        monkeypatch.setattr(base.importlib.util, "find_spec", lambda module: object())
        monkeypatch.setitem(sys.modules, "aiter", types.ModuleType("aiter"))
        assert "has no gemm_a4w4: pip install amd-aiter" in str(AiterA4W4().absent(CPU))

    def test_an_aiter_that_does_not_import_is_absent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "aiter.py").write_text("raise OSError('libhip is missing')")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "aiter", raising=False)
        for name in ("aiter_a4w4", "aiter_a16wfp4"):
            monkeypatch.setattr(type(PEERS[name]), "wrong_device", lambda self, device: None)
            assert str(PEERS[name].absent(CPU)).endswith("cannot be imported (OSError: libhip is missing)")

    def test_sizes_that_give_wrong_results_are_refused(self) -> None:
        assert "K % 256" in str(PEERS["aiter_a4w4"].refuses(1, 32, 128))
        assert not PEERS["aiter_a4w4"].refuses(1, 2880, 512)
        assert "multiples of 16" in str(PEERS["scaled_mm_fp8"].refuses(1, 24, 128))

    def test_aiters_chain_is_called_with_its_layouts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stand-in for AITER that undoes the layouts; its numbers are those of the MX definition."""
        from mxgemm import gemm_mx, quantize
        from mxgemm.measure.peers import aiter
        from mxgemm.mx import layouts

        def gemm_a4w4(a, b, a_scales, b_scales, *, dtype, bpreshuffle):
            assert bpreshuffle
            k = a.shape[1] * 2
            left = MXTensor.wrap(a, layouts.unshuffle_scales(a_scales, a.shape[0], k // 32))
            right = MXTensor.wrap(
                layouts.unpreshuffle_weight(b), layouts.unshuffle_scales(b_scales, b.shape[0], k // 32)
            )
            return gemm_mx(left, right, out_dtype=dtype, route="reference")

        def quantiser(x):
            q = quantize(x)
            return q.data, q.scales

        dtypes = types.SimpleNamespace(fp4x2=torch.uint8, fp8_e8m0=torch.uint8)
        monkeypatch.setattr(aiter, "_a4w4_chain", lambda: (quantiser, layouts.shuffle_scales, gemm_a4w4, dtypes))
        peer = AiterA4W4()
        a, weight = measure.inputs(5, 64, 256, CPU)
        oracle = Oracle(a, weight)
        loaded = peer.load(weight)
        out = peer.call(peer.activations(a), loaded)
        assert oracle.judge(out, peer.exact(oracle, a, loaded), 24).passed

    def test_the_fp8_peer_is_judged_by_its_own_operands(self) -> None:
        peer = PEERS["scaled_mm_fp8"]
        a, weight = measure.inputs(6, 32, 64, CPU)
        oracle, left, right = Oracle(a, weight), peer.activations(a), peer.load(weight)
        exact = peer.exact(oracle, left, right)
        out = torch.from_numpy(exact.left @ exact.right.T).to(torch.bfloat16)
        assert oracle.judge(out, exact, 13).passed
        # e4m3 keeps three bits of fraction: near the activations, and not equal to them
        error = np.abs(exact.left - a.double().numpy()).max() / a.abs().max().item()
        assert 0 < error < 2**-4
        assert not oracle.judge(out, oracle.exact("e2m1"), 13).passed
