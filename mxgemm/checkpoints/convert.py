"""``mxgemm.checkpoints.convert``: a checkpoint in another format, a shard at a time, whole or not there.

Work is done in ``<target>.partial``: every finished file is whole, ``mxgemm-convert.json`` says what it is of, and the
same call goes on where one was killed. The folder gets its name when all is on the disk.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from mxgemm import fields, files
from mxgemm._version import __version__
from mxgemm.arguments import as_int, as_path, one_of
from mxgemm.checkpoints import gguf, work
from mxgemm.checkpoints.plan import Order, Plan, Step, plan, tensors
from mxgemm.checkpoints.reader import FORMATS, Checkpoint
from mxgemm.checkpoints.scheme import check_given
from mxgemm.checkpoints.store import CONFIG, INDEX, PICKLES, SINGLE
from mxgemm.checkpoints.writer import ggml_type, write_gguf, write_safetensors
from mxgemm.files import FileError
from mxgemm.mx.formats import ActivationFormat, ScaleRounding

RECORD: Final = "mxgemm-convert.json"
KIND: Final = "mxgemm-convert"
VERSION: Final = 1
SHARD_BYTES: Final = 2 * 10**9
_RECORD: Final = fields.record(
    {"source": fields.anything, "order": fields.anything, "files": fields.anything}, closed=False
)
_WEIGHTS: Final = (".safetensors", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", *PICKLES)
_MODEL: Final = "model.gguf"

Watcher = Callable[[str, int, int], None]
"""Told the name of each parameter, and how many files of how many are done, as they are."""


def convert(
    source: Checkpoint,
    target: str | os.PathLike[str],
    format: str,
    *,
    quantize: tuple[str, ...] | list[str] = (),
    a_format: ActivationFormat | None = None,
    scale_rounding: ScaleRounding | None = None,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    watch: Watcher | None = None,
) -> Path:
    """Write a checkpoint in another format; one parameter is in memory at a time.

    Bytes of MX weights are carried over, not quantised again. ``config.json`` is the source's with another
    ``quantization_config``; other files of the folder that are no weights are copied.

    Args:
        source: from :func:`open`, whose arguments say what its files do not.
        target: a folder that does not exist or is empty; a new file for "gguf".
        format: one of :data:`FORMATS`.
        quantize: patterns (``*_proj.weight``) of names of ``[N, K]`` tensors of floating point, or of ggml's types,
            that become MXFP4 on the way. All others stay as they are.
        a_format: of activations of the layers that are quantised now, and of those of which the source says nothing.
        scale_rounding: of their scales, and of the weights that are quantised now, there "even" by default.
        dtype: the model's ("bfloat16"), for a format that says it, where the source does not.
        shard_bytes: at most in one file.
        watch: is told how far it is.

    Returns:
        ``target``.

    Raises:
        FileError: the source is damaged; the target is there already, or is being made by another process, or of
            another conversion; the disk is full. What was finished is kept, and the same call goes on from there.
        ValueError: an argument is wrong or needed, or the format cannot hold the model.
    """
    path = as_path("target", target).absolute()
    check_given(a_format, scale_rounding, None)
    limit = as_int("shard_bytes", shard_bytes)
    if limit < 1:
        raise ValueError(f"shard_bytes: got {limit}, want at least 1")
    chosen = FORMATS[one_of("format", format, FORMATS)]
    patterns = (quantize,) if isinstance(quantize, str) else tuple(quantize)
    made = plan(source, Order(chosen, patterns, a_format, scale_rounding, dtype, limit))
    _check_target(path, source, chosen.name)
    folder = work.folder_of(path)
    with work.held(folder):
        _begin(folder, made)
        _write(folder, made, watch)
        _finish(folder, path, made)
    return path


def _check_target(path: Path, source: Checkpoint, format: str) -> None:
    if format == "gguf" and path.suffix != gguf.SUFFIX:
        raise ValueError(f"target: got {str(path)!r}, want a name that ends in {gguf.SUFFIX} for gguf")
    taken = path.exists() and not (path.is_dir() and format != "gguf" and not any(path.iterdir()))
    if taken or path.is_symlink():
        raise FileError(f"{path}: is there already; want a name that is free{'' if format == 'gguf' else ' or empty'}")
    home = source.path if source.path.is_dir() else source.path.parent
    if source.path.is_dir() and home.resolve() in path.resolve().parents:
        raise FileError(f"{path}: lies in {home}, which is read; want another place")


def _record(made: Plan) -> dict[str, Any]:
    order = made.order
    return {
        "kind": KIND,
        "version": VERSION,
        "source": [_file(path) for path in made.source.files],
        "order": {
            **{"format": order.target.name, "quantize": list(order.quantize), "a_format": order.a_format},
            **{"scale_rounding": order.scale_rounding, "dtype": made.dtype, "shard_bytes": order.shard_bytes},
            "schemes": sorted({f"{scheme.a_format} {scheme.scale_rounding}" for scheme in made.schemes.values()}),
        },
        "files": [name for name, _ in _named(made)],
        "mxgemm": __version__,
    }


def _file(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"name": path.name, "bytes": status.st_size, "modified": str(status.st_mtime_ns)}


def _begin(folder: Path, made: Plan) -> None:
    """Find out whether a folder is of this very conversion and the disk is large enough; mark an empty folder."""
    record, path = _record(made), folder / RECORD
    if path.exists():
        found = files.read_json(path)
        fields.document(KIND, VERSION)(found, str(path))
        _RECORD(found, str(path))
        if found != record:
            changed = [key for key in record if found.get(key) != record[key]]
            raise FileError(f"{folder}: is of another conversion ({', '.join(changed)}); remove it to start anew")
    elif any(folder.iterdir()):
        raise FileError(f"{folder}: has files and no {RECORD}; remove it, or choose another name")
    done = sum(path.stat().st_size for path in folder.iterdir())
    wanted = sum(step.nbytes for step in made.steps) - done
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise FileError(f"{folder}: needs {_size(wanted)} more, and the disk has {_size(free)} free")
    try:
        _put(path, files.json_text(record).encode())
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror or error})") from error


def _write(folder: Path, made: Plan, watch: Watcher | None) -> None:
    named = _named(made)
    for done, (name, shard) in enumerate(named):
        path = folder / name
        if not path.exists():  # else it is whole: a file has its name once it is
            try:
                _write_shard(path, shard, made, watch, (done, len(named)))
            except OSError as error:
                raise FileError(
                    f"{path}: cannot be written ({_reason(error, folder)}); {done} of {len(named)} files are done, "
                    "and the same command goes on from there"
                ) from error
        if watch:
            watch(name, done + 1, len(named))


def _write_shard(
    path: Path, shard: tuple[Step, ...], made: Plan, watch: Watcher | None, position: tuple[int, int]
) -> None:
    def one(step: Step) -> Iterator[tuple[str, Tensor]]:
        if watch:
            watch(step.entry.name, *position)
        return tensors(step, made.source, made.order)

    contents = chain.from_iterable(map(one, shard))
    if made.order.target.name == "gguf":
        specs = [(spec, ggml_type(spec[1], step.ggml)) for step in shard for spec in step.specs]
        write_gguf(path, specs, contents, made.source.fields, _architecture(made))
    else:
        metadata = made.order.target.metadata(made.schemes, made.plain, made.dtype)  # of all files, in each
        write_safetensors(path, [spec for step in shard for spec in step.specs], contents, metadata)


def _finish(folder: Path, path: Path, made: Plan) -> None:
    try:
        if [_file(file) for file in made.source.files] != files.read_json(folder / RECORD)["source"]:
            raise FileError(f"{made.source.path}: was changed while it was read; remove {folder} to start anew")
        if made.order.target.name == "gguf":
            work.finish(folder / _MODEL, path)
            shutil.rmtree(folder)
            return
        if len(made.shards) > 1:
            where = {spec[0]: name for name, shard in _named(made) for step in shard for spec in step.specs}
            total = sum(step.nbytes for step in made.steps)
            _put(folder / INDEX, _json({"metadata": {"total_size": total}, "weight_map": where}))
        _copy_others(folder, made)
        config = {key: value for key, value in (made.source.config or {}).items() if key != "compression_config"}
        config.pop("quantization_config", None)
        if isinstance(config.get("text_config"), dict):
            config["text_config"] = {k: v for k, v in config["text_config"].items() if k != "quantization_config"}
        said = made.order.target.quantization_config(made.schemes, _modules(made)) if made.schemes else None
        _put(folder / CONFIG, _json({**config, "quantization_config": said} if said else config))
        work.finish(folder, path)
    except OSError as error:
        raise FileError(
            f"{folder}: cannot be finished ({_reason(error, folder)}); the same command goes on from there"
        ) from error


def _copy_others(folder: Path, made: Plan) -> None:
    """Copy what lies beside the weights and is none: the tokeniser, its configuration, licences."""
    source = made.source.path
    if not source.is_dir():
        return
    for path in sorted(source.iterdir()):
        known = path.name in (CONFIG, INDEX, RECORD) or path.name.startswith(".") or path.suffix in _WEIGHTS
        if path.is_file() and not known and not path.name.endswith(".index.json"):
            work.copy_whole(path, folder / path.name)


def _modules(made: Plan) -> list[str]:
    """Return the modules whose weights are matrices and not MX: they are to be left alone."""
    plain = [step.entry for step in made.steps if step.scheme is None]
    return [entry.name.removesuffix(".weight") for entry in plain if len(entry.shape) > 1 and "." in entry.name]


def _named(made: Plan) -> list[tuple[str, tuple[Step, ...]]]:
    count = len(made.shards)
    if made.order.target.name == "gguf":
        return [(_MODEL, shard) for shard in made.shards]
    if count == 1:
        return [(SINGLE, made.shards[0])]
    return [(f"model-{i:05}-of-{count:05}.safetensors", shard) for i, shard in enumerate(made.shards, 1)]


def _architecture(made: Plan) -> str:
    named = (made.source.config or {}).get("model_type")
    return named if isinstance(named, str) else "unknown"


def _put(path: Path, data: bytes) -> None:
    with work.written_whole(path) as (file, _):
        file.write(data)


def _json(document: Any) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()


def _reason(error: OSError, folder: Path) -> str:
    """Say why; numpy's writer knows no more than that it wrote too little."""
    return error.strerror or f"{error}; the disk has {_size(shutil.disk_usage(folder).free)} free"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
