"""Layers called by many threads at once, while forms are made anew."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

from mxgemm.nn import MXLinear
from tests.cases import spread
from tests.nn.test_state import X, by_hand, cloned, layer


def test_every_result_of_many_threads_has_the_bits_of_a_serial_run() -> None:
    layers = [layer(seed, form) for seed, form in enumerate(("raw", "sm_90", "gfx950", "gfx950 alone"))]
    inputs = [spread(m, X.shape[1], seed=m) for m in (1, 3, 33)]
    want = [[one(x) for x in inputs] for one in layers]
    fresh = [MXLinear.from_mx(one.mx_tensor().row_major(), one.bias, a_format="e2m1") for one in layers]
    start = Barrier(8)

    def work(index: int) -> bool:
        start.wait()
        right = True
        for turn in range(20):
            i, j = (index + turn) % len(layers), (index * 3 + turn) % len(inputs)
            one = layers[i] if turn % 2 else fresh[i]
            right &= torch.equal(one(inputs[j].clone().requires_grad_(bool(turn % 3))).detach(), want[i][j])
        return right

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_threads_that_meet_changed_bytes_at_once_all_see_them() -> None:
    shared = layer(form="sm_90")
    for turn in range(10):
        shared.load_state_dict(layer(turn + 1).state_dict()) if turn % 2 else shared.weight.bitwise_xor_(turn + 1)
        want, start = by_hand(cloned(shared)), Barrier(6)

        def work(_: int, start: Barrier = start) -> torch.Tensor:
            start.wait()
            return shared(X)

        with ThreadPoolExecutor(6) as pool:
            assert all(torch.equal(out, want) for out in pool.map(work, range(6)))
