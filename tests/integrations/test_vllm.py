"""MXFP4 checkpoints in vLLM on a CPU: what it computes is mxgemm, to the bit. `make test-vllm` runs this.

In fp32, where vLLM and transformers agree but for rounding, the whole model is judged. In bf16 the last bit of norms
and attention differs, and rounding activations to MXFP4 makes as much of that as of a wrong format: there layers are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm", reason="make test-vllm, which has an environment of its own")
pytest.importorskip("transformers", reason="pip install 'mxgemm[transformers]'")

from tests.integrations.served import A_FORMATS, PROMPTS, logprobs, make

ROOT = Path(__file__).resolve().parent.parent.parent
EAGER = (
    "llama-ct-w4a4:float32",
    "llama-ct-w4a16:float32",
    "qwen2-ct-w4a4:float32",
    "llama-quark-w4a4:bfloat16",
    "llama-quark-w4a16:bfloat16",
    "llama-quark-w4a8:bfloat16",
)
SPAWNED = ("llama-ct-w4a4:float32",)
NEAR = 1e-5
"""Of log-probabilities of the same arithmetic in another order: 4e-6 seen.

Where the last bit of a sum in fp32 turns the rounding of an activation, that token and those after it are off by some
1e-2. It happens to bf16's rounding once in some hundred tokens, so half of the tokens must be near, of four prompts.
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for flavour in sorted({run.partition(":")[0] for run in (*EAGER, *SPAWNED)}):
        make(folder, flavour)
    return folder


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=1800, check=False
    )


def serve(models: Path, how: str, runs: tuple[str, ...]) -> dict[str, dict]:
    out = models / f"{how}.pt"
    worker = str(Path(__file__).with_name("vllm_worker.py"))
    done = python(worker, str(out), how, *(f"{models}/{run}" for run in runs), VLLM_CACHE_ROOT=str(models / "cache"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return torch.load(out)


@pytest.fixture(scope="module")
def eager(models: Path) -> dict[str, dict]:
    return serve(models, "eager", EAGER)


@pytest.fixture(scope="module")
def spawned(models: Path) -> dict[str, dict]:
    return serve(models, "spawned", SPAWNED)


@pytest.mark.parametrize("run", EAGER)
def test_every_layer_is_mxgemm_on_the_bytes_of_the_file(eager: dict[str, dict], run: str) -> None:
    layers = eager[run]["layers"]
    assert len(layers) == 8 * 4  # qkv, o, gate and up, down of two layers; a prefill and three steps
    assert {shape[0] for _, shape, _ in layers} == {len(PROMPTS), sum(map(len, PROMPTS))}
    assert [name for name, _, equal in layers if not equal] == []


@pytest.mark.parametrize("run", [run for run in EAGER if run.endswith("float32")])
def test_the_model_is_that_of_transformers(models: Path, eager: dict[str, dict], run: str) -> None:
    judge(models, run, eager[run])


@pytest.mark.parametrize("run", SPAWNED)
def test_the_model_is_that_of_transformers_compiled_in_a_spawned_worker(
    models: Path, spawned: dict[str, dict], run: str
) -> None:
    judge(models, run, spawned[run])


def judge(models: Path, run: str, got: dict) -> None:
    folder = models / run.partition(":")[0]
    off = (logprobs(folder, got["texts"]) - got["logprobs"]).abs()
    near = (off.amax(1) < NEAR).float().mean()
    assert near >= 0.5, off.amax(1)
    right = A_FORMATS[folder.name.rpartition("-")[2]]
    for other in set(A_FORMATS.values()) - {right}:  # so the comparison tells formats of activations apart
        assert (logprobs(folder, got["texts"], other) - got["logprobs"]).abs().mean() > 10 * off.mean() + 0.01


CHOOSE = """
from vllm.model_executor.kernels.linear import init_mxfp4_linear_kernel
from mxgemm.integrations.vllm import register
from vllm.platforms import PlatformEnum, current_platform
try:
    init_mxfp4_linear_kernel()
except ValueError as error:
    print("REFUSED", error)
register()
register()
print("CHOSEN", type(init_mxfp4_linear_kernel()).__name__)
current_platform.__dict__["_enum"] = PlatformEnum.CUDA
print("ON CUDA", type(init_mxfp4_linear_kernel()).__name__)
"""


def test_the_kernel_is_chosen_on_a_cpu_and_on_a_gpu_where_the_others_are_disabled() -> None:
    from vllm.model_executor.kernels.linear import _POSSIBLE_MXFP4_KERNELS
    from vllm.platforms import PlatformEnum

    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    for platform in (PlatformEnum.CUDA, PlatformEnum.ROCM):
        names = [kernel.__name__ for kernel in _POSSIBLE_MXFP4_KERNELS[platform] if "MXGemm" not in kernel.__name__]
        assert f"VLLM_DISABLED_KERNELS={','.join(names)} " in page
    done = python("-c", CHOOSE, VLLM_PLUGINS="", VLLM_DISABLED_KERNELS=",".join(
        kernel.__name__ for kernel in _POSSIBLE_MXFP4_KERNELS[PlatformEnum.CUDA] if "MXGemm" not in kernel.__name__
    ))  # fmt: skip
    assert "REFUSED Failed to find a kernel" in done.stdout, done.stderr[-3000:]  # vLLM alone has none on a CPU
    assert "CHOSEN MXGemmMxFp4LinearKernel" in done.stdout
    assert "ON CUDA MXGemmMxFp4LinearKernel" in done.stdout
