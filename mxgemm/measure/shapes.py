"""Named sets of GEMM sizes, as data: which weights, how many rows of A, and where the sizes come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

Shape = tuple[int, int, int]
"""(M, N, K)."""

LEADERBOARD: Final[tuple[Shape, ...]] = (
    (4, 2880, 512),
    (16, 2112, 7168),
    (32, 4096, 512),
    (32, 2880, 512),
    (64, 7168, 2048),
    (256, 3072, 1536),
)
"""(M, N, K) of the GPU MODE leaderboard amd-mxfp4-mm."""

DECODE_AND_PREFILL: Final = (1, 16, 64, 256, 1024, 4096)


@dataclass(frozen=True, slots=True)
class Weight:
    """One linear layer of a model.

    Attributes:
        layer: its name in the model, layers that share an input fused as serving systems do.
        n: output features.
        k: input features.
    """

    layer: str
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class ShapeSet:
    """Sizes that belong together.

    Attributes:
        name: as ``--set`` takes it.
        title: for people.
        source: where the sizes come from.
        shapes: (M, N, K) triples, in the order in which they are measured.
        layers: what (N, K) is in the model, where it is one.
    """

    name: str
    title: str
    source: str
    shapes: tuple[Shape, ...]
    layers: tuple[Weight, ...] = ()


def of_model(
    name: str, title: str, source: str, layers: tuple[Weight, ...], ms: tuple[int, ...] = DECODE_AND_PREFILL
) -> ShapeSet:
    """Make the set of every layer of a model at every M."""
    return ShapeSet(name, title, source, tuple((m, layer.n, layer.k) for layer in layers for m in ms), layers)


SETS: Final[dict[str, ShapeSet]] = {
    chosen.name: chosen
    for chosen in (
        ShapeSet(
            "leaderboard",
            "GPU MODE amd-mxfp4-mm",
            "github.com/gpu-mode/reference-kernels, problems/amd_202602/mxfp4-mm/task.yml, the benchmark shapes",
            LEADERBOARD,
        ),
        of_model(
            "deepseek-r1",
            "DeepSeek-R1",
            "config.json of deepseek-ai/DeepSeek-R1: hidden 7168, q_lora_rank 1536, kv_lora_rank 512, 128 heads of"
            " 128 + 64 and 128, intermediate 18432, a shared expert of 2048",
            (
                Weight("q_a_proj + kv_a_proj", 2112, 7168),
                Weight("q_b_proj", 24576, 1536),
                Weight("kv_b_proj", 32768, 512),
                Weight("o_proj", 7168, 16384),
                Weight("dense gate_proj + up_proj", 36864, 7168),
                Weight("dense down_proj", 7168, 18432),
                Weight("shared expert gate_proj + up_proj", 4096, 7168),
                Weight("shared expert down_proj", 7168, 2048),
            ),
        ),
        of_model(
            "gpt-oss",
            "gpt-oss-120b",
            "config.json of openai/gpt-oss-120b: hidden 2880, 64 heads and 8 key-value heads of 64, intermediate 2880;"
            " the experts as dense layers",
            (
                Weight("qkv_proj", 5120, 2880),
                Weight("o_proj", 2880, 4096),
                Weight("expert gate_up_proj", 5760, 2880),
                Weight("expert down_proj", 2880, 2880),
            ),
        ),
        of_model(
            "llama-70b",
            "Llama-3.1-70B",
            "config.json of meta-llama/Llama-3.1-70B: hidden 8192, 64 heads and 8 key-value heads of 128,"
            " intermediate 28672",
            (
                Weight("qkv_proj", 10240, 8192),
                Weight("o_proj", 8192, 8192),
                Weight("gate_proj + up_proj", 57344, 8192),
                Weight("down_proj", 8192, 28672),
            ),
        ),
    )
}
"""The sets by name."""


def shape_set(name: str) -> ShapeSet:
    """Look a set up.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in SETS:
        raise ValueError(f"set: got {name!r}, want one of {', '.join(SETS)}")
    return SETS[name]


def select(sets: Iterable[str], shapes: Iterable[str]) -> list[Shape]:
    """Return the sizes of named sets and of ``M,N,K`` texts, each once; the leaderboard's where nothing is named.

    Raises:
        ValueError: an unknown set, or a text that is no size.
    """
    wanted = [parse_shape(text) for text in shapes]
    wanted += [shape for name in sets for shape in shape_set(name).shapes]
    return list(dict.fromkeys(wanted)) or list(LEADERBOARD)


def parse_shape(text: str) -> Shape:
    """Read ``M,N,K`` (or ``MxNxK``).

    Raises:
        ValueError: not three numbers, or sizes that no GEMM here has.
    """
    try:
        m, n, k = (int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise ValueError(f"--shape: got {text!r}, want M,N,K such as 16,2112,7168") from None
    if m < 1 or n < 1 or k < 32 or k % 32:
        raise ValueError(f"--shape: got {text!r}, want M and N of at least 1 and K a positive multiple of 32")
    return m, n, k
