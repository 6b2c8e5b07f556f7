"""Real numbers as a kernel's operands: shapes, memory and worth, for every scheme."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mxgemm.dispatcher import Inputs, Problem, reference
from mxgemm.dispatcher.codecs import decode_result, raw_dtype
from mxgemm.dispatcher.quantise import quantise
from tests.dispatcher.scheme_cases import SCHEMES

MOST = {"int4": 0.15, "fp4": 0.15, "bf8": 0.06, "fp8": 0.04, "bf16": 0.004}
"""Distance from the exact product, in norm, that one operand's type costs at most."""


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
@pytest.mark.parametrize("name", SCHEMES)
def test_the_product_is_near(name: str, arch: str) -> None:
    config = SCHEMES[name].pinned(arch)
    if name.startswith("mx-") and arch == "gfx942":
        pytest.skip("gfx950's alone")
    generator = torch.Generator().manual_seed(7)
    m, n, k = 6, 20, 288
    a, b = (torch.randn(rows, k, generator=generator).bfloat16() for rows in (m, n))
    left, right, left_scales, right_scales = quantise(config, a, b)
    arrays = [
        x.view(torch.uint16 if dtype == "bf16" else torch.uint8).numpy()
        for x, dtype in ((left, config.scheme.a), (right, config.scheme.b))
    ]
    assert [array.dtype for array in arrays] == [raw_dtype(config.scheme.a), raw_dtype(config.scheme.b)]
    scales = [None if s is None else s.numpy() for s in (left_scales, right_scales)]
    out = reference(config, Inputs(Problem(m, n, k), *arrays, *scales))
    exact = a.double().numpy() @ b.double().numpy().T
    distance = np.linalg.norm(decode_result(out, config.scheme.c) - exact) / np.linalg.norm(exact)
    unscaled = 0.2 if config.scheme.b == "int4" and config.scheme.b_scale is None else 0.0  # whole numbers of N(0, 1)
    assert distance < MOST[config.scheme.a] + MOST[config.scheme.b] + unscaled
    for scale, stored, shape in zip(
        (config.scheme.a_scale, config.scheme.b_scale), scales, config.scale_shapes(m, n, k), strict=True
    ):
        assert (stored is None) == (scale is None)
        assert stored is None or stored.shape == shape
