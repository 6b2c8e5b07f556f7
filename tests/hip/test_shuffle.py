"""The shuffles through the public functions, on a GPU: the same sources, built as HIP or as CUDA, against torch.

What needs no GPU is here too: calls that are refused before anything is built.
"""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from mxgemm.device import KNOWN_MACHINES, machine_of
from mxgemm.hip import code_object, compilers, loaded, rtc, runtime, shuffle
from mxgemm.hip.build import texts_of
from mxgemm.hip.runtime import DriverError
from mxgemm.mx import layouts

SIZES = [(1, 1), (3, 7), (15, 8), (16, 9), (17, 16), (31, 90), (33, 4), (40, 224), (257, 12), (300, 66), (1000, 448)]


@pytest.fixture
def gpu() -> torch.device:
    device = torch.device("cuda", torch.cuda.current_device())
    reason = shuffle.refusal(machine_of(device))
    if reason:
        pytest.skip(str(reason))
    return device


def random_bytes(rows: int, columns: int) -> Tensor:
    return torch.randint(0, 255, (rows, columns), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows))


def strided(values: Tensor, device: torch.device, gap: int, lead: int) -> Tensor:
    """The values in rows ``gap`` bytes apart, ``lead`` bytes behind an aligned address, amid 0xFF."""
    rows, columns = values.shape
    memory = torch.full((lead + rows * (columns + gap),), 255, dtype=torch.uint8, device=device)
    return memory[lead:].view(rows, columns + gap)[:, :columns].copy_(values)


class Guarded:
    """A tensor between guards that must survive."""

    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        self.memory = torch.full((shape[0] * shape[1] + 256,), 0xC3, dtype=torch.uint8, device=device)
        self.tensor = self.memory[128:-128].view(shape)

    def check(self) -> Tensor:
        assert (self.memory[:128] == 0xC3).all()
        assert (self.memory[-128:] == 0xC3).all()
        return self.tensor.cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("gap, lead", [(0, 0), (8, 0), (4, 4), (2, 6), (1, 0), (0, 1)])
@pytest.mark.parametrize("rows, columns", SIZES)
def test_scales_on_the_gpu(gpu: torch.device, rows: int, columns: int, gap: int, lead: int) -> None:
    values = random_bytes(rows, columns)
    scales = strided(values, gpu, gap, lead)
    expected = layouts.shuffle_scales(values)
    assert torch.equal(shuffle.shuffle_scales(scales).cpu(), expected)
    out = Guarded(tuple(expected.shape), gpu)
    assert shuffle.shuffle_scales(scales, out.tensor) is out.tensor
    assert torch.equal(out.check(), expected)
    padded = layouts.round_up(rows, 32)
    into = Guarded((padded + 16, expected.shape[1]), gpu)
    shuffle.shuffle_scales_into(scales, into.tensor)
    got = into.check()
    assert torch.equal(got[:padded], expected[:padded])
    assert (got[padded:] == 0xC3).all()
    poisoned = torch.where(layouts.shuffle_scales(torch.ones_like(values)) == 1, expected, 0xEE)
    assert torch.equal(shuffle.unshuffle_scales(poisoned.to(gpu), rows, columns).cpu(), values)


@pytest.mark.gpu
@pytest.mark.parametrize("gap, lead", [(0, 0), (16, 0), (8, 8), (4, 12), (2, 2), (1, 0)])
@pytest.mark.parametrize("n, columns", [(16, 32), (48, 96), (2112, 288), (64, 3584)])
def test_weights_on_the_gpu(gpu: torch.device, n: int, columns: int, gap: int, lead: int) -> None:
    values = random_bytes(n, columns)
    expected = layouts.preshuffle_weight(values)
    assert torch.equal(shuffle.preshuffle_weight(strided(values, gpu, gap, lead)).cpu(), expected)
    assert torch.equal(shuffle.unpreshuffle_weight(expected.to(gpu)).cpu(), values)


@pytest.mark.gpu
def test_empty_operands_on_the_gpu(gpu: torch.device) -> None:
    for rows, columns in ((0, 8), (5, 0), (0, 0)):
        empty = torch.empty(rows, columns, dtype=torch.uint8, device=gpu)
        expected = layouts.shuffle_scales(empty.cpu())
        assert torch.equal(shuffle.shuffle_scales(empty).cpu(), expected)
        assert shuffle.unshuffle_scales(expected.to(gpu), rows, columns).shape == (rows, columns)
    assert shuffle.preshuffle_weight(torch.empty(0, 32, dtype=torch.uint8, device=gpu)).shape == (0, 32)


@pytest.mark.gpu
def test_more_than_31_bits_of_bytes(gpu: torch.device) -> None:
    if torch.cuda.mem_get_info(gpu)[0] < 16 << 30:
        pytest.skip("needs 16 GiB of free GPU memory")
    rows, columns = (1 << 20) + 5, 2056  # 2.2e9 bytes
    scales = torch.randint(0, 255, (rows, columns), dtype=torch.uint8, device=gpu)
    shuffled = shuffle.shuffle_scales(scales)
    last = rows // 32 * 32
    assert torch.equal(shuffled[last:].cpu(), layouts.shuffle_scales(scales[last:].cpu())[: shuffled.shape[0] - last])
    assert torch.equal(shuffle.unshuffle_scales(shuffled, rows, columns), scales)
    del shuffled
    weight = scales[: 1 << 20, :2048]
    preshuffled = shuffle.preshuffle_weight(weight)
    assert torch.equal(preshuffled[-16:].cpu(), layouts.preshuffle_weight(weight[-16:].cpu()))
    assert torch.equal(shuffle.unpreshuffle_weight(preshuffled), weight)


@pytest.mark.gpu
def test_streams_threads_and_graphs(gpu: torch.device) -> None:
    values = random_bytes(70, 24)
    scales, expected = values.to(gpu), layouts.shuffle_scales(values)
    shuffle.shuffle_scales(scales)  # built and loaded
    # The launch must wait for the work before it on its own stream, or it reads zeros.
    stream = torch.cuda.Stream(gpu)
    torch.cuda.synchronize(gpu)
    with torch.cuda.stream(stream):
        source = torch.zeros_like(scales)
        torch.cuda._sleep(50_000_000)
        source.copy_(scales)
        out = shuffle.shuffle_scales(source)
    stream.synchronize()
    assert torch.equal(out.cpu(), expected)

    outs = [torch.zeros_like(out) for _ in range(80)]
    torch.cuda.synchronize(gpu)
    errors: list[Exception] = []

    def work(mine: list[Tensor]) -> None:
        try:  # a thread that has made no CUDA call has no current context
            for tensor in mine:
                shuffle.shuffle_scales(scales, tensor)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(outs[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize(gpu)
    assert errors == []
    assert all(torch.equal(tensor.cpu(), expected) for tensor in outs)

    graph = torch.cuda.CUDAGraph()
    target = torch.zeros_like(out)
    with torch.cuda.graph(graph):
        shuffle.shuffle_scales(scales, target)
    assert not target.any()
    scales.zero_()
    graph.replay()
    torch.cuda.synchronize(gpu)
    assert torch.equal(target.cpu(), layouts.shuffle_scales(torch.zeros_like(values)))
    scales.copy_(values)
    graph.replay()
    torch.cuda.synchronize(gpu)
    assert torch.equal(target.cpu(), expected)


@pytest.mark.gpu
def test_the_run_time_compiler_builds_the_same_sources(gpu: torch.device) -> None:
    api = rtc.HIPRTC if torch.version.hip else rtc.NVRTC
    found = rtc.find(api)
    if isinstance(found, str):
        pytest.skip(f"no {api.library}: {found}")
    arch = machine_of(gpu).arch
    flags = (f"--offload-arch={arch}", "-O3", "-std=c++20") if torch.version.hip else (f"-arch={arch}", "-std=c++20")
    compiler = compilers.Compiler(arch, found.path, found.version, flags, found)
    image = compiler.compile("shuffle_scales.hip", texts_of("shuffle_scales.hip"), {})
    assert code_object.inspect(image).arch == arch
    values = random_bytes(33, 16)
    scales, out = values.to(gpu), torch.empty(256, 16, dtype=torch.uint8, device=gpu)
    kernarg = shuffle._SCALES.pack(scales.data_ptr(), out.data_ptr(), 16, 33, 16, 2, 16)
    runtime.load(image, gpu).function("shuffle_scales_8").launch((1, 1, 1), (256, 1, 1), kernarg)
    assert torch.equal(out.cpu(), layouts.shuffle_scales(values))


@pytest.mark.gpu
def test_the_drivers_own_words(gpu: torch.device) -> None:
    module = loaded.module("shuffle_scales.hip", gpu)
    with pytest.raises(DriverError, match=r"LaunchKernel\(shuffle_scales_8, .*: .*invalid.* \(error \d+\)"):
        module.function("shuffle_scales_8").launch((1, 1, 1), (1 << 20, 1, 1), bytes(40))
    assert module.function("shuffle_scales_8") is module.function("shuffle_scales_8")
    torch.cuda.synchronize(gpu)  # the refused launch left nothing broken


def test_calls_that_are_refused() -> None:
    cpu = torch.zeros(4, 8, dtype=torch.uint8)
    for call in (shuffle.shuffle_scales, shuffle.preshuffle_weight, shuffle.unpreshuffle_weight):
        with pytest.raises(ValueError, match="got device cpu, want a CUDA/ROCm device"):
            call(cpu)
        with pytest.raises(TypeError, match=r"got dtype torch.int8, want torch.uint8"):
            call(cpu.to(torch.int8))
        with pytest.raises(ValueError, match=r"got shape \(4,\), want two dimensions"):
            call(cpu[:, 0])
    assert "it is no GPU" in str(shuffle.refusal(KNOWN_MACHINES["cpu"]))


@pytest.mark.gpu
def test_wrong_shapes_and_strides_on_the_gpu(gpu: torch.device) -> None:
    scales = torch.zeros(40, 16, dtype=torch.uint8, device=gpu)
    out = torch.zeros(256, 16, dtype=torch.uint8, device=gpu)
    for match, call in (
        (r"scales: got strides \(1, 16\), want contiguous columns", lambda: shuffle.shuffle_scales(scales.t())),
        (r"out: got shape \(40, 16\), want \(256, 16\)", lambda: shuffle.shuffle_scales(scales, scales)),
        (
            r"out: got shape \(40, 16\), want at least 64 rows of 16",
            lambda: shuffle.shuffle_scales_into(scales, scales),
        ),
        ("out: got device cpu, want", lambda: shuffle.shuffle_scales(scales, out.cpu())),
        ("out: got strides .* multiple of 16 bytes", lambda: shuffle.shuffle_scales(scales[:, :8], out[:, :8])),
        (r"shuffled: got shape \(40, 16\), want at least", lambda: shuffle.unshuffle_scales(scales, 40, 16)),
        ("packed: got shape .*cannot be preshuffled", lambda: shuffle.preshuffle_weight(scales)),
    ):
        with pytest.raises(ValueError, match=match):
            call()
