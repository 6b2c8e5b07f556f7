"""``mxgemm inspect``: what a checkpoint holds, and what its blocks and scales are like."""

from __future__ import annotations

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from mxgemm import checkpoints, files
from mxgemm.checkpoints import Checkpoint
from mxgemm.checkpoints.statistics import KIND, VERSION, blocks_of, describe, summary
from mxgemm.cli.terminal import progress, say, say_table, say_wrapped
from mxgemm.measure import plots
from mxgemm.mx.formats import E8M0_BIAS, E8M0_NAN
from mxgemm.mx.tensor import MXTensor

_BAR: Final = 40
"""Characters of the longest bar."""
_RARE: Final = 0.005
"""Share of the most frequent scale below which a scale has no row."""
_COLUMNS: Final = ("parameter", "n", "type", "shape", "MB", "saturated", "zero", "NaN", "scales 2^")


def run(options: Namespace) -> int:
    """Print what is there, count blocks, and write what was asked for."""
    if options.json:
        files.check_writable(options.json, files.json_mark(KIND), force=options.force)
    try:
        if options.plot:
            plots.check_scales_writable(options.plot, options.path.stem, force=options.force)
        checkpoint = checkpoints.open(
            options.path,
            format=options.source_format,
            scale_bias=int(options.scale_bias) if options.scale_bias else None,
        )
        document = _document(checkpoint, headers=options.headers)
    except ImportError as error:
        raise ValueError(f"inspect: {error}") from error
    say_wrapped(f"{checkpoint.path}: {summary(checkpoint)}", 2)
    rows = [_row(group) for group in _groups(document["parameters"])]
    say_table(_COLUMNS, rows, left=("parameter", "type"), wrapped=("parameter",))
    if not options.headers:
        say_wrapped(_whole(document["parameters"]), 2)
        _say_scales(document["parameters"])
    if options.json:
        files.save_json(options.json, document, KIND, force=options.force)
        say(f"wrote {options.json}")
    if options.plot:
        path = plots.draw_scales(document, options.plot, options.path.stem, force=options.force)
        say(f"wrote {path}" if path else "no picture: there is no MX tensor, or --headers looked at none")
    return 0


def _document(checkpoint: Checkpoint, *, headers: bool) -> dict[str, Any]:
    parameters = []
    with progress(len(checkpoint)) as shown:
        for name, entry in checkpoint.entries.items():
            shown.now(name)
            value = checkpoint[name] if entry.kind == "mx" and not headers else None
            blocks = blocks_of(value) if isinstance(value, MXTensor) else None
            parameters.append(describe(checkpoint, entry, blocks))
    return {
        **{"kind": KIND, "version": VERSION, "date": datetime.now(timezone.utc).isoformat(timespec="seconds")},
        **{"name": checkpoint.path.name, "format": checkpoint.format, "parameters": parameters},
    }


def _groups(parameters: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Put together what differs in the numbers of its name alone: the layers of a model, the experts of a layer."""
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for about in parameters:
        key = re.sub(r"\d+", "*", about["name"]), about["kind"], about["type"], tuple(about["shape"])
        found.setdefault(key, []).append(about)
    return list(found.values())


def _row(group: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    first = group[0]
    name = first["name"] if len(group) == 1 else re.sub(r"\d+", "*", first["name"])
    size = sum(about["bytes"] for about in group) / 1e6
    kind = f"{first['type']} (foreign)" if first["kind"] == "foreign" else first["type"]
    kind += f", {first['layout']}" if first["layout"] else ""
    fixed = name, str(len(group)), kind, " x ".join(map(str, first["shape"])), f"{size:.1f}"
    if "blocks" not in first:
        return (*fixed, "", "", "", "")
    blocks = sum(about["blocks"] for about in group)
    shares = (sum(about[what] for about in group) / max(blocks, 1) for what in ("saturated", "zero", "nan"))
    powers = [int(byte) - E8M0_BIAS for about in group for byte in about["scales"]]
    return (*fixed, *(f"{share:.1%}" for share in shares), f"{min(powers)} .. {max(powers)}" if powers else "")


def _say_scales(parameters: Sequence[Mapping[str, Any]]) -> None:
    """Print the histogram of all scales; what is too rare to be seen is counted together."""
    counts: Counter[int] = Counter()
    for about in parameters:
        counts.update({int(byte): count for byte, count in about.get("scales", {}).items()})
    total, most = sum(counts.values()), max(counts.values(), default=0)
    rows, rare = [], 0
    for byte, count in sorted(counts.items()):
        if count < most * _RARE:
            rare += count
            continue
        name = "NaN" if byte == E8M0_NAN else f"2^{byte - E8M0_BIAS}"
        rows.append((name, str(count), f"{count / total:.1%}", "#" * max(1, round(_BAR * count / most))))
    if rare:
        rows.append(("others", str(rare), f"{rare / total:.2%}", ""))
    if rows:
        say_table(("scale", "blocks", "share", ""), rows, left=("",))


def _whole(parameters: Sequence[Mapping[str, Any]]) -> str:
    counted = [about for about in parameters if "blocks" in about]
    blocks = sum(about["blocks"] for about in counted)
    if not blocks:
        return "no MX tensor"
    named = (("saturated", "an element at the end of the range"), ("zero", "nothing but zeros"), ("nan", "NaN"))
    shares = ", ".join(f"{sum(about[what] for about in counted) / blocks:.2%} with {words}" for what, words in named)
    return f"{blocks} blocks of 32: {shares}"
