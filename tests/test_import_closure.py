"""Which sources decide what a module does, for every way in which Python imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxgemm.import_closure import sources_of

TREE = {
    "__init__.py": "from mxgemm.everything import x\n",
    "everything.py": "",
    "top.py": "import os\nimport mxgemm.a.plain\nfrom mxgemm.a import named, deep\nfrom mxgemm import sibling\n",
    "sibling.py": "def f():\n    from .a.relative import thing\n",
    "a/__init__.py": "from mxgemm.a.export import named\n",
    "a/plain.py": "if True:\n    from mxgemm.a.star import *\n",
    "a/star.py": "from . import beside\nfrom .. import up\n",
    "a/beside.py": "",
    "a/export.py": "named = 1\n",
    "a/deep/__init__.py": "from .own import y\n",
    "a/deep/own.py": "import mxgemm.top\n",
    "a/relative.py": "",
    "up.py": "import mxgemmlike.other\n",
    "unrelated.py": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "mxgemm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "mxgemm"


def test_every_form_of_an_import_is_followed(root: Path) -> None:
    found = sources_of(["mxgemm.top"], root)
    assert set(found) == set(TREE) - {"__init__.py", "everything.py", "unrelated.py"}
    assert found["a/export.py"] == b"named = 1\n"


def test_a_package_counts_where_something_is_imported_from_it(root: Path) -> None:
    assert set(sources_of(["mxgemm.a.plain"], root)) == {"a/plain.py", "a/star.py", "a/beside.py", "up.py"}
    assert set(sources_of(["mxgemm"], root)) == {"__init__.py", "everything.py"}


def test_a_module_that_is_none(root: Path) -> None:
    with pytest.raises(ValueError, match="module: got 'mxgemm.none'"):
        sources_of(["mxgemm.none"], root)
    (root / "unrelated.py").write_text("import mxgemm.gone\n")
    with pytest.raises(ValueError, match="module: got 'mxgemm.gone'"):
        sources_of(["mxgemm.unrelated"], root)
