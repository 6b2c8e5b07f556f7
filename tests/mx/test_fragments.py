"""The fragment order of a weight, byte by byte as its module says it."""

from __future__ import annotations

import pytest
import torch

from mxgemm.mx.fragments import code_bytes, fragment_bytes, fragment_order, scale_bytes

PLACES = (  # of each code's bits from the sign on: the lower codes of four pairs, then the upper ones
    *((15, 8, 7, 6), (18, 11, 10, 9), (3, 1, 0, 4), (21, 14, 13, 12)),
    *((31, 24, 23, 22), (2, 27, 26, 25), (19, 17, 16, 20), (5, 30, 29, 28)),
)


@pytest.mark.parametrize("neighbours", [True, False])
@pytest.mark.parametrize("n, k", [(32, 128), (1, 32), (33, 96), (80, 416)])
def test_every_code_and_scale_is_where_it_should_be(n: int, k: int, neighbours: bool) -> None:
    random = torch.Generator().manual_seed(n + k)
    codes = torch.randint(0, 16, (n, k), generator=random, dtype=torch.uint8)
    scales = torch.randint(0, 256, (n, k // 32), generator=random, dtype=torch.uint8)
    made = fragment_order(codes[:, ::2] | codes[:, 1::2] << 4, scales, neighbours=neighbours)
    assert made.shape == (fragment_bytes(n, k),) == (code_bytes(n, k) + scale_bytes(n, k),)
    words = made[: code_bytes(n, k)].view(torch.int32).tolist()
    of_scales = made[code_bytes(n, k) :].tolist()
    chunks, rows = -(-k // 128), -(-n // 32) * 32
    assert (len(words), len(of_scales)) == (rows * chunks * 16, rows * chunks * 4)
    for row in range(rows):
        tile, half, g = row // 16, row % 16 // 8, row % 8
        for block in range(4 * chunks):
            chunk, t = divmod(block, 4)
            real = row < n and block < k // 32
            at = ((((tile // 2) * chunks + chunk) * 8 + g) * 4 + t) * 4 + tile % 2 * 2 + half
            assert of_scales[at] == (int(scales[row, block]) if real else 127)
            for word in range(4):
                value = words[((((tile * chunks + chunk) * 2 + half) * 8 + g) * 4 + t) * 4 + word]
                for i in range(8):
                    place = PLACES[i // 2 + i % 2 * 4 if neighbours else i]
                    found = sum((value >> bit & 1) << (3 - j) for j, bit in enumerate(place))
                    assert found == (int(codes[row, 32 * block + 8 * word + i]) if real else 0)


def test_bytes_at_an_odd_address_and_with_strides() -> None:
    random = torch.Generator().manual_seed(1)
    plain = torch.randint(0, 256, (32, 64), generator=random, dtype=torch.uint8)
    scales = torch.randint(0, 256, (32, 4), generator=random, dtype=torch.uint8)
    want = fragment_order(plain, scales)
    odd = torch.empty(32 * 64 + 1, dtype=torch.uint8)[1:].view(32, 64).copy_(plain)
    strided = torch.empty(32, 80, dtype=torch.uint8)[:, 3:67].copy_(plain)
    for other in (odd, strided, plain.t().contiguous().t()):
        assert torch.equal(fragment_order(other, scales.t().contiguous().t()), want)
