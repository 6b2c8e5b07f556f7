"""Pickles, files, copies and queues hold the bytes of an MX tensor alone, and load through the constructor's checks."""

from __future__ import annotations

import copy
import copyreg
import io
import itertools
import pickle
import random
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mxgemm
from mxgemm import saved
from mxgemm.mx.formats import E2M1, FORMATS, ElementFormat
from mxgemm.mx.layouts import Layout, preshuffle_weight, shuffle_scales
from mxgemm.mx.tensor import MXTensor
from tests.cases import spread

ROOT = Path(__file__).resolve().parents[2]
N, K = 48, 128
REFUSED = (TypeError, ValueError, pickle.UnpicklingError)


def weights() -> list[MXTensor]:
    made = [mxgemm.quantize(spread(N, K, octaves=3), format=fmt) for fmt in FORMATS]  # type: ignore[arg-type]
    w = made[0]
    made.append(mxgemm.quantize(torch.randn(2, 3, 64)))
    for data, scales in (("row_major", "shuffled"), ("preshuffled", "row_major"), ("preshuffled", "shuffled")):
        made.append(
            MXTensor.wrap(
                preshuffle_weight(w.data) if data == "preshuffled" else w.data,
                shuffle_scales(w.scales) if scales == "shuffled" else w.scales,
                weight_layout=data, scale_layout=scales,  # type: ignore[arg-type]
            )
        )  # fmt: skip
    made += [w.prepare("gfx950"), w.prepare("sm_90"), w.prepare("sm_90", memory="compact")]
    made.append(mxgemm.quantize(spread(N, K, octaves=12)).prepare("sm_90"))
    return made


def through_torch(w: Any, weights_only: bool = True, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(w, file, **options)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


WAYS: dict[str, Callable[[MXTensor], MXTensor]] = {
    **{f"pickle {n}": lambda w, n=n: pickle.loads(pickle.dumps(w, n)) for n in range(2, pickle.HIGHEST_PROTOCOL + 1)},
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "deepcopy inside": lambda w: copy.deepcopy({"layers": [w]})["layers"][0],
    "torch": through_torch,
    "torch, any global": lambda w: through_torch(w, weights_only=False),
    "torch, legacy": lambda w: through_torch(w, _use_new_zipfile_serialization=False),
    "torch, legacy, any global": lambda w: through_torch(w, False, _use_new_zipfile_serialization=False),
    "state_dict like": lambda w: through_torch({"a": {"w": w, "x": torch.ones(2)}})["a"]["w"],
}


def same(got: MXTensor, want: MXTensor) -> None:
    assert type(got) is MXTensor
    assert got is not want
    assert got != want  # identity, as before
    assert torch.equal(got.data, want.data)
    assert torch.equal(got.scales, want.scales)
    assert (got.shape, got.layout) == (want.shape, want.layout)
    assert got.format is want.format
    assert got.prepared is None
    assert torch.equal(got.dequantize(), want.dequantize())


@pytest.mark.parametrize("way", WAYS)
def test_the_bytes_come_back_and_nothing_derived(way: str) -> None:
    a = spread(3, K, torch.bfloat16)
    for w in weights():
        back = WAYS[way](w)
        same(back, w)
        if w.prepared is not None:
            assert torch.equal(mxgemm.gemm(a, back), mxgemm.gemm(a, w))


def test_a_prepared_weight_takes_no_more_room_than_its_bytes() -> None:
    w = mxgemm.quantize(spread(256, 1024, octaves=3))
    for prepared in (w.prepare("gfx950"), w.prepare("sm_90")):
        assert len(pickle.dumps(prepared)) == len(pickle.dumps(w))
        file = io.BytesIO()
        torch.save(prepared, file)
        assert file.tell() < w.nbytes * 1.05 + 4096


def test_stale_derived_data_is_left_behind_too() -> None:
    for arch in ("gfx950", "sm_90"):
        p = mxgemm.quantize(spread(N, K, octaves=3)).prepare(arch)
        p.data.zero_()
        for way in WAYS.values():
            assert not mxgemm.gemm(torch.ones(2, K), way(p)).any()


def test_a_deep_copy_is_independent_and_a_copy_is_not() -> None:
    w = mxgemm.quantize(spread(N, K))
    deep, shallow = copy.deepcopy(w), copy.copy(w)
    w.data.zero_()
    assert not torch.equal(deep.data, w.data)
    assert shallow.data is w.data
    module = torch.nn.Linear(1, 1)
    module.held = w
    same(copy.deepcopy(module).held, w)


def test_files(tmp_path: Path) -> None:
    for number, w in enumerate(weights()):
        path = tmp_path / f"{number}.pt"
        torch.save({"w": w, "step": 3}, path)
        for options in ({"mmap": True}, {"map_location": "cpu"}, {"map_location": {"cpu": "cpu"}}, {}):
            same(torch.load(path, weights_only=True, **options)["w"], w)
        away = torch.load(path, weights_only=True, map_location="meta")["w"]
        assert (away.device.type, away.shape, away.layout) == ("meta", w.shape, w.layout)


def test_a_fresh_process_needs_only_the_import(tmp_path: Path) -> None:
    w = mxgemm.quantize(spread(N, K, octaves=3))
    torch.save(w.prepare("sm_90"), tmp_path / "w.pt")
    torch.save(w, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "w.pickle").write_bytes(pickle.dumps(w))
    code = """
import sys, pickle, torch, mxgemm
for name in ("w.pt", "legacy.pt"):
    w = torch.load(name, weights_only=True)
    print(type(w).__name__, w.shape, int(w.data.sum()), int(w.scales.sum()))
w = pickle.load(open("w.pickle", "rb"))
print(type(w).__name__, w.shape, int(w.data.sum()), int(w.scales.sum()))
"""
    path = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    line = f"MXTensor {w.shape} {int(w.data.sum())} {int(w.scales.sum())}"
    assert done.stdout.splitlines() == [line] * 3


def _send(queue: Any, back: Any) -> None:
    w = queue.get()
    w.scales.add_(1)  # the memory is shared
    back.put((w.shape, w.prepared, int(w.data.sum()), mxgemm.quantize(torch.ones(2, 64))))
    queue.get()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_gets_it_through_a_queue(method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=_send, args=(queue, back), daemon=True)
    process.start()
    w = mxgemm.quantize(spread(N, K))
    before = w.scales.clone()
    queue.put(w)
    shape, prepared, total, made = back.get(timeout=120)
    assert (shape, prepared, total) == (w.shape, None, int(w.data.sum()))
    assert torch.equal(w.scales, before + 1)
    assert made.dequantize().eq(1).all()
    queue.put(None)
    process.join(60)
    assert process.exitcode == 0


class Crafted:
    """Pickles to any call and state."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def test_every_mutant_of_what_a_pickle_says_is_refused() -> None:
    refused, u8 = 0, torch.uint8
    for w in weights()[:7]:
        _, good = copyreg.dispatch_table[MXTensor](w)
        same(saved.load(*good), w)
        d, s, fmt, shape = good[:4]
        pools: list[list[Any]] = [
            [d.float(), d[:-1], d[..., :-1], d.flatten()[:1], d.unsqueeze(0), d.view(torch.int8), d.to("meta"), None, 3,
             d.numpy(), "data", [d], torch.cat([d, d]), torch.zeros((), dtype=u8), d.to_sparse()],
            [s.float(), s[:-1], s[..., :-1], s.flatten()[:1], s.unsqueeze(0), s.view(torch.int8), s.to("meta"), None, 3,
             s.numpy(), "scales", [s], torch.cat([s, s]), torch.zeros((), dtype=u8), s.to_sparse()],
            ["e3m2", "", None, 2, E2M1, "E2M1", ["e2m1"], "e4m3" if fmt == "e2m1" else "e2m1", b"e2m1"],
            [shape[:-1], (*shape, 32), (*shape[:-1], shape[-1] + 32), (shape[0] + 16, *shape[1:]), list(shape), None,
             64, (), tuple(map(float, shape)), (*shape[:-1], -shape[-1]), shape[::-1], tuple(map(str, shape)), "shape",
             tuple(map(np.int64, shape)), (shape[0] + 2**70, *shape[1:])],
            ["typo", None, 0, "shuffled", ["row_major"], Layout()],
            ["typo", None, 0, "preshuffled", ["row_major"], Layout()],
        ]  # fmt: skip
        mutants = [(i, x) for i, pool in enumerate(pools) for x in pool]
        for index, value in mutants:
            arguments = [*good[:index], value, *good[index + 1 :]]
            with pytest.raises(REFUSED):
                pickle.loads(pickle.dumps(Crafted(saved.load, tuple(arguments))))
            refused += 1
        draw = random.Random(len(shape))
        for (i, x), (j, y) in draw.sample(list(itertools.combinations(mutants, 2)), 40):
            twice = list(good)
            twice[i], twice[j] = x, y
            with pytest.raises(REFUSED):
                pickle.loads(pickle.dumps(Crafted(saved.load, tuple(twice))))
            refused += 1
        for number in range(len(good)):  # a field is missing, or something is smuggled in
            with pytest.raises(REFUSED):
                pickle.loads(pickle.dumps(Crafted(saved.load, good[:number])))
        for extra in (None, w, (d,), "fp8_fold"):
            with pytest.raises(REFUSED):
                pickle.loads(pickle.dumps(Crafted(saved.load, (*good, extra))))
        refused += len(good) + 4
    assert refused > 700


def test_fields_cannot_be_set_past_the_checks() -> None:
    p = mxgemm.quantize(spread(N, K, octaves=3)).prepare("sm_90")
    fields = {name: getattr(p, name) for name in ("data", "scales", "shape", "prepared")}
    for state in (fields, {**fields, "scales": p.scales[:1]}, {"prepared": None}, (None, fields), [p.data, p.scales]):
        crafted = Crafted(copyreg._reconstructor, (MXTensor, object, None), state)  # type: ignore[attr-defined]
        with pytest.raises(pickle.UnpicklingError, match=r"MXTensor: got fields .* want a call of mxgemm\.saved\.load"):
            pickle.loads(pickle.dumps(crafted))


def test_formats_and_layouts_come_back_as_themselves_or_not_at_all() -> None:
    for fmt in FORMATS.values():
        for way in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
            assert way(fmt) is fmt
    with pytest.raises(ValueError, match="format: got 'e3m2'"):
        copy.copy(ElementFormat("e3m2", 28.0, 4, 2, 6, 1))  # type: ignore[arg-type]
    for layout in (Layout(), Layout("preshuffled", "shuffled")):
        assert pickle.loads(pickle.dumps(layout)) == copy.deepcopy(layout) == layout
    with pytest.raises(ValueError, match="weight_layout: got 'x'"):
        pickle.loads(pickle.dumps(Crafted(Layout, ("x", "row_major"))))


def test_a_module_that_holds_one_cannot_take_it_for_a_buffer_or_parameter() -> None:
    w, module = mxgemm.quantize(spread(N, K)), torch.nn.Module()
    with pytest.raises(TypeError, match="MXTensor"):
        module.register_buffer("w", w)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="MXTensor"):
        torch.nn.Parameter(w)  # type: ignore[arg-type]
    module.register_buffer("data", w.data)  # what the docstring recommends
    module.register_buffer("scales", w.scales)
    assert set(through_torch(module.state_dict())) == {"data", "scales"}
    a = spread(3, K, torch.bfloat16)
    assert torch.equal(mxgemm.gemm(a, module.data, module.scales), mxgemm.gemm(a, w))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("legacy", [False, True])
def test_damaged_files_load_as_something_whole_or_not_at_all(legacy: bool) -> None:
    """Bytes of the pickle are changed; what the archive's check of its own does not see reaches ours."""
    draw, outcomes = random.Random(1), Counter[str]()
    for w in weights()[:7]:
        file = io.BytesIO()
        torch.save(w, file, _use_new_zipfile_serialization=not legacy)
        whole = file.getvalue()
        for _ in range(60):
            try:
                got = torch.load(io.BytesIO(mutated(whole, draw, legacy)), weights_only=True)
            except Exception as error:
                outcomes[type(error).__name__] += 1
                continue
            outcomes["loaded"] += 1
            if isinstance(got, MXTensor):
                got.check()
                assert got.dequantize().shape == got.shape
    assert sum(outcomes.values()) == 420
    assert set(outcomes) <= {
        *("loaded", "UnpicklingError", "TypeError", "ValueError", "RuntimeError", "EOFError", "KeyError", "IndexError"),
        *(
            "AttributeError",
            "AssertionError",
            "error",
            "UnicodeDecodeError",
            "OverflowError",
            "MemoryError",
            "BadZipFile",
        ),
    }, outcomes
    assert outcomes["UnpicklingError"] > 50


def mutated(whole: bytes, draw: random.Random, legacy: bool) -> bytes:
    if legacy:
        return flip(whole, draw, 600)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, flip(content, draw, len(content)) if name.endswith("data.pkl") else content)
    return out.getvalue()


def flip(content: bytes, draw: random.Random, most: int) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(min(most, len(changed)))
        kind = draw.random()
        if kind < 0.6:
            changed[at] = draw.choice((changed[at] ^ 1 << draw.randrange(8), draw.randrange(256)))
        elif kind < 0.8:
            del changed[at : at + draw.randint(1, 4)]
        else:
            changed[at:at] = draw.randbytes(draw.randint(1, 4))
    return bytes(changed)
