import pytest
import torch

from mxgemm.mx import layouts


def distinct(rows: int, columns: int) -> torch.Tensor:
    return (torch.arange(rows * columns) * 37 % 251).to(torch.uint8).view(rows, columns)


@pytest.mark.parametrize("n, columns", [(16, 32), (48, 96), (2112, 64), (2880, 1440)])
def test_preshuffle_round_trip_and_index(n: int, columns: int) -> None:
    w = distinct(n, columns)
    shuffled = layouts.preshuffle_weight(w)
    assert torch.equal(layouts.unpreshuffle_weight(shuffled), w)
    flat = shuffled.flatten()
    for row, column in [(0, 0), (1, 0), (15, 31), (n - 1, columns - 1), (n // 2, columns // 2)]:
        tile = (row // 16) * (columns // 32) + column // 32
        index = tile * 512 + (column % 32 // 16) * 256 + (row % 16) * 16 + column % 16
        assert flat[index] == w[row, column]


@pytest.mark.parametrize(
    "rows, columns", [(1, 1), (32, 8), (33, 3), (2112, 224), (2880, 90), (96, 16), (256, 8), (0, 0)]
)
def test_scale_shuffle_round_trip_index_and_padding(rows: int, columns: int) -> None:
    s = distinct(rows, columns)
    shuffled = layouts.shuffle_scales(s)
    assert shuffled.shape == layouts.padded_scale_shape(rows, columns * 32)
    assert torch.equal(layouts.unshuffle_scales(shuffled, rows, columns), s)
    stride = shuffled.shape[1] * 32
    flat, seen = shuffled.flatten(), torch.zeros(shuffled.numel(), dtype=torch.bool)
    for r in range(min(rows, 70)):
        for c in range(columns):
            index = (
                (r // 32) * stride + (c // 8) * 256 + (c % 4) * 64 + (r % 16) * 4 + ((c % 8) // 4) * 2 + (r % 32) // 16
            )
            assert flat[index] == s[r, c]
            seen[index] = True
    if rows <= 70:
        assert not flat[~seen].any()  # padding is zero


def test_both_layouts_of_a_known_tile() -> None:
    s = layouts.shuffle_scales(torch.arange(256).to(torch.uint8).view(32, 8))
    assert s.flatten()[:8].tolist() == [0, 128, 4, 132, 8, 136, 12, 140]  # rows 0, 16 of columns 0, 4, then row 1


@pytest.mark.parametrize(
    "rows, columns", [(1, 1), (32, 4), (33, 3), (128, 4), (129, 5), (2112, 224), (2880, 90), (256, 8), (0, 0)]
)
def test_scale_swizzle_round_trip_index_and_padding(rows: int, columns: int) -> None:
    s = distinct(rows, columns)
    swizzled = layouts.swizzle_scales(s)
    assert swizzled.shape == layouts.swizzled_scale_shape(rows, columns * 32)
    assert torch.equal(layouts.unswizzle_scales(swizzled, rows, columns), s)
    flat, seen = swizzled.flatten(), torch.zeros(swizzled.numel(), dtype=torch.bool)
    tiles = -(-columns // 4)
    for r in range(min(rows, 140)):
        for c in range(columns):
            index = ((r // 128) * tiles + c // 4) * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + c % 4
            assert flat[index] == s[r, c]
            seen[index] = True
    if rows <= 140:
        assert not flat[~seen].any()  # padding is zero


def test_what_is_no_swizzled_scale() -> None:
    for shape in ((31, 16), (32, 15), (32, 16)):
        with pytest.raises(ValueError, match=r"want at least \(64, 32\) in whole tiles of 32 x 16"):
            layouts.unswizzle_scales(torch.zeros(shape, dtype=torch.uint8), 129, 5)


@pytest.mark.parametrize(
    "rows, k, shape", [(1, 32, (256, 8)), (256, 256, (256, 8)), (257, 288, (512, 16)), (2880, 2880, (3072, 96))]
)
def test_one_padding_function(rows: int, k: int, shape: tuple[int, int]) -> None:
    assert layouts.padded_scale_shape(rows, k) == shape


@pytest.mark.parametrize("n, columns, reason", [(24, 32, "N = 24"), (16, 48, "48 bytes a row"), (2, 1, "N = 2")])
def test_what_cannot_be_preshuffled(n: int, columns: int, reason: str) -> None:
    for function in (layouts.preshuffle_weight, layouts.unpreshuffle_weight):
        with pytest.raises(ValueError, match=reason):
            function(distinct(n, columns))


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="packed: got dtype torch.int8, want torch.uint8"):
        layouts.preshuffle_weight(torch.zeros(16, 32, dtype=torch.int8))
    with pytest.raises(ValueError, match="scales: got shape"):
        layouts.shuffle_scales(torch.zeros(4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"at least \(33, 8\) in whole tiles"):
        layouts.unshuffle_scales(torch.zeros(32, 8, dtype=torch.uint8), 33, 8)


def test_results_never_alias() -> None:
    w = distinct(16, 32)
    for function in (
        layouts.preshuffle_weight,
        layouts.unpreshuffle_weight,
        layouts.shuffle_scales,
        layouts.swizzle_scales,
    ):
        assert function(w).data_ptr() != w.data_ptr()
    full = distinct(256, 8)
    assert layouts.unshuffle_scales(full, 256, 8).data_ptr() != full.data_ptr()
