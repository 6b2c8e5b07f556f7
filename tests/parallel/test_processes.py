"""Tensor parallelism in two processes over gloo: the checks are in together.py."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
]
pytest.importorskip("transformers", reason="pip install 'mxgemm[transformers]'")
pytest.importorskip("safetensors", reason="pip install 'mxgemm[checkpoints]'")

from tests.integrations.served import make  # noqa: E402
from tests.parallel import together  # noqa: E402

COUNT = 2


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str]]]:
    folder = tmp_path_factory.mktemp("parallel")
    for flavour in ("llama-quark-w4a8", "qwen2-ct-w4a4"):
        make(folder, flavour)
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    given = (COUNT, str(folder / "meet"), str(folder), results)
    torch.multiprocessing.spawn(together.process, given, nprocs=COUNT)
    found: dict[str, list[tuple[int, str]]] = {}
    while not results.empty():
        name, rank, error = results.get()
        found.setdefault(name, []).append((rank, error))
    return found


@pytest.mark.parametrize("name", [check.__name__ for check in together.CHECKS])
def test_two_processes(answers: dict[str, list[tuple[int, str]]], name: str) -> None:
    said = answers[name]
    assert sorted(rank for rank, _ in said) == list(range(COUNT))
    errors = "\n".join(f"rank {rank}: {error}" for rank, error in said if error)
    assert not errors, errors
