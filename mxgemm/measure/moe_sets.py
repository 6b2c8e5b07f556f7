"""Layers of experts of public models, as data; Python's library alone, for the command line reads it without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TOKENS: Final = (1, 4, 16, 64, 256, 1024)


@dataclass(frozen=True, slots=True)
class ExpertsSet:
    """The experts of one layer.

    Attributes:
        name: as ``--set`` takes it.
        title: for people.
        source: where the sizes come from.
        experts: E.
        top_k: experts of a token.
        hidden: H.
        inner: I.
        gpt_oss: gate and up in turn, clamped, with biases; else ``silu(gate) * up`` without.
        tokens: how many at a time.
    """

    name: str
    title: str
    source: str
    experts: int
    top_k: int
    hidden: int
    inner: int
    gpt_oss: bool = False
    tokens: tuple[int, ...] = TOKENS

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert's MXFP4 weights with their scales."""
        return 3 * self.inner * self.hidden * 17 // 32


MOE_SETS: Final[dict[str, ExpertsSet]] = {
    chosen.name: chosen
    for chosen in (
        ExpertsSet(
            "moe-gpt-oss-20b", "gpt-oss-20b", "config.json of openai/gpt-oss-20b", 32, 4, 2880, 2880, gpt_oss=True
        ),
        ExpertsSet(
            "moe-gpt-oss-120b", "gpt-oss-120b", "config.json of openai/gpt-oss-120b", 128, 4, 2880, 2880, gpt_oss=True
        ),
        ExpertsSet(
            "moe-deepseek-v4-flash", "DeepSeek-V4-Flash", "config.json of deepseek-ai's V4-Flash", 256, 6, 4096, 2048
        ),
        ExpertsSet("moe-deepseek-v4-pro", "DeepSeek-V4-Pro", "config.json of deepseek-ai's V4-Pro", 384, 6, 7168, 3072),
        ExpertsSet("moe-deepseek-r1", "DeepSeek-R1", "config.json of deepseek-ai/DeepSeek-R1", 256, 8, 7168, 2048),
    )
}
"""The sets by name."""
