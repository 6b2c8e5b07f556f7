"""A run: nothing wrong is timed, and the document says what was measured. No GPU needed."""

import json
from pathlib import Path

import pytest
import torch

from mxgemm import measure
from mxgemm.measure import session, text, timing
from mxgemm.measure.contender import Contender
from mxgemm.measure.held import PERIOD
from mxgemm.measure.identity import identity
from mxgemm.measure.oracle import Oracle
from mxgemm.measure.peers import PEERS
from mxgemm.measure.routes import FORMS
from mxgemm.measure.session import activations_of, weight_of
from mxgemm.measure.spread import Effort, Spread
from mxgemm.mx.tensor import MXTensor
from mxgemm.routes import ROUTES
from tests.cases import cpu_route

CPU = torch.device("cpu")
QUICK = Effort(seconds=0.0, least=2, most=2)


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

    @pytest.mark.parametrize("m", [1, 5, 61, 200])
    @pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
    def test_rows_that_repeat_are_worth_what_they_are_once(self, m: int, a_format: str) -> None:
        once = Oracle(activations_of(PERIOD, 96, CPU), weight_of(200, 96, CPU), PERIOD, 256)
        oracle = once.repeated(m, 32)
        alone = Oracle(oracle.a, oracle.weight, 32, 256)
        assert torch.equal(oracle.a, once.a.repeat(-(-m // PERIOD), 1)[:m])
        found, want = oracle.exact(a_format), alone.exact(a_format)
        assert torch.equal(oracle.rows, alone.rows)
        assert torch.equal(oracle.columns, alone.columns)
        assert (found.left == want.left).all()
        assert (found.right == want.right).all()
        assert found.product == pytest.approx(want.product, rel=1e-12, abs=1e-12)  # sums in another order

    def test_rows_of_another_tile_are_found_out(self) -> None:
        """Of which no height is a multiple of the period, nor the other way round."""
        once = Oracle(activations_of(PERIOD, 64, CPU), weight_of(64, 64, CPU), PERIOD, 64)
        oracle = once.repeated(256, 32)
        right, exact = (oracle.a.float() @ oracle.weight.dequantize().t()).to(torch.bfloat16), oracle.exact("bf16")
        assert oracle.judge(right, exact, 24).passed
        for tile in (8, 16, 24, 32, 64, 96, 128):
            assert not oracle.judge(right.roll(tile, 0), exact, 24).passed

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
        assert [row[1].rstrip("*") for row in text.rows(document) if "torch" not in row[1]] == [
            "reference e2m1 fast",
            "reference e2m1 fast",
            "reference bf16 raw",
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
        assert measured == {"torch_mm", "torch_mm_fp32"}

    def test_the_routers_choice_is_marked_once(self, document: dict) -> None:
        chosen = [record for record in document["results"] if record["chosen"]]
        assert [record["name"] for record in chosen] == [cpu_route()]
        assert chosen[0]["reason"].startswith("rule: ")

    def test_a_contender_that_breaks_is_recorded_and_the_rest_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(PEERS["torch_mm"], "call", Wrong(None).call)
        document = measure.run(request(all_routes=False))
        assert document["failures"][0]["error"] == "RuntimeError: broke"
        assert [record["name"] for record in document["results"]] == [cpu_route(), "torch_mm_fp32"]
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
        assert any(f"{cpu_route()}*" in row for row in rows)
        notes = "\n".join(text.notes(document))
        assert "absent humming" in notes
        took = {record["name"]: record["device"]["us"] for record in document["results"]}
        share = took[cpu_route()] / min(took["torch_mm"], took["torch_mm_fp32"])
        assert f"share of the fastest torch.mm's time: 3,32,64 {cpu_route()} {share:.2f}" in notes
        quantised = {**document["results"][0], "chosen": False, "statement": PEERS["scaled_mm_fp8"].statement}
        assert text.rows({"results": [quantised]})[0][1] == f"{quantised['name']}+"
