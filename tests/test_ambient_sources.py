"""The package's sources leave nothing to settings of torch's: factories name dtype and device, products are guarded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mxgemm

PACKAGE = Path(mxgemm.__file__).parent
FACTORIES = {
    "empty", "zeros", "ones", "full", "arange", "tensor", "rand", "randn", "randint", "eye", "linspace",
    "empty_strided", "scalar_tensor", "as_tensor", "logspace", "randperm",
}  # fmt: skip
PRODUCTS = {
    "mm", "matmul", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "einsum", "linear", "chain_matmul",
    "multi_dot", "conv1d", "conv2d", "tensordot", "vecdot", "_scaled_mm", "_int_mm", "inner", "bilinear",
}  # fmt: skip
NUMPY_PRODUCTS = {"mx/oracle.py", "mx/accuracy.py", "dispatcher/schemes.py", "experts/oracle.py"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("triton/kernels/"):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def factory_faults(tree: ast.Module) -> list[str]:
    """Factory calls that leave the dtype or the device to torch's defaults."""
    return [
        f"{node.lineno}: torch.{node.func.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in FACTORIES
        and not {"dtype", "device"} <= {keyword.arg for keyword in node.keywords}
    ]


def product_faults(tree: ast.AST, guarded: bool = False) -> list[str]:
    """Matrix products outside of ``with plain_products(...)``."""
    found: list[str] = []
    if isinstance(tree, ast.With):
        guarded = guarded or any("plain_products" in ast.unparse(item.context_expr) for item in tree.items)
    if isinstance(tree, (ast.BinOp, ast.AugAssign)) and isinstance(tree.op, ast.MatMult) and not guarded:
        found.append(f"{tree.lineno}: @")
    call = tree.func if isinstance(tree, ast.Call) else None
    if isinstance(call, ast.Attribute) and call.attr in PRODUCTS and not guarded:
        found += [] if ast.unparse(call.value) in ("reference", "oracle") else [f"{call.lineno}: {call.attr}"]
    for child in ast.iter_child_nodes(tree):
        found += product_faults(child, guarded)
    return found


def test_every_factory_names_dtype_and_device() -> None:
    assert {name: faults for name, tree in sources() if (faults := factory_faults(tree))} == {}


def test_every_product_is_guarded() -> None:
    """But numpy's, the submission's own check, and the benchmark's, which times torch as its user has set it."""
    exempt = ("measure/", "submission/")
    found = {
        name: faults
        for name, tree in sources()
        if name not in NUMPY_PRODUCTS and not name.startswith(exempt) and (faults := product_faults(tree))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text, factories, products",
    [
        ("torch.empty(3, device=d)", 1, 0),
        ("torch.full((2,), 1.0, dtype=t)", 1, 0),
        ("torch.zeros(3, dtype=t, device=d)", 0, 0),
        ("x = a @ b", 0, 1),
        ("with plain_products('cpu'):\n    x = a @ b", 0, 0),
        ("with torch.no_grad():\n    torch.mm(a, b, out=c)", 0, 1),
        ("a.matmul(b)", 0, 1),
    ],
)
def test_the_checks_of_the_sources_see(text: str, factories: int, products: int) -> None:
    tree = ast.parse(text)
    assert (len(factory_faults(tree)), len(product_faults(tree))) == (factories, products)
