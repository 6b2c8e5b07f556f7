"""Split-K: right, the same bits every time, counters left at zero, streams and graphs apart."""

import pytest
import torch

from mxgemm import workspace
from mxgemm.triton.tile_config import TileConfig
from tests.cases import DEVICES, make, run_route, skip_without_kernels

FORMS = [pytest.param(False, id="two launches"), pytest.param(True, id="one launch")]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("one_launch", FORMS)
@pytest.mark.parametrize("route, a_format", [("a16wfp4", "e2m1"), ("w4a16", "bf16"), ("gemm_mx", "e4m3")])
@pytest.mark.parametrize(
    "m, n, k, block_k, split",
    [
        (1, 16, 1024, 128, 8),
        (33, 48, 768, 128, 3),
        (17, 50, 1664, 128, 5),  # 13 blocks of K: the last split has one, the others three
        (1, 258, 512, 128, 2),  # two columns for the second program of the kernel that adds
        (16, 32, 2880, 256, 4),  # the last block of the last split is half empty
        (8, 32, 7168, 256, 14),
    ],
)
def test_numbers(
    m: int, n: int, k: int, block_k: int, split: int, route: str, a_format: str, one_launch: bool, device: str
) -> None:
    skip_without_kernels(device)
    config = TileConfig(block_k=block_k, split_k=split, one_launch=one_launch)
    bias = torch.randn(n, device=device)
    case = make(m, n, k, device=device, a_format=a_format, bias=bias)
    for out_dtype in (torch.bfloat16, torch.float32):
        case.check(run_route(route, case, a_format=a_format, bias=bias, out_dtype=out_dtype, config=config))
    with workspace.take(0, case.a.device, counters=1) as arena:
        assert not arena.counters.any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("one_launch", FORMS)
@pytest.mark.slow
def test_ten_runs_agree_to_the_bit(one_launch: bool, device: str) -> None:
    skip_without_kernels(device)
    m, n, k = (16, 2112, 7168) if device == "cuda" else (16, 48, 2048)
    case = make(m, n, k, device=device)
    config = TileConfig(block_k=256, split_k=8 if device == "cpu" else 14, one_launch=one_launch)
    first, *others = (run_route("a16wfp4", case, out_dtype=torch.float32, config=config) for _ in range(10))
    assert all(torch.equal(first, other) for other in others)
    both = run_route("a16wfp4", case, out_dtype=torch.float32, config=TileConfig(block_k=256, split_k=config.split_k))
    assert torch.equal(first, both)  # the order of the sum is the same in both forms


@pytest.mark.gpu
@pytest.mark.parametrize("one_launch", FORMS)
def test_two_streams(one_launch: bool) -> None:
    case = make(16, 512, 4096, device="cuda")
    config = TileConfig(block_k=256, split_k=8, one_launch=one_launch)
    want = run_route("a16wfp4", case, config=config)
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = []
    torch.cuda.synchronize()
    for repeat in range(20):
        with torch.cuda.stream(streams[repeat % 4]):
            results.append(run_route("a16wfp4", case, config=config))
    torch.cuda.synchronize()
    assert all(torch.equal(result, want) for result in results)


@pytest.mark.gpu
@pytest.mark.parametrize("one_launch", FORMS)
def test_graph_capture_and_replay(one_launch: bool) -> None:
    from mxgemm.device import machine_of
    from mxgemm.problem import Problem, Strides
    from mxgemm.routes import ROUTES, Operands

    case = make(16, 512, 4096, device="cuda")
    w, config = case.weight, TileConfig(block_k=256, split_k=8, one_launch=one_launch)
    strides = Strides(a=(4096, 1), b=(2048, 1), b_scales=(128, 1), out=(512, 1))
    problem = Problem(16, 512, 4096, machine_of(case.a.device), strides=strides)
    launch = ROUTES["a16wfp4"].bind(problem, config)
    out = torch.zeros(16, 512, dtype=torch.bfloat16, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        launch(Operands(case.a, None, w.data, w.scales, None, out))
    torch.cuda.synchronize()
    want = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(Operands(case.a, None, w.data, w.scales, None, out))
    workspace.clear()
    for _ in range(3):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, want)
