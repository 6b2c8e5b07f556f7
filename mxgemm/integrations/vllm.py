"""mxgemm as vLLM's kernel for MXFP4 linear layers: the entry point ``vllm.general_plugins``.

Installing mxgemm beside vLLM is all: vLLM calls :func:`register` in each of its processes, spawned workers included.
Checkpoints are vLLM's own matter (Quark's OCP MX, compressed-tensors' mxfp4-pack-quantized); their bytes are multiplied
as they are, with the activations that the checkpoint was made for.

vLLM's interior changes from release to release, so versions that were not tested are refused with a sentence, and
nothing that goes wrong here takes a server down: vLLM then goes on with the kernels that it has.
"""

from __future__ import annotations

import os
from typing import Final

from mxgemm.notices import say_once

TESTED: Final = ("0.32.0",)
"""Versions of vLLM that tests/integrations/test_vllm.py was run with, on a CPU."""


def register() -> None:
    """Offer the kernel to vLLM for CPU, CUDA and ROCm; called again it does nothing. Never raises.

    On a CPU it is the only one. On GPUs it stands behind vLLM's own kernels, and is taken where the variable
    ``VLLM_DISABLED_KERNELS`` names those (docs/serving.md has the lists).
    """
    try:
        reason = refusal()
        if not reason:
            from mxgemm.integrations import vllm_kernel

            vllm_kernel.offer()
    except Exception as error:  # whatever it is: a server without mxgemm is better than none
        reason = f"{type(error).__name__}: {error}"
    if reason:
        say_once(f"mxgemm is not used by vLLM, which goes on with its own kernels: {reason}")


def refusal() -> str:
    """Say why this vLLM is not served, or ""."""
    import vllm

    version = str(vllm.__version__).partition("+")[0]
    if version in TESTED or os.environ.get("MXGEMM_VLLM_UNTESTED") == "1":
        return ""
    return f"vLLM is {vllm.__version__}; tested with {', '.join(TESTED)} (MXGEMM_VLLM_UNTESTED=1 tries it)"
