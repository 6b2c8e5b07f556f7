"""The benchmark's own logic: what it counts, whom it asks, and that nothing wrong is timed. No GPU needed."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from mxgemm import measure
from mxgemm.device import Machine
from mxgemm.measure import floor, rotation, session, text, timing
from mxgemm.measure.contender import Contender
from mxgemm.measure.identity import identity
from mxgemm.measure.oracle import Oracle
from mxgemm.measure.peers import PEERS, base
from mxgemm.measure.peers.aiter import AiterA4W4
from mxgemm.measure.routes import FORMS
from mxgemm.measure.spread import Effort, Spread, quartiles, repeat
from mxgemm.mx.tensor import MXTensor
from mxgemm.routes import ROUTES

CPU = torch.device("cpu")
QUICK = Effort(seconds=0.0, least=2, most=2)


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


class TestPeers:
    def test_absent_ones_say_why(self) -> None:
        reasons = {name: str(peer.absent(CPU)) for name, peer in PEERS.items()}
        assert reasons["torch_mm"] == "None"
        assert "needs one of sm_90" in reasons["scaled_mm_fp8"]
        assert reasons["aiter_a4w4"] == reasons["aiter_a16wfp4"] == "arch is cpu; needs gfx950"
        assert "needs a GPU" in reasons["triton_kernels"]
        assert "needs an NVIDIA GPU" in reasons["humming"]

    @pytest.mark.parametrize("name", ["aiter_a4w4", "aiter_a16wfp4", "triton_kernels", "humming"])
    def test_a_missing_package_is_named_with_how_to_get_it(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        peer = PEERS[name]
        monkeypatch.setattr(type(peer), "wrong_device", lambda self, device: None)
        monkeypatch.setattr(base.importlib.util, "find_spec", lambda module: None)
        assert str(peer.absent(CPU)) == f"{peer.module} is not installed: {peer.install}"

    def test_the_unrelated_aiter_is_told_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mxgemm.measure.peers.aiter.machine_of", lambda device: Machine("gfx950", 256, ""))
        monkeypatch.setattr(base.importlib.util, "find_spec", lambda module: object())
        monkeypatch.setitem(sys.modules, "aiter", types.ModuleType("aiter"))
        assert "has no gemm_a4w4: pip install amd-aiter" in str(AiterA4W4().absent(CPU))

    def test_an_aiter_that_does_not_import_is_absent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "aiter.py").write_text("raise OSError('libhip is missing')")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "aiter", raising=False)
        for name in ("aiter_a4w4", "aiter_a16wfp4"):
            monkeypatch.setattr(type(PEERS[name]), "wrong_device", lambda self, device: None)
            assert str(PEERS[name].absent(CPU)).endswith("cannot be imported (OSError: libhip is missing)")

    def test_sizes_that_give_wrong_results_are_refused(self) -> None:
        assert "K % 256" in str(PEERS["aiter_a4w4"].refuses(1, 32, 128))
        assert not PEERS["aiter_a4w4"].refuses(1, 2880, 512)
        assert "multiples of 16" in str(PEERS["scaled_mm_fp8"].refuses(1, 24, 128))

    def test_aiters_chain_is_called_with_its_layouts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stand-in for AITER that undoes the layouts; its numbers are those of the MX definition."""
        from mxgemm import gemm_mx, quantize
        from mxgemm.measure.peers import aiter
        from mxgemm.mx import layouts
        from mxgemm.mx.tensor import MXTensor

        def gemm_a4w4(a, b, a_scales, b_scales, *, dtype, bpreshuffle):
            assert bpreshuffle
            k = a.shape[1] * 2
            left = MXTensor.wrap(a, layouts.unshuffle_scales(a_scales, a.shape[0], k // 32))
            right = MXTensor.wrap(
                layouts.unpreshuffle_weight(b), layouts.unshuffle_scales(b_scales, b.shape[0], k // 32)
            )
            return gemm_mx(left, right, out_dtype=dtype, route="reference")

        def quantiser(x):
            q = quantize(x)
            return q.data, q.scales

        dtypes = types.SimpleNamespace(fp4x2=torch.uint8, fp8_e8m0=torch.uint8)
        monkeypatch.setattr(aiter, "_a4w4_chain", lambda: (quantiser, layouts.shuffle_scales, gemm_a4w4, dtypes))
        peer = AiterA4W4()
        a, weight = measure.inputs(5, 64, 256, CPU)
        oracle = Oracle(a, weight)
        loaded = peer.load(weight)
        out = peer.call(peer.activations(a), loaded)
        assert oracle.judge(out, peer.exact(oracle, a, loaded), 24).passed

    def test_the_fp8_peer_is_judged_by_its_own_operands(self) -> None:
        peer = PEERS["scaled_mm_fp8"]
        a, weight = measure.inputs(6, 32, 64, CPU)
        oracle, left, right = Oracle(a, weight), peer.activations(a), peer.load(weight)
        exact = peer.exact(oracle, left, right)
        out = torch.from_numpy(exact.left @ exact.right.T).to(torch.bfloat16)
        assert oracle.judge(out, exact, 13).passed
        # e4m3 keeps three bits of fraction: near the activations, and not equal to them
        error = np.abs(exact.left - a.double().numpy()).max() / a.abs().max().item()
        assert 0 < error < 2**-4
        assert not oracle.judge(out, oracle.exact("e2m1"), 13).passed


class Wrong(Contender):
    """A peer that returns something else, or breaks."""

    kind, name, statement = "peer", "wrong", "nothing"

    def __init__(self, out: torch.Tensor | None) -> None:
        self.out = out

    def load(self, weight):
        return (weight.data,)

    def call(self, a, loaded):
        if self.out is None:
            raise RuntimeError("broke")
        return self.out

    def exact(self, oracle, a, loaded):
        return oracle.exact("e2m1")


class TestJudging:
    def test_one_value_that_is_not_finite_outside_the_sample_fails(self) -> None:
        a, weight = measure.inputs(70, 1100, 32, CPU)
        oracle = Oracle(a, weight)
        out = (a.float() @ weight.dequantize().t()).to(torch.bfloat16)
        exact = oracle.exact("bf16")
        assert oracle.judge(out, exact, 24).passed
        row = next(i for i in range(70) if i not in oracle.rows.tolist())
        out[row, 0] = float("inf")
        assert not oracle.judge(out, exact, 24).passed

    def test_a_wrong_shape_is_an_error(self) -> None:
        a, weight = measure.inputs(2, 32, 32, CPU)
        with pytest.raises(ValueError, match=r"out: got shape \(32, 2\), want \(2, 32\)"):
            Oracle(a, weight).judge(torch.zeros(32, 2), Oracle(a, weight).exact("bf16"), 24)

    def test_what_is_wrong_is_not_timed(self) -> None:
        a, weight = measure.inputs(2, 32, 32, CPU)
        record = session.measure(Wrong(torch.zeros(2, 32, dtype=torch.bfloat16)), Oracle(a, weight), (), CPU, QUICK)
        assert not record["accuracy"]["passed"]
        assert record["device"] is record["eager"] is record["host"] is None


def request(**changes) -> measure.Request:
    values = {"shapes": [(3, 32, 64)], "device": CPU, "effort": QUICK, "peers": tuple(PEERS), "all_routes": True}
    return measure.Request(**{**values, **changes})


@pytest.fixture(scope="module")
def document() -> dict:
    return measure.run(request())


class TestDocument:
    def test_it_is_json_with_every_field(self, document: dict) -> None:
        document = json.loads(json.dumps(document, allow_nan=False))
        assert (document["kind"], document["version"]) == ("mxgemm-bench", 3)
        for name in ("mxgemm", "torch", "triton", "python", "device", "arch"):
            assert document["environment"][name]
        assert set(document["clocks"]) == {"start", "end"}
        assert set(document["method"]) == {"device", "eager", "host", "spread", "accuracy", "floor"}
        assert document["roof"]["bandwidth_gb_per_s"] > 0
        assert document["failures"] == []
        for record in document["results"]:
            assert (record["m"], record["n"], record["k"]) == (3, 32, 64)
            assert record["bytes"] == 3 * 64 * 2 + 32 * 34 + 3 * 32 * 2
            assert record["flops"] == 2 * 3 * 32 * 64
            assert record["floor_us"] > 0
            assert record["accuracy"]["passed"]
            assert record["statement"]
            ours = record["kind"] == "route"
            assert (record["a_format"], record["form"]) == (("e2m1", "fast") if ours else (None, None))
            spread = Spread(**record["device"])
            assert 0 < spread.low <= spread.us <= spread.high
            assert (spread.runs, spread.method) == (2, "wall")
            assert record["ratio_to_floor"] == pytest.approx(spread.us / record["floor_us"])
            assert record["gb_per_s"] == pytest.approx(record["bytes"] / spread.us / 1e3)

    def test_everyone_moves_its_own_bytes(self, document: dict) -> None:
        a, out = 3 * 64 * 2, 3 * 32 * 2
        moved = {(record["kind"], record["name"]): record["traffic_bytes"] for record in document["results"]}
        assert moved["peer", "torch_mm"] == a + 32 * 64 * 2 + out
        assert moved["route", "reference"] == a + 32 * 34 + out
        assert moved["route", "gemm_mx"] == 3 * 34 + 32 * 34 + out
        assert PEERS["scaled_mm_fp8"].traffic_bytes(3, 32, 64) == 3 * 68 + 32 * 68 + out

    def test_several_requests_make_one_document(self) -> None:
        sizes, asked = [(2, 32, 32), (4, 32, 32)], {"route": "reference", "all_routes": False}
        requests = [
            request(shapes=sizes, peers=["torch_mm"], **asked),
            request(shapes=sizes[1:], peers=["torch_mm"], form="raw", a_format="bf16", **asked),
            request(shapes=sizes[1:], peers=(), **asked),  # measured already
        ]
        told: list[int] = []
        document = measure.run(requests, lambda done, what: told.append(done))
        assert measure.sizes_of(requests) == sizes
        assert set(told) == {0, 1}
        assert (document["a_formats"], document["forms"]) == (["e2m1", "bf16"], ["fast", "raw"])
        assert [peer["name"] for peer in document["peers"]] == ["torch_mm"]
        found = [(record["m"], *identity(record)[1:]) for record in document["results"]]
        ours = ("reference", "e2m1", "fast"), ("reference", "bf16", "raw")
        assert found == [(2, *ours[0]), (2, "torch_mm", "", ""), (4, *ours[0]), (4, "torch_mm", "", ""), (4, *ours[1])]
        statements = {record["statement"] for record in document["results"]}
        assert "bf16 activations, MXFP4 weight as its bytes lie" in statements
        assert [row[1] for row in text.rows(document) if "torch" not in row[1]] == [
            "reference e2m1 fast*",
            "reference e2m1 fast*",
            "reference bf16 raw*",
        ]

    def test_requests_are_of_one_device_and_of_names_that_there_are(self) -> None:
        for requests in ([], [request(), request(seed=1)]):
            with pytest.raises(ValueError, match=f"requests: got {len(requests)}, want at least one"):
                measure.run(requests)
        for wrong in ({"peers": ["moon"]}, {"form": "slow"}, {"times": ["device", "moon"]}):
            with pytest.raises(ValueError, match=f"{next(iter(wrong))}: got '(moon|slow)', want one of"):
                request(**wrong)

    def test_times_that_nobody_wants_are_not_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        taken: list[str] = []

        def timer(name: str):
            def measured(calls, effort, *rest):
                taken.append(name)
                spread = Spread(1.0, 1.0, 1.0, 1, name)
                return (spread, "") if name == "device" else spread

            return measured

        for name in session.TIMES:
            monkeypatch.setattr(timing, f"{name}_us", timer(name))
        monkeypatch.setattr(session, "cache_bytes", lambda device: 0)
        a, weight = measure.inputs(2, 32, 32, CPU)
        oracle, peer, gpu = Oracle(a, weight), PEERS["torch_mm"], torch.device("cuda")
        record = session.measure(peer, oracle, peer.load(weight), gpu, QUICK, ("device",))
        assert taken == ["device"]
        assert record["device"]["us"] == 1.0
        assert record["eager"] is record["host"] is None
        session.measure(peer, oracle, peer.load(weight), gpu, QUICK)
        assert sorted(taken[1:]) == sorted(session.TIMES)

    @pytest.mark.parametrize("form", FORMS)
    def test_a_weight_comes_in_the_form_that_was_asked_for(self, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real, made = MXTensor.prepare, []

        def prepare(weight: MXTensor, *arguments, **options) -> MXTensor:
            made.append(options["memory"])
            return real(weight, *arguments, **options)

        monkeypatch.setattr(MXTensor, "prepare", prepare)
        document = measure.run(request(form=form, route="reference", all_routes=False, peers=()))
        assert set(made) == {form} - {"raw"}
        assert [record["form"] for record in document["results"]] == [form]

    def test_routes_that_cannot_are_refused_with_the_reason(self, document: dict) -> None:
        refused = {record["name"]: record["reason"] for record in document["refusals"]}
        measured = {record["name"] for record in document["results"] if record["kind"] == "route"}
        assert "reference" in measured
        assert "needs an MXTensor after prepare()" in refused["fp8_fold"]
        assert not measured & set(refused)
        assert measured | set(refused) == set(ROUTES)

    def test_absent_peers_are_listed_and_get_no_verdict(self, document: dict) -> None:
        absent = {peer["name"]: peer["reason"] for peer in document["peers"] if not peer["present"]}
        assert absent["humming"]
        measured = {record["name"] for record in document["results"] if record["kind"] == "peer"}
        assert measured == {"torch_mm"}

    def test_the_routers_choice_is_marked_once(self, document: dict) -> None:
        chosen = [record for record in document["results"] if record["chosen"]]
        assert [record["name"] for record in chosen] == ["reference"]
        assert chosen[0]["reason"] == "rule: any shape"

    def test_a_contender_that_breaks_is_recorded_and_the_rest_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(PEERS["torch_mm"], "call", Wrong(None).call)
        document = measure.run(request(all_routes=False))
        assert document["failures"][0]["error"] == "RuntimeError: broke"
        assert [record["name"] for record in document["results"]] == ["reference"]
        assert measure.passed(document), "a peer's failure is not ours"
        assert "FAILED torch_mm (3,32,64): RuntimeError: broke" in "\n".join(text.notes(document))

    def test_a_route_that_is_wrong_or_breaks_fails_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from mxgemm import gemm

        def wrong(a, w, *, out=None, **_):
            return gemm(a, w) * 1.01

        monkeypatch.setattr("mxgemm.measure.routes.gemm", wrong)
        document = measure.run(request(all_routes=False, peers=()))
        assert document["results"][0]["device"] is None
        assert not measure.passed(document)

        def broken(a, w, **_):
            raise RuntimeError("device lost")

        monkeypatch.setattr("mxgemm.measure.routes.gemm", broken)
        document = measure.run(request(all_routes=False, peers=()))
        assert document["failures"][0]["error"] == "RuntimeError: device lost"
        assert not measure.passed(document)

    def test_what_a_route_leaves_unwritten_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from mxgemm import gemm

        def lazy(a, w, *, out, **_):
            out[:2] = gemm(a, w)[:2]
            return out

        monkeypatch.setattr("mxgemm.measure.routes.gemm", lazy)
        document = measure.run(request(all_routes=False, peers=()))
        assert not measure.passed(document)
        json.dumps(document, allow_nan=False)
        assert text.rows(document)[0][-2:] == ("not finite", "FAIL")

    def test_activations_that_come_quantised(self) -> None:
        document = measure.run(request(route="gemm_mx", peers=(), all_routes=False))
        records = document["results"] + document["refusals"]
        assert [record["name"] for record in records] == ["gemm_mx"]
        refused = measure.run(request(route="gemm_mx", peers=(), a_format="bf16"))["refusals"]
        assert "a_format is bf16" in refused[0]["reason"]

    def test_what_was_measured_is_kept_after_each_size(self, tmp_path: Path) -> None:
        sizes, path = [], tmp_path / "new" / "r.json"

        keeper = measure.Keeper(path)

        def keep(document: dict) -> None:
            keeper.keep(document)
            sizes.append(len(json.loads(path.read_text())["results"]))

        measure.run(request(shapes=[(1, 32, 32), (2, 32, 32)], route="reference", peers=()), keep=keep)
        assert sizes == [1, 2]
        assert list(path.parent.iterdir()) == [path]

    def test_a_named_route_that_can_take_nothing_is_no_success(self) -> None:
        document = measure.run(request(route="fp8_fold", peers=(), all_routes=False))
        assert document["results"] == []
        assert not measure.passed(document)

    def test_the_table_has_a_row_a_result(self, document: dict) -> None:
        rows = text.rows(document)
        assert len(rows) == len(document["results"])
        assert all(len(row) == len(text.COLUMNS) and row[-1] == "pass" for row in rows)
        assert any("reference*" in row for row in rows)
        assert "absent humming" in "\n".join(text.notes(document))
        quantised = {**document["results"][0], "chosen": False, "statement": PEERS["scaled_mm_fp8"].statement}
        assert text.rows({"results": [quantised]})[0][1] == f"{quantised['name']}+"
