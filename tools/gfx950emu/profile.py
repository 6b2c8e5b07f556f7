"""Sort executed instructions into classes."""

from __future__ import annotations

from collections.abc import Mapping


def class_of(mnemonic: str) -> str:
    """Name the unit that issues an instruction."""
    if mnemonic.startswith("v_mfma_scale"):
        return "mfma_scaled"
    if mnemonic.startswith("v_mfma"):
        return "mfma"
    if mnemonic.startswith("v_cvt"):
        return "convert"
    if mnemonic.startswith("v_"):
        return "valu"
    if mnemonic.startswith("ds_"):
        return "lds"
    if mnemonic.startswith(("s_load", "s_buffer_load")):
        return "smem"
    if mnemonic.startswith(("buffer_inv", "buffer_wb")):
        return "cache"
    if mnemonic.startswith(("global_", "buffer_", "flat_", "scratch_")):
        return next((kind for kind in ("store", "atomic") if kind in mnemonic), "load")
    if mnemonic.startswith("s_waitcnt"):
        return "wait"
    if mnemonic.startswith("s_nop"):
        return "nop"
    if mnemonic.startswith(("s_cbranch", "s_branch", "s_setpc", "s_endpgm", "s_barrier")):
        return "branch"
    return "salu"


def by_class(counts: Mapping[str, int]) -> dict[str, int]:
    """Sum executions of mnemonics by class."""
    found: dict[str, int] = {}
    for mnemonic, count in counts.items():
        kind = class_of(mnemonic)
        found[kind] = found.get(kind, 0) + count
    return dict(sorted(found.items()))
