"""An operation's C function as C and C++ text: its parameters, and what they are assigned to.

One statement for the native shim and for CK tile's sources, made of the operation's data.
"""

from __future__ import annotations

from typing import Final

from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.operation import POINTERS, SIZES, Operation
from mxgemm.dispatcher.schemes import SCALE_BYTES

_OPERANDS: Final = {
    "a": "OPERAND_A",
    "b": "OPERAND_B",
    "a_scales": "OPERAND_A_SCALES",
    "b_scales": "OPERAND_B_SCALES",
    "c": "OPERAND_C",
}
_EXTENT_TYPES: Final = (
    "enum size { SIZE_ONE, SIZE_M, SIZE_N, SIZE_K };",
    "struct extent { const char *name; enum size size; int64_t per; int counts; };",
)
_NO_EXTENT: Final = "{0, SIZE_ONE, 1, 0}"
NO_EXTENTS: Final = "\n".join((*_EXTENT_TYPES, f"static const struct extent extents[1] = {{ {_NO_EXTENT} }};"))
"""What takes the place of the interface where a call states no strides or counts."""
_SIZE_NAMES: Final = {None: "SIZE_ONE", "m": "SIZE_M", "n": "SIZE_N", "k": "SIZE_K"}


def interface(config: KernelConfig, operation: Operation) -> list[str]:
    """Return the lines of a header that define a configuration's C interface.

    ``PARAMETERS``: of the function; ``ASSIGN(p)``: the statements that put them into a ``struct problem``;
    ``ENTRY_POINTS(X)``: ``X(name, name_device)`` for each name; ``extents``: what each stride and count must be.
    """
    stated = [name for name in operation.parameters if name not in POINTERS and name not in SIZES]
    extents = config.extents()
    assigned = [_assignment(name, stated) for name in operation.parameters]
    rows = [
        f'{{"{name}", {_SIZE_NAMES[extents[name].size]}, {extents[name].per}, {int(not name.startswith("stride"))}}}'
        for name in stated
    ]
    points = [f"X({name}, {name}_device)" for name in (operation.symbol, *operation.aliases)]
    return [
        f"#define PARAMETERS {', '.join(_parameter(name, operation.size_type) for name in operation.parameters)}",
        f"#define ASSIGN(p) {' '.join(assigned)}",
        f"#define ENTRY_POINTS(X) {' '.join(points)}",
        *_EXTENT_TYPES,
        f"enum {{ EXTENTS = {len(rows)} }};",
        f"static const struct extent extents[EXTENTS + 1] = {{ {', '.join([*rows, _NO_EXTENT])} }};",
    ]


def scale_macros(config: KernelConfig) -> list[str]:
    """Return the lines that say how many bytes scales have and how far each reaches; 0 bytes: there are none."""
    lines = []
    for letter, scale in (("A", config.scheme.a_scale), ("B", config.scheme.b_scale)):
        values = (SCALE_BYTES[scale.dtype], scale.rows, scale.k) if scale else (0, 1, 0)
        names = (f"{letter}_SCALE_BYTES", f"{letter}_SCALE_ROWS", f"{letter}_SCALE_K")
        lines += [f"#define {name} {value}" for name, value in zip(names, values, strict=True)]
    return lines


def _parameter(name: str, size_type: str) -> str:
    if name in POINTERS:
        kind = "uint8_t" if name.startswith("scale_") else "void"
        return f"{kind} *{name}" if name == "C" else f"const {kind} *{name}"
    return f"int {name}" if name == "k_batch" else f"{size_type} {name}"


def _assignment(name: str, stated: list[str]) -> str:
    if name in POINTERS:
        return f"p.at[{_OPERANDS[POINTERS[name]]}] = (void *)(uintptr_t){name};"
    if name in SIZES:
        return f"p.{SIZES[name]} = {name};"
    return f"p.stated[{stated.index(name)}] = {name};"
