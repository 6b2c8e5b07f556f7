"""The benchmark's own logic: what it counts, whom it asks, and that nothing wrong is timed. No GPU needed."""

import pytest
import torch

from mxgemm import measure
from mxgemm.measure import floor, rotation, timing
from mxgemm.measure.spread import Effort, quartiles, repeat

CPU = torch.device("cpu")


class FakeClock:
    """Seconds that pass only when something takes them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: float):
        def call() -> None:
            self.now += seconds

        return call


class TestShapes:
    def test_every_set_is_legal_and_says_where_it_comes_from(self) -> None:
        assert set(measure.SETS) == {"leaderboard", "deepseek-r1", "gpt-oss", "llama-70b"}
        for chosen in measure.SETS.values():
            assert chosen.source
            assert chosen.shapes
            assert all(m >= 1 and n >= 1 and k % 32 == 0 for m, n, k in chosen.shapes)
            assert {(n, k) for _, n, k in chosen.shapes} >= {(w.n, w.k) for w in chosen.layers}

    def test_the_leaderboards_weights_are_layers_of_deepseek(self) -> None:
        # 2112 = 1536 + 512 + 64 outputs of the two first projections, in one GEMM
        assert (2112, 7168) in {(n, k) for _, n, k in measure.SETS["deepseek-r1"].shapes}

    def test_selecting(self) -> None:
        assert measure.select([], []) == list(measure.LEADERBOARD)
        assert measure.select([], ["1,2,32", "1x2x32"]) == [(1, 2, 32)]
        assert measure.select(["leaderboard"], ["1,2,32"]) == [(1, 2, 32), *measure.LEADERBOARD]
        with pytest.raises(ValueError, match="set: got 'moon', want one of leaderboard"):
            measure.select(["moon"], [])


class TestRepeating:
    def test_it_stops_by_time_but_not_before_the_least(self) -> None:
        clock = FakeClock()
        run_us = clock.taking(0.25)
        assert len(repeat(lambda: run_us() or 1.0, Effort(seconds=1.0, least=2, most=100), clock)) == 4
        assert len(repeat(lambda: run_us() or 1.0, Effort(seconds=0.0, least=3, most=100), clock)) == 3
        assert len(repeat(lambda: run_us() or 1.0, Effort(seconds=99.0, least=3, most=7), clock)) == 7

    def test_quartiles(self) -> None:
        assert quartiles([5.0]) == (5.0, 5.0, 5.0)
        assert quartiles([4.0, 1.0, 3.0, 2.0, 5.0]) == (2.0, 3.0, 4.0)

    def test_wall_time_leaves_warm_up_out_and_takes_turns(self) -> None:
        clock, log = FakeClock(), []

        def call(name: str):
            def run() -> None:
                log.append(name)
                clock.now += 10e-6 if len(log) > timing.WARM_UP else 1.0

            return run

        spread = timing.wall_us([call("a"), call("b")], Effort(seconds=2.5, least=4, most=4), clock)
        assert spread.us == pytest.approx(10.0)
        assert spread.runs == 4
        assert spread.method == "wall"
        assert log == ["a", "b", "a", "b", "a", "b", "a"]

    def test_slow_calls_warm_up_once(self) -> None:
        clock = FakeClock()
        taken = iter([7.0, 1.0, 1.0, 1.0])

        def call() -> None:
            clock.now += next(taken)

        spread = timing.wall_us([call], Effort(seconds=0.5, least=3, most=9), clock)
        assert (spread.us, spread.high, spread.runs) == (pytest.approx(1e6), pytest.approx(1e6), 3)

    def test_host_time_has_no_wait_in_it_and_the_queue_never_fills(self) -> None:
        clock, queued, longest = FakeClock(), [0], [0]

        def call() -> None:
            clock.now += 7e-6
            queued[0] += 1
            longest[0] = max(longest[0], queued[0])

        def wait() -> None:
            clock.now += 1.0
            queued[0] = 0

        spread = timing.host_us([call], Effort(seconds=1e9, least=1, most=200), wait, clock)
        assert (spread.low, spread.us, spread.high) == pytest.approx((7.0, 7.0, 7.0))
        assert longest[0] <= timing.MAX_QUEUED
        assert queued[0] == 0


class TestRotationAndFloor:
    @pytest.mark.parametrize("weight_bytes", [1, 783_360, 60 << 20, 1 << 30])
    def test_copies_exceed_the_cache_twice(self, weight_bytes: int) -> None:
        cache = 60 << 20
        copies = rotation.copies_needed(weight_bytes, cache)
        assert copies >= 2
        assert copies * weight_bytes > 2 * cache
        assert copies == 2 or (copies - 1) * weight_bytes <= 2 * cache

    def test_a_cpu_does_not_rotate(self) -> None:
        assert rotation.copies_needed(1000, rotation.cache_bytes(CPU)) == 1

    def test_the_floor_is_the_larger_of_two(self) -> None:
        roof = floor.Roof({"copy": 1000.0, "read": 2000.0}, {"bf16": 10.0, "fp8": 20.0})
        assert roof.floor_us(2_000_000, 1) == (pytest.approx(1.0), "memory")
        assert roof.floor_us(1, 60_000_000) == (pytest.approx(3.0), "compute")

    def test_measured_ceilings_are_above_zero(self) -> None:
        roof = floor.measure_roof(CPU)
        assert set(roof.gb_per_s) == {"copy", "read"}
        assert min(*roof.gb_per_s.values(), *roof.tflop_per_s.values()) > 0
        assert roof.floor_us(1, 1)[0] > 0

    def test_a_rate_that_cannot_be_measured_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(size: int, device: torch.device):
            raise RuntimeError("no such unit\nat line 3")

        monkeypatch.setattr(floor, "_products", lambda device: {"fp32": (floor._fp32, 64), "fp4": (refuse, 64)})
        roof = floor.measure_roof(CPU)
        assert roof.refused == {"fp4": "torch refuses: no such unit"}
        assert set(roof.tflop_per_s) == {"fp32"}

    def test_a_device_without_fp4_units_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(floor, "_products", lambda device: {"fp32": (floor._fp32, 64), "fp4": (floor._fp4, 64)})
        assert floor.measure_roof(CPU).refused == {"fp4": "cpu has no fp4 units"}
