"""Which form a submission takes: it must be right first, then the fastest; and what fails is never the import's end."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import mxgemm
from evidence.submission_compile import load
from mxgemm import submission
from mxgemm.mx import layouts

CPU = torch.device("cpu")
SHAPE = (6, 48, 256)


@pytest.fixture(scope="module")
def text() -> str:
    pytest.importorskip("triton")
    return submission.render()


@pytest.fixture
def module(text: str, tmp_path: Path) -> ModuleType:
    """The generated file, imported here: its own names, and nothing chosen yet."""
    path = tmp_path / "submission.py"
    path.write_text(text, encoding="utf-8")
    return load(path)


def product(rounding: str = "even") -> Callable[..., Any]:
    """Build forms that multiply by the reference route; any other rounding of A's scales than "even" is wrong."""

    def build(m: int, n: int, k: int, device: torch.device, tile: Any) -> Callable[..., torch.Tensor]:
        def multiply(a: torch.Tensor, b_shuffle: torch.Tensor, b_scale_sh: torch.Tensor) -> torch.Tensor:
            data = layouts.unpreshuffle_weight(b_shuffle)
            scales = layouts.unshuffle_scales(b_scale_sh, n, k // 32)
            return mxgemm.gemm(a, data, scales, scale_rounding=rounding, route="reference")  # type: ignore[arg-type]

        multiply.tile = tile  # type: ignore[attr-defined]
        return multiply

    return build


def no_compiler(m: int, n: int, k: int, device: torch.device, tile: Any) -> Callable[..., torch.Tensor]:
    raise OSError("no compiler")


def elsewhere(module: ModuleType) -> Callable[..., dict[str, Any]]:
    def tiles(m: int, n: int, k: int, arch: str) -> dict[str, Any]:
        raise module.NotHere("another GPU")

    return tiles


def named(*names: str) -> Callable[..., dict[str, Any]]:
    """Tiles that are their names."""
    return lambda m, n, k, arch: {name: name for name in names}


@pytest.fixture
def forms(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The file's forms, to be filled: a device that can be timed, and a clock that ``set_clock`` sets."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(module, "FORMS", found)
    monkeypatch.setattr(module, "can_be_timed", lambda device: True)
    monkeypatch.setattr(module, "FLUSH_BYTES", 16)
    return found


def set_clock(module: ModuleType, monkeypatch: pytest.MonkeyPatch, times: dict[str, Any]) -> list[str]:
    """Let each call take what is written for its tile, in turn; return the tiles that were timed, as they are."""
    asked: list[str] = []
    turns = {tile: itertools.cycle(us if isinstance(us, list) else [us]) for tile, us in times.items()}

    def microseconds(form: Any, inputs: tuple[torch.Tensor, ...], flush: torch.Tensor) -> float:
        assert len(inputs) == 3
        asked.append(form.tile)
        us = next(turns[form.tile])
        if isinstance(us, Exception):
            raise us
        return float(us)

    monkeypatch.setattr(module, "microseconds", microseconds)
    return asked


def chosen(module: ModuleType, shape: tuple[int, int, int] = SHAPE, **options: Any) -> str:
    """Choose for a shape and return the tile of the form in use, which must be right, and told in ``choices``."""
    form = module.choose_form(*shape, CPU, **options)
    assert module.disagrees(form, module.synthetic_operands(*shape, CPU)) is None
    told = module.choices[shape]["form"]
    assert told.endswith(form.tile)
    return str(form.tile)


def test_the_fastest_tile_of_all_forms_is_used(
    module: ModuleType, forms: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forms["hip"] = module.FormKind(named("a", "b"), product())
    forms["triton"] = module.FormKind(named("c", "d", "e"), product())
    times = {"a": 5.0, "b": 4.0, "c": 6.0, "d": 3.5, "e": 3.75}
    asked = set_clock(module, monkeypatch, times)
    assert chosen(module) == "d"
    assert module.choices[SHAPE] == {
        "form": "triton d",
        "us": {"hip a": 5.0, "triton c": 6.0, "hip b": 4.0, "triton d": 3.5, "triton e": 3.75},
    }
    assert asked == ["a", "c", "b", "d", "e"] * module.ROUNDS  # by turns
    said = capsys.readouterr().err
    assert f"mxfp4: triton d is used for {SHAPE}; us: hip a 5.00, triton c 6.00" in said
    assert chosen(module) == "d"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("times", "want"),
    [
        ({"a": 4.0, "b": 4.0}, "a"),  # the first of equals
        ({"a": [1.0, 9.0, 9.0], "b": 8.0}, "b"),  # the median: one lucky call is not a fast form
        ({"a": 8.0, "b": [90.0, 7.0, 7.0]}, "b"),  # nor one unlucky call a slow one
    ],
)
def test_medians_decide(
    module: ModuleType, forms: dict[str, Any], monkeypatch: pytest.MonkeyPatch, times: dict[str, Any], want: str
) -> None:
    forms["triton"] = module.FormKind(named("a", "b"), product())
    set_clock(module, monkeypatch, times)
    assert chosen(module) == want


def test_a_wrong_form_is_never_timed_however_fast(
    module: ModuleType, forms: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forms["wrong"] = module.FormKind(named("w"), product("floor"))
    forms["broken"] = module.FormKind(named("x"), no_compiler)
    forms["elsewhere"] = module.FormKind(elsewhere(module), no_compiler)
    forms["right"] = module.FormKind(named("r", "s"), product())
    asked = set_clock(module, monkeypatch, {"w": 0.1, "r": 7.0, "s": 8.0})
    assert chosen(module) == chosen(module) == "r"
    assert set(asked) == {"r", "s"}
    said = capsys.readouterr().err
    assert said.count("wrong w is not used") == said.count("broken x is not used") == 1
    assert "OSError: no compiler" in said
    assert "of a synthetic product are wrong" in said
    assert "elsewhere" not in said
    for name in ("right", "elsewhere"):
        del forms[name]
    with pytest.raises(RuntimeError, match=r"no form works for .* wrong w: .* wrong; broken x: OSError: no compiler"):
        module.choose_form(*SHAPE, CPU)


def test_a_form_that_cannot_even_list_its_tiles_makes_way(
    module: ModuleType, forms: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tiles(m: int, n: int, k: int, arch: str) -> dict[str, Any]:
        raise OSError("libmodule.so: undefined symbol")

    forms["aiter"] = module.FormKind(tiles, product())
    forms["triton"] = module.FormKind(named("a"), product())
    assert chosen(module) == chosen(module) == "a"
    assert capsys.readouterr().err.count("mxfp4: aiter is not used: OSError: libmodule.so: undefined symbol") == 1


def test_a_form_that_turns_wrong_is_not_used(
    module: ModuleType, forms: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose counters survive a call: right once, and fast ever after."""
    calls: list[str] = []

    def build(m: int, n: int, k: int, device: torch.device, tile: Any) -> Callable[..., torch.Tensor]:
        right = product()(m, n, k, device, tile)

        def multiply(*operands: torch.Tensor) -> torch.Tensor:
            calls.append(tile)
            result: torch.Tensor = right(*operands)
            return result * 2 if tile == "b" and calls.count("b") > 1 else result

        multiply.tile = tile  # type: ignore[attr-defined]
        return multiply

    forms["hip"] = module.FormKind(named("a", "b", "c"), build)
    set_clock(module, monkeypatch, {"a": 5.0, "b": 1.0, "c": 4.0})
    assert chosen(module) == "c"


def test_a_form_that_fails_when_it_is_timed_makes_way(
    module: ModuleType, forms: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forms["hip"] = module.FormKind(named("a", "b"), product())
    asked = set_clock(module, monkeypatch, {"a": [2.0, RuntimeError("lost")], "b": 3.0})
    assert chosen(module) == "b"
    assert asked.count("a") == 2
    assert "mxfp4: hip a fails when it is timed: RuntimeError: lost" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["flush", "clock", "events"])
def test_where_nothing_can_be_compared_the_first_right_form_is_used(
    module: ModuleType, forms: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    broken: str,
) -> None:  # fmt: skip
    forms["hip"] = module.FormKind(named("a"), no_compiler)
    forms["triton"] = module.FormKind(named("b", "c"), product())
    if broken == "flush":
        monkeypatch.setattr(module, "FLUSH_BYTES", 1 << 62)
    elif broken == "clock":
        set_clock(module, monkeypatch, {"b": RuntimeError("no clock"), "c": RuntimeError("no clock")})
    # else the file's own clock, which a CPU has no events for
    assert chosen(module) == "b"
    assert module.choices[SHAPE] == {"form": "triton b", "us": {}}
    assert "mxfp4: triton b is used, for the forms cannot be compared" in capsys.readouterr().err


def test_time_is_bounded(module: ModuleType, forms: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the deadline one right form is enough; a shape's timing ends by itself."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    forms["hip"] = module.FormKind(named("a", "b"), product())
    forms["broken"] = module.FormKind(named("x"), no_compiler)
    asked = set_clock(module, monkeypatch, {"a": 5.0, "b": 4.0})
    now[0] = 10.0
    assert chosen(module, deadline=9.0) == "a"
    assert asked == []
    assert chosen(module, deadline=11.0) == "b"
    assert len(asked) == 2 * module.ROUNDS
    asked.clear()
    clock = module.microseconds

    def slow(*arguments: Any) -> float:
        now[0] += module.SECONDS_A_SHAPE
        return float(clock(*arguments))

    monkeypatch.setattr(module, "microseconds", slow)
    assert chosen(module) == "b"
    assert len(asked) == 2 * module.LEAST_ROUNDS


def test_a_device_that_cannot_be_timed_takes_the_first_that_is_right(
    module: ModuleType, forms: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "can_be_timed", lambda device: device.type == "cuda")
    forms["broken"] = module.FormKind(named("x"), no_compiler)
    forms["right"] = module.FormKind(named("a", "b"), product())
    asked = set_clock(module, monkeypatch, {})
    assert chosen(module) == "a"
    assert asked == []


def test_nothing_ends_the_import(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried, freed = [], []

    def choose_form(m: int, n: int, k: int, device: torch.device, deadline: float) -> Any:
        tried.append((m, n, k))
        if len(tried) % 2:
            raise MemoryError("none left")
        return "a form"

    monkeypatch.setattr(module, "choose_form", choose_form)
    monkeypatch.setattr(module.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(module.torch.cuda, "empty_cache", lambda: freed.append(1))
    module.build_published_shapes()
    assert tuple(tried) == module.PUBLISHED
    assert [key[:3] for key in module.chosen_forms] == list(module.PUBLISHED[1::2])
    assert freed == [1]
    assert "mxfp4: MemoryError: none left" in capsys.readouterr().err


def test_without_aiter_its_form_is_not_for_here(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiter", None)
    with pytest.raises(module.NotHere, match="AITER cannot be imported"):
        module.aiter_tiles(4, 2880, 512, "gfx950")


@pytest.mark.gpu
def test_the_clock_on_a_gpu(module: ModuleType) -> None:
    """The file's own events and flush: twice the work is seen to take longer, and neither takes the host's time."""
    device = torch.device("cuda", torch.cuda.current_device())
    a, b_shuffle, b_scale_sh, _ = module.synthetic_operands(256, 3072, 1536, device)
    left, right = torch.randn(2, 4096, 4096, dtype=torch.bfloat16, device=device)

    def times(count: int) -> Callable[..., torch.Tensor]:
        def multiply(*_: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                product = left @ right
            return product

        return multiply

    found = module.medians({"thrice": times(3), "once": times(1)}, (a, b_shuffle, b_scale_sh))
    assert list(found) == ["thrice", "once"]
    assert 0.0 < 2 * found["once"] < found["thrice"]
    assert module.can_be_timed(device)
