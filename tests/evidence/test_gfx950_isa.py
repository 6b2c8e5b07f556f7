"""The machine code that the routing table's configurations compile to, for gfx950 and other GPUs, without a GPU.

Both triton releases that users have are tried: what one compiles well, another may not.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from evidence import isa
from mxgemm.device import Machine
from mxgemm.measure import LEADERBOARD
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routing import tables
from tests import cross

LAYOUTS = {
    "prepared": {"weight_layout": "preshuffled", "scale_layout": "shuffled"},
    "leaderboard": {"scale_layout": "shuffled"},
    "row-major": {},
}
ROWS = [row for row in tables.shipped("gfx950")[0].rows if row.source == "isa"]
TABLE_JOBS = [
    {
        "route": row.route,
        "arch": "gfx950",
        "m": row.m,
        "n": row.n,
        "k": row.k,
        "config": dict(row.config),
        "problem": layout,
    }
    for row in ROWS
    for layout in LAYOUTS.values()
]
PREPARED = LAYOUTS["prepared"]
DECODE = {"m": 16, "n": 2112, "k": 7168}
OTHER_JOBS: dict[str, dict[str, Any]] = {
    "K = 2880": {"route": "a16wfp4", "m": 16, "n": 2880, "k": 2880},
    "fp16 A": {"route": "a16wfp4", **DECODE, "problem": {"a_dtype": "float16"}},
    "fp32 A": {"route": "a16wfp4", **DECODE, "problem": {"a_dtype": "float32"}},
    "a8w4": {"route": "a16wfp4", **DECODE, "problem": {"a_format": "e4m3"}},
    "a16w4": {"route": "w4a16", **DECODE, "problem": {"a_format": "bf16"}},
    "e2m1 x e2m1": {"route": "gemm_mx", **DECODE, "problem": {"a_format": "e2m1"}},
    "e4m3 x e2m1": {"route": "gemm_mx", **DECODE, "m": 64, "problem": {"a_format": "e4m3"}},
    "e5m2 x e4m3": {"route": "gemm_mx", **DECODE, "problem": {"a_format": "e5m2", "b_format": "e4m3"}},
}
for job in OTHER_JOBS.values():
    job["problem"] = {**PREPARED, **job.get("problem", {}), "a_quantized": job["route"] == "gemm_mx"}
ONE_LAUNCH = {
    "route": "a16wfp4", "arch": "gfx950", "m": 16, "n": 2112, "k": 7168, "problem": PREPARED, "text": True,
    "config": {"block_n": 128, "split_k": 14, "one_launch": True, "waves_per_eu": 4},
}  # fmt: skip


@pytest.fixture(params=cross.TRITONS)
def triton_name(request: pytest.FixtureRequest) -> str:
    reason = cross.available(request.param)
    if reason:
        pytest.skip(reason)
    return request.param


def compiled(triton_name: str, jobs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    results = cross.compile_jobs(triton_name, [{"arch": "gfx950", **job} for job in jobs])
    for job, result in zip(jobs, results, strict=True):
        assert isinstance(result, list), (job, result)
    return results


def check_machine_code(f: dict[str, Any], job: dict[str, Any]) -> None:
    assert f["scratch"] == 0, (job, f)
    assert f["spills"] == 0, (job, f)
    narrow = {width: count for width, count in f["loads"].items() if 0 < int(width) < 4}
    assert narrow == ({"2": 1} if f["config"]["block_n"] == 32 else {}), (job, f["loads"])  # 512 bytes of scales
    assert f["waves_per_simd"] >= max(1, f["config"]["waves_per_eu"]), (job, f)
    assert f["in_loop"]


def test_the_table_names_every_leaderboard_shape() -> None:
    assert {(row.m, row.n, row.k) for row in ROWS} == set(LEADERBOARD)
    assert {row.grade for row in ROWS} == {"predicted"}
    assert all(row.us for row in ROWS)
    for row in ROWS:
        route = ROUTES[row.route]
        problem = Problem(row.m, row.n, row.k, Machine("gfx950", 256, "MI355X"))
        assert route.check_config(problem, route.config_type.from_mapping(row.config)) is None


def test_table_configurations(triton_name: str) -> None:
    for job, (main, *rest) in zip(TABLE_JOBS, compiled(triton_name, TABLE_JOBS), strict=True):
        check_machine_code(main, job)
        c = main["config"]
        tile_mfma = (c["block_m"] // 16) * (c["block_n"] // 16) * (c["block_k"] // 128)
        if c["block_n"] >= 32 * c["num_warps"]:  # else every wave multiplies all of the tile
            tile_mfma //= c["num_warps"]
        assert main["scaled_mfma"] == tile_mfma
        assert main["other_mfma"] == 0
        assert main["fp4_converts"] > 0
        # Quantisation, addresses and scales together; 60 to 70 were compiled (bench/results/isa_gfx950.json).
        blocks = (c["block_m"] // 16) * (c["block_k"] // 128)
        assert main["valu"] / blocks <= 72, (job, main["valu"])
        for reduce in rest:
            assert reduce["scratch"] == reduce["spills"] == 0
            assert set(reduce["loads"]) == {"4"}
        assert len(rest) == (c["split_k"] > 1)


def test_prepared_weights_go_straight_to_registers(triton_name: str) -> None:
    jobs = [job for job in TABLE_JOBS if job["problem"] == PREPARED and job["config"]["block_n"] == 128]
    for job, (main, *_) in zip(jobs, compiled(triton_name, jobs), strict=True):
        c = main["config"]
        weight_bytes = c["block_n"] * c["block_k"] // 2 // (64 * c["num_warps"])
        a_bytes = c["block_m"] * c["block_k"] * 2 // (64 * c["num_warps"])
        assert main["loads"] == {"4": 1, "16": (weight_bytes + a_bytes) // 16}, (job, main["loads"])
        assert main["lds"] <= 2 * c["block_m"] * c["block_k"]  # room for quantised A and its scales, none for B


def test_other_formats_and_sizes(triton_name: str) -> None:
    for name, (main, *_) in zip(OTHER_JOBS, compiled(triton_name, list(OTHER_JOBS.values())), strict=True):
        check_machine_code(main, {"name": name})
        native = name != "a16w4"  # bf16 activations: decoded weights and bf16 MFMA
        assert (main["scaled_mfma"] > 0) == native, name
        assert (main["other_mfma"] > 0) != native, name
        assert (main["fp4_converts"] > 0) == (name in ("K = 2880", "fp16 A", "fp32 A")), name


def test_order_of_the_one_launch_split(triton_name: str) -> None:
    """Stores done, barrier, L2 written back, counter, caches invalidated, and only then the others' partial sums."""
    ((main,),) = compiled(triton_name, [ONE_LAUNCH])
    order = [op for op, _ in isa.instruction_order(main["text"])]
    arguments = [argument for _, argument in isa.instruction_order(main["text"])]
    (atomic,) = [i for i, op in enumerate(order) if op.startswith("global_atomic_add")]
    last_store = max(i for i in range(atomic) if order[i].startswith("buffer_store_dword"))
    between = list(zip(order[last_store:atomic], arguments[last_store:atomic], strict=True))
    wait = next(i for i, (op, what) in enumerate(between) if op == "s_waitcnt" and "vmcnt(0)" in what)
    barrier = next(i for i, (op, _) in enumerate(between) if op == "s_barrier")
    assert wait < barrier
    assert between[-2][0] == "buffer_wbl2" or "buffer_wbl2" in [op for op, _ in between[barrier:]]
    assert ("s_waitcnt", "vmcnt(0)") in between[barrier:]
    after = order[atomic + 1 :]
    first_load = next(i for i, op in enumerate(after) if op.startswith("buffer_load"))
    assert after.index("buffer_inv") < first_load
    assert after.index("s_barrier") < first_load
