"""Program order: a bijection that gives each XCD a contiguous run."""

import pytest
import torch

from tests.cases import skip_without_kernels


@pytest.mark.parametrize("programs", [1, 7, 8, 9, 64, 238, 257])
@pytest.mark.parametrize("xcds", [1, 8])
def test_contiguous_on_xcd(programs: int, xcds: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    skip_without_kernels(device)
    from tests.order_kernel import order_kernel

    order = torch.full((programs,), -1, dtype=torch.int32, device=device)
    order_kernel[(programs,)](order, programs, XCDS=xcds)
    assert sorted(order.tolist()) == list(range(programs))
    for xcd in range(xcds):
        run = order[xcd::xcds].tolist()
        assert run == list(range(run[0], run[0] + len(run))) if run else True
