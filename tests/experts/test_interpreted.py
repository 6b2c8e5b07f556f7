"""The Triton route once in its interpreter; test_grouped.py and test_moe.py have it in full."""

from __future__ import annotations

import pytest
import torch

from tests.experts.cases import Grouped, ends, layer, need, stack
from tests.experts.test_moe import LIMITS, distance

pytestmark = pytest.mark.slow


def test_a_layer_and_a_product() -> None:
    need("triton")
    one = layer(5, 2, experts=3)
    one.ids[1, 0] = -1
    got = one.run("e2m1", route="triton", out_dtype=torch.float32)
    assert distance(got, one.exact("e2m1")) < LIMITS["e2m1"]
    a = torch.randn(9, 96).bfloat16()
    product = Grouped(a, stack(3, 40, 96), ends(2, 0, 5), "bf16", bias=torch.randn(3, 40))
    product.check(product.run(route="triton"))
