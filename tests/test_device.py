"""Names of devices and architectures: what is taken, what it means, and how the rest is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import mxgemm
from mxgemm import device
from mxgemm.device import KNOWN_MACHINES, arch_named, device_of, machine_named, machine_of


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs for torch to see, of which the second is current."""
    properties = SimpleNamespace(gcnArchName="", major=12, minor=1, multi_processor_count=170, name="a GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    device._gpu.cache_clear()
    monkeypatch.setattr(device, "_gpu", device._gpu.__wrapped__)


@pytest.mark.parametrize(
    "text, arch",
    [
        ("gfx950", "gfx950"), ("gfx950:sramecc+:xnack-", "gfx950"), ("gfx942:xnack+", "gfx942"), ("gfx90a", "gfx90a"),
        ("gfx1250", "gfx1250"), ("sm_90", "sm_90"), ("sm_90a", "sm_90"), ("sm_100f", "sm_100"), ("sm_120", "sm_120"),
        *((wrong, None) for wrong in ("", "cpu", "gfx", "gfx950:", "gfx950:sramecc", "gfx950 ", "GFX950", "gfx950x")),
        *((wrong, None) for wrong in ("gfx123456", "sm_9", "sm90", "sm_90b", "sm_90:xnack+")),
    ],
)  # fmt: skip
def test_architectures_by_name(text: str, arch: str | None) -> None:
    assert arch_named(text) == arch
    found = machine_named(text)
    if arch is None:
        assert found == KNOWN_MACHINES.get(text)
    else:
        assert found is not None
        assert found.arch == arch


@pytest.mark.parametrize("name", ["gfx950:sramecc+:xnack-", "sm_90a", "sm_100", "gfx942:xnack-"])
def test_suffixes_change_no_explanation(name: str) -> None:
    assert str(mxgemm.explain(4, 2880, 512, device=name)) == str(mxgemm.explain(4, 2880, 512, device=arch_named(name)))


def test_a_weight_is_prepared_for_an_architecture_with_suffixes() -> None:
    weight = mxgemm.quantize(torch.randn(32, 64))
    plain, suffixed = weight.prepare("gfx950"), weight.prepare("gfx950:sramecc+:xnack-")
    assert plain.prepared is not None
    assert suffixed.prepared is not None
    assert suffixed.prepared.tensors[0].equal(plain.prepared.tensors[0])
    other = weight.prepare("gfx1250").prepared
    assert other is not None
    assert (other.kind, other.tensors, other.nbytes) == ("", (), 0)


@pytest.mark.parametrize("name", ["gfx1251", "sm_121", "sm_80", "gfx90a", "sm_89"])
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
@pytest.mark.parametrize("prepared", [False, True])
def test_an_unknown_architecture_is_answered_by_refusals(name: str, a_format: Any, prepared: bool) -> None:
    answer = mxgemm.explain(16, 2112, 7168, device=name, a_format=a_format, prepared=prepared)
    assert answer.route not in {refused.route for refused in answer.refusals}
    assert answer.us is None
    assert f"on {name} (in no table here: by what each route refuses)" in str(answer)
    assert {"fused_asm", "ck_gemm", "hip_fused"} <= {refused.route for refused in answer.refusals}


@pytest.mark.parametrize("integer", [np.int64, np.int8, np.uint16, torch.tensor])
def test_sizes_of_any_integer_type(integer: Any) -> None:
    answer = mxgemm.explain(integer(4), integer(96), integer(64), device="gfx950")
    assert str(answer) == str(mxgemm.explain(4, 96, 64, device="gfx950"))
    assert type(answer.problem.m) is int


@pytest.mark.parametrize(
    "sizes, error, message",
    [
        ((None, 1, 32), TypeError, "m: got None, want an int"),
        ((4.5, 1, 32), TypeError, "m: got 4.5, want an int"),
        ((1, float("inf"), 32), TypeError, "n: got inf, want an int"),
        ((1, True, 32), TypeError, "n: got True, want an int"),
        ((1, 1, "32"), TypeError, "k: got '32', want an int"),
        ((1, 1, np.float32(32)), TypeError, "k: got float32, want an int"),
        ((0, 1, 32), ValueError, "m: got 0, want at least 1"),
        ((1, 1, 0), ValueError, "k: got 0, want a positive multiple of 32"),
        ((2**63, 1, 32), ValueError, f"m: got {2**63}, want at least 1, at most 2"),
        ((1, 10**5000, 32), ValueError, "n: got an int of 16610 bits"),
    ],
)
def test_sizes_that_are_none(sizes: tuple[Any, Any, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mxgemm.explain(*sizes, device="cpu")


def test_the_largest_sizes_are_answered() -> None:
    largest = 2**63 - 1
    assert mxgemm.explain(largest, largest, 2**63 - 32, device="gfx950").route


@pytest.mark.parametrize(
    "wrong", ["x", "", "mps", "meta", "cuda:", "cuda:-1", "gfx", "[/x]", -1, 2**80, torch.device("meta")]
)
def test_what_is_no_device(wrong: Any, two_gpus: None) -> None:
    with pytest.raises(ValueError, match=r"^where: got .*, want"):
        device_of(wrong, "where")
    with pytest.raises(ValueError, match=r"^device: got .*gfx950, gfx942"):
        mxgemm.explain(4, 64, 64, device=wrong)


@pytest.mark.parametrize("wrong", [True, 1.5, b"cpu", [], ("cuda", 0), object(), torch.ones(1)])
def test_what_is_no_name_of_a_device(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^device: got .*, want a torch device, its name, or a GPU's index"):
        mxgemm.explain(4, 64, 64, device=wrong)


@pytest.mark.parametrize(
    "given", ["cuda", "cuda:0", "cuda:1", 0, 1, torch.device("cuda"), torch.device("cuda", 1), None]
)
def test_a_gpu_by_name_index_or_device(given: Any, two_gpus: None) -> None:
    assert mxgemm.explain(4, 64, 64, device=given).problem.machine == device.Machine("sm_121", 170, "a GPU")


def test_a_gpu_has_what_its_kind_has(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch tells how many compute units there are (a partition has fewer), and the table the rest."""
    monkeypatch.setattr(torch.version, "hip", "7.0")
    properties = SimpleNamespace(gcnArchName="gfx950:sramecc+:xnack-", multi_processor_count=32, name="a part")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    known = KNOWN_MACHINES["gfx950"]
    assert machine_of(torch.device("cuda", 0)) == replace(known, cu_count=32, name="a part")
    assert (known.xcds, known.lds_bytes, known.infinity_cache_bytes) == (8, 163840, 268435456)


@pytest.mark.parametrize("arch", [arch for arch in KNOWN_MACHINES if arch != "cpu"])
def test_known_machines_are_whole(arch: str) -> None:
    machine = KNOWN_MACHINES[arch]
    assert machine.arch == arch
    assert machine.cu_count % machine.xcds == 0
    assert machine.wave_size == (64 if arch.startswith("gfx9") else 32)
    assert machine.registers * machine.simds * machine.wave_size * 4 in (256 * 1024, 512 * 1024)  # a unit's file
    assert machine.lds_bytes


@pytest.mark.parametrize("given", ["cuda:2", 2, 127, torch.device("cuda", 5)])
def test_a_gpu_beyond_the_last(given: Any, two_gpus: None) -> None:
    with pytest.raises(ValueError, match=r"device: got cuda:\d+, want a GPU that is here: torch sees 2 of them"):
        mxgemm.explain(4, 64, 64, device=given)
    with pytest.raises(ValueError, match="torch sees 2 of them"):
        machine_of(torch.device("cuda", 9))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("given", ["cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda", 3)])
def test_no_gpu_at_all(given: Any) -> None:
    with pytest.raises(ValueError, match=r"device: got cuda.*, want a GPU that is here: torch sees none"):
        mxgemm.explain(4, 64, 64, device=given)
    with pytest.raises(ValueError, match="torch sees none"):
        machine_of(torch.device("cuda"))
