"""Run the emulator's table against AMD's CDNA4 pseudo-code and print where they agree.

    python -m gfx950emu.pcode str_pcode.py --commit a9069c17 --save bench/results/gfx950_pcode.json

The file is tinygrad's tinygrad/runtime/autogen/amd/cdna/str_pcode.py, made from AMD's machine-readable ISA and its
document. Any file of lines ``Group.NAME: 'text',`` will do. Exit status 1: something differs that is not expected.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gfx950emu.errors import MissingTool
from gfx950emu.pcode.compare import Outcome, compare, read_texts, reason_of
from gfx950emu.pcode.expected import DIFFERENCES

SOURCE = {"repository": "tinygrad/tinygrad", "path": "tinygrad/runtime/autogen/amd/cdna/str_pcode.py"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gfx950emu.pcode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=4, help="sets of random operands for each text")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="instructions, without their encoding's suffix")
    parser.add_argument("--commit", default="", help="of the file's repository, for the record")
    parser.add_argument("--save", type=Path, metavar="FILE.json", help="write what was found")
    parsed = parser.parse_args(arguments)
    try:
        texts = read_texts(parsed.file)
        if not texts:
            raise ValueError(f"{parsed.file} holds no lines like Group.NAME: 'text',")
        outcome = compare(texts, parsed.rounds, set(parsed.only) if parsed.only else None)
    except (MissingTool, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(report(outcome)))
    if parsed.save:
        digest = hashlib.sha256(parsed.file.read_bytes()).hexdigest()
        parsed.save.write_text(json.dumps(record(outcome, parsed.commit, digest), indent=1) + "\n", encoding="utf-8")
    return int(bool(outcome.unexpected))


def report(outcome: Outcome) -> Iterator[str]:
    """Yield lines for a reader."""
    yield (
        f"{len(outcome.instructions)} instructions in {outcome.texts} texts, {outcome.results} results compared; "
        f"{outcome.refused} texts are refused by the emulator"
    )
    for name, found in sorted(outcome.differences.items()):
        yield f"{name}: {outcome.counts[name]} differ; {reason_of(name, DIFFERENCES) or 'NOT EXPECTED'}"
        yield from (f"  {line}" for line in found)
    for reason, count in Counter(outcome.skipped.values()).most_common():
        yield f"not compared, {count} names: {reason}"
    agree = sorted(outcome.instructions - set(outcome.differences))
    yield f"equal: {' '.join(agree)}"


def record(outcome: Outcome, commit: str, digest: str) -> dict[str, Any]:
    """Return what is kept of a comparison."""
    return {
        "kind": "mxgemm-gfx950-pseudo-code",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "source": {**SOURCE, "commit": commit, "sha256": digest},
        "instructions": len(outcome.instructions),
        "texts": outcome.texts,
        "results": outcome.results,
        "refused": outcome.refused,
        "differences": {
            name: {"results": outcome.counts[name], "reason": reason_of(name, DIFFERENCES)}
            for name in sorted(outcome.differences)
        },
        "skipped": dict(Counter(outcome.skipped.values()).most_common()),
    }


if __name__ == "__main__":
    sys.exit(main())
