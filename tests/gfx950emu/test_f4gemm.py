"""AITER's own f4gemm kernels, where their code objects are to be had, in both modes against float64."""

import pytest

from tests.emulator import require_objdump
from tests.gfx950emu import f4gemm

TILES = f4gemm.tiles()
REASON = "no f4gemm code objects: MXGEMM_AITER_CO names no folder that has them, and no amd-aiter is installed"
BF16_ROUNDING = 0.0045


@pytest.mark.skipif(not TILES, reason=REASON)
@pytest.mark.parametrize("tile", TILES or [None], ids=lambda tile: tile.name if tile else "none")
@pytest.mark.parametrize("strict", [False, True], ids=["normal", "strict"])
def test_product(tile: f4gemm.Tile, strict: bool) -> None:
    require_objdump()
    whole = not tile.preshuffled or (tile.rows, tile.columns) in f4gemm.WHOLE_TILES_ONLY
    n = 2 * tile.columns if whole else tile.columns + 32
    error, _ = f4gemm.run(tile, tile.rows + 5, n, 768, strict=strict)
    assert error < BF16_ROUNDING
