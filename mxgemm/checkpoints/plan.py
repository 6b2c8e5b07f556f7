"""What a conversion will write: for every parameter the tensors that it becomes, known before any is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.checkpoints import gguf
from mxgemm.checkpoints.base import Entry, Format
from mxgemm.checkpoints.dense import Dense
from mxgemm.checkpoints.gpt_oss import from_dense, to_dense
from mxgemm.checkpoints.reader import Checkpoint
from mxgemm.checkpoints.scheme import Given, Scheme, completed
from mxgemm.checkpoints.writer import Spec, nbytes
from mxgemm.mx.formats import BLOCK, FORMATS, ActivationFormat, ScaleRounding
from mxgemm.mx.tensor import FLOAT_DTYPES, MXTensor
from mxgemm.quantize import quantize

_FLOAT_NAMES: Final = tuple(str(dtype).removeprefix("torch.") for dtype in FLOAT_DTYPES)


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for.

    Attributes:
        target: the format to write.
        quantize: patterns of names of float tensors that become MXFP4 on the way.
        a_format: of activations of such layers.
        scale_rounding: of such weights, and of such activations.
        dtype: of the model, where a format has to say it and the source does not.
        shard_bytes: at most in one file, unless one parameter is larger.
    """

    target: Format
    quantize: tuple[str, ...] = ()
    a_format: ActivationFormat | None = None
    scale_rounding: ScaleRounding | None = None
    dtype: str | None = None
    shard_bytes: int = 2 * 10**9


@dataclass(frozen=True, slots=True)
class Step:
    """One parameter on its way.

    Attributes:
        entry: where it comes from.
        how: "copy" as it is, "recode" to another format's bytes, "quantize", "dequantize"; these two also of a "stack",
            whose dense parameter is the transpose.
        specs: of the stored tensors that it becomes.
        scheme: of activations, where it is an MX weight afterwards.
        ggml: ggml's type of the stored tensor, where it is bytes.
    """

    entry: Entry
    how: str
    specs: tuple[Spec, ...]
    scheme: Scheme | None = None
    ggml: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of what it becomes."""
        return sum(nbytes(dtype, shape) for _, dtype, shape in self.specs)


@dataclass(frozen=True)
class Plan:
    """A conversion.

    Attributes:
        source: what is read.
        order: what is asked for.
        shards: the steps of each file, those of larger elements first.
    """

    source: Checkpoint
    order: Order
    shards: tuple[tuple[Step, ...], ...]

    @property
    def steps(self) -> Iterator[Step]:
        """Every step."""
        return (step for shard in self.shards for step in shard)

    @property
    def schemes(self) -> dict[str, Scheme]:
        """What activations of every MX weight are rounded to, by name."""
        return {step.entry.name: step.scheme for step in self.steps if step.scheme is not None}

    @property
    def plain(self) -> list[str]:
        """Names of the other tensors."""
        return [step.entry.name for step in self.steps if step.scheme is None]

    @property
    def dtype(self) -> str | None:
        """The model's dtype: as asked for, as ``config.json`` says, or of most tensors that are not MX."""
        config: dict[str, Any] = self.source.config or {}
        text = config.get("text_config")
        for holder in (config, text if isinstance(text, dict) else {}):
            said = self.order.dtype or holder.get("dtype") or holder.get("torch_dtype")
            if said in _FLOAT_NAMES:
                return str(said)
        counts = Counter(step.entry.type for step in self.steps if step.entry.type in _FLOAT_NAMES)
        return counts.most_common(1)[0][0] if counts else None


def plan(source: Checkpoint, order: Order) -> Plan:
    """Decide what becomes of every parameter, and which file it goes to.

    Raises:
        ValueError: a parameter that the target cannot hold, a pattern that fits nothing, or something that the target
            has to say and nobody does.
    """
    steps = [_step(source, entry, order) for entry in source.entries.values()]
    if not steps:
        raise ValueError(f"source: got {source.path}, which holds no tensor")
    for pattern in order.quantize:
        if not any(step.how.startswith("quantize") and fnmatchcase(step.entry.name, pattern) for step in steps):
            raise ValueError(f"quantize: {pattern!r} fits no tensor of floating point in {source.path}")
    names = Counter(name for step in steps for name, _, _ in step.specs)
    for name, count in names.items():
        if count > 1:
            raise ValueError(f"{name}: would be written {count} times in {order.target.name}; want another format")
    limit = sum(step.nbytes for step in steps) + 1 if order.target.name == "gguf" else order.shard_bytes
    made = Plan(source, order, tuple(_ordered(shard) for shard in _shards(steps, limit)))
    if made.schemes:  # what it cannot say, it says now
        order.target.quantization_config(made.schemes, [])
        order.target.metadata(made.schemes, [], made.dtype)
    return made


def tensors(step: Step, source: Checkpoint, order: Order) -> Iterator[tuple[str, Tensor]]:
    """Read a parameter and yield what it becomes, in the order of the step's specs.

    Raises:
        FileError, ValueError, TypeError: as reading and encoding it.
    """
    name = step.entry.name
    if step.how == "copy":
        yield name, source.stored(name)
    elif step.how == "dequantize":
        yield name, source.dequantize(name)
    elif step.how == "dequantize stack":
        yield name, to_dense(_weight(source, name))
    else:
        yield from order.target.encode(name, _made(step, source, order)).items()


def _made(step: Step, source: Checkpoint, order: Order) -> MXTensor:
    rounding = order.scale_rounding or "even"
    if step.how == "quantize stack":
        return from_dense(_dense(source, step.entry), scale_rounding=rounding)
    if step.how == "quantize":
        return quantize(_dense(source, step.entry), scale_rounding=rounding)
    return _weight(source, step.entry.name).row_major()


def _weight(source: Checkpoint, name: str) -> MXTensor:
    found = source[name]
    assert isinstance(found, MXTensor)
    return found


def _dense(source: Checkpoint, entry: Entry) -> Tensor:
    if entry.kind == "tensor" and entry.type in _FLOAT_NAMES:
        value = source[entry.name]
        assert isinstance(value, Tensor)
        return value
    return source.dequantize(entry.name, torch.float32)


def _step(source: Checkpoint, entry: Entry, order: Order) -> Step:
    wanted = any(fnmatchcase(entry.name, pattern) for pattern in order.quantize)
    is_ggml = source.format == "gguf"
    if wanted and entry.kind != "mx" and (entry.type in _FLOAT_NAMES or (entry.kind == "foreign" and is_ggml)):
        return _quantized(entry, order)
    if entry.kind == "mx":
        return _recoded(entry, order, stacks=source.format == "gpt-oss")
    stored = source.description(entry.name)
    if entry.kind == "tensor":
        if order.target.name == "gguf":
            gguf_dtype(entry.name, stored.dtype)
        return Step(entry, "copy", ((entry.name, stored.dtype, stored.shape),))
    if is_ggml and order.target.name == "gguf":
        return Step(entry, "copy", ((entry.name, stored.dtype, stored.shape),), ggml=stored.type)
    if is_ggml and isinstance(order.target, Dense):
        return Step(entry, "dequantize", ((entry.name, torch.bfloat16, entry.shape),))
    raise ValueError(
        f"{entry.name}: is {entry.note}, which {order.target.name} files do not hold; want a pattern of quantize= for "
        "what shall become MXFP4, or the target dense"
        if is_ggml
        else f"{entry.name}: is {entry.note}, which is not MX and is not converted"
    )


def _quantized(entry: Entry, order: Order) -> Step:
    shape, how = entry.shape, "quantize"
    if len(shape) == 3 and order.target.name == "gpt-oss":  # whose dense model has stacks the other way round
        shape, how = (shape[0], shape[2], shape[1]), "quantize stack"
    if len(shape) != (2 if how == "quantize" else 3) or shape[-1] % BLOCK:
        want = "[N, K]" if how == "quantize" else "[E, K, N]"
        raise ValueError(
            f"{entry.name}: got shape {list(entry.shape)}, want {want}, K % {BLOCK} == 0, to quantise it along K"
        )
    rounding = None if order.a_format == "bf16" else order.scale_rounding or "even"
    scheme = Scheme(order.a_format, rounding, "nothing (quantised now)")
    if order.a_format is None and order.target.name in ("gpt-oss", "gguf", "dense"):
        scheme = Scheme("bf16")  # files of which say nothing else
    return Step(entry, how, _encoded(entry.name, shape, "e2m1", order), scheme, _bytes_of(order))


def _recoded(entry: Entry, order: Order, *, stacks: bool) -> Step:
    if isinstance(order.target, Dense):
        shape, how = entry.shape, "dequantize"
        if stacks and len(shape) == 3:
            shape, how = (shape[0], shape[2], shape[1]), "dequantize stack"
        return Step(entry, how, ((entry.name, torch.bfloat16, shape),))
    specs = _encoded(entry.name, entry.shape, entry.type, order)
    scheme = completed(entry.scheme, Given(order.a_format, order.scale_rounding))
    return Step(entry, "recode", specs, scheme, _bytes_of(order))


def _bytes_of(order: Order) -> str | None:
    return gguf.TYPE if order.target.name == "gguf" else None


def gguf_dtype(name: str, dtype: torch.dtype) -> None:
    """Refuse a dtype that GGUF has not.

    Raises:
        ValueError: it has not.
    """
    if dtype not in gguf.PLAIN_TYPES:
        raise ValueError(f"{name}: got {dtype}, want one that GGUF has: {', '.join(gguf.PLAIN_TYPES.values())}")


def _encoded(name: str, shape: tuple[int, ...], type: str, order: Order) -> tuple[Spec, ...]:
    """Return what the target stores for a weight, asked of one without data."""
    fmt = FORMATS[type]
    data = torch.empty((*shape[:-1], shape[-1] // fmt.pack), dtype=torch.uint8, device="meta")
    scales = torch.empty((*shape[:-1], shape[-1] // BLOCK), dtype=torch.uint8, device="meta")
    made = order.target.encode(name, MXTensor.wrap(data, scales, format=fmt.name))
    return tuple((key, tensor.dtype, tuple(tensor.shape)) for key, tensor in made.items())


def _shards(steps: Sequence[Step], limit: int) -> Iterator[list[Step]]:
    shard: list[Step] = []
    size = 0
    for step in steps:
        if shard and size + step.nbytes > limit:
            yield shard
            shard, size = [], 0
        shard.append(step)
        size += step.nbytes
    if shard:
        yield shard


def _ordered(shard: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(sorted(shard, key=lambda step: -max(dtype.itemsize for _, dtype, _ in step.specs)))
