"""AITER's two MXFP4 products: the leaderboard's reference chain, and the one Triton launch that quantises A inside."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mxgemm.device import machine_of
from mxgemm.errors import Refusal
from mxgemm.measure.peers.base import Peer
from mxgemm.mx.layouts import preshuffle_refusal, preshuffle_weight, shuffle_scales
from mxgemm.mx.tensor import MXTensor


class _Aiter(Peer):
    distribution = "amd-aiter"
    module = "aiter"
    install = "pip install amd-aiter (PyPI's aiter is something else)"
    a_format = "e2m1"

    def wrong_device(self, device: torch.device) -> Refusal | None:
        """Only gfx950 multiplies MXFP4."""
        arch = machine_of(device).arch
        return None if arch == "gfx950" else Refusal("arch", arch, "gfx950", "machine")

    def absent(self, device: torch.device) -> Refusal | None:
        """Tell PyPI's unrelated aiter apart, and an installation that does not import."""
        missing = super().absent(device)
        if missing:
            return missing
        try:
            found = importlib.import_module(self.module)
        except Exception as error:  # it loads libraries and compiles: anything may go wrong, and is the reason
            words = f"{self.module} is installed and cannot be imported ({type(error).__name__}: {error})"
            return Refusal(self.module, "cannot be imported", self.install, "installation", words)
        if hasattr(found, "gemm_a4w4"):
            return None
        words = f"the installed aiter has no gemm_a4w4: {self.install}"
        return Refusal(self.module, "without gemm_a4w4", self.install, "installation", words)


class AiterA4W4(_Aiter):
    """``dynamic_mxfp4_quant``, ``e8m0_shuffle``, ``gemm_a4w4``."""

    name = "aiter_a4w4"
    statement = (
        "AITER's Triton quantiser, scale shuffle and tuned a4w4 GEMM, as the leaderboard's reference calls them;"
        " weight shuffled beforehand"
    )

    def refuses(self, m: int, n: int, k: int) -> Refusal | None:
        """Sizes that its kernels take; a K that is no multiple of 256 is not checked there and gives wrong results."""
        if k % 256 or n % 32:
            return Refusal("(N, K)", (n, k), "N % 32 == 0 and K % 256 == 0")
        return preshuffle_refusal(n, k // 2)

    def load(self, weight: MXTensor) -> Any:
        """Shuffle bytes and scales as AITER's kernels read them."""
        return preshuffle_weight(weight.data), shuffle_scales(weight.scales)

    def call(self, a: Any, loaded: Any) -> Tensor:
        """Quantise, shuffle, multiply."""
        quantize, shuffle, multiply, dtypes = _a4w4_chain()
        data, scales = quantize(a)
        out: Tensor = multiply(
            data.view(dtypes.fp4x2),
            loaded[0].view(dtypes.fp4x2),
            shuffle(scales).view(dtypes.fp8_e8m0),
            loaded[1].view(dtypes.fp8_e8m0),
            dtype=torch.bfloat16,
            bpreshuffle=True,
        )
        return out


class AiterA16WFP4(_Aiter):
    """``gemm_a16wfp4``."""

    name = "aiter_a16wfp4"
    statement = "AITER's Triton gemm_a16wfp4: activations quantised to MXFP4 inside, weight row-major"

    def load(self, weight: MXTensor) -> Any:
        """Take the bytes as they are."""
        return weight.data, weight.scales

    def call(self, a: Any, loaded: Any) -> Tensor:
        """Multiply."""
        out: Tensor = _a16wfp4()(a, loaded[0], loaded[1], atomic_add=False, dtype=torch.bfloat16)
        return out


@cache
def _a4w4_chain() -> tuple[Any, Any, Any, Any]:
    aiter = importlib.import_module("aiter")
    quantize = importlib.import_module("aiter.ops.triton.quant").dynamic_mxfp4_quant
    return quantize, importlib.import_module("aiter.utility.fp4_utils").e8m0_shuffle, aiter.gemm_a4w4, aiter.dtypes


@cache
def _a16wfp4() -> Any:
    try:  # the module moved between releases
        module = importlib.import_module("aiter.ops.triton.gemm.basic.gemm_a16wfp4")
    except ModuleNotFoundError:
        module = importlib.import_module("aiter.ops.triton.gemm_a16wfp4")
    return module.gemm_a16wfp4
