"""The count that `make lint` compares with the cap."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def size_module():
    spec = importlib.util.spec_from_file_location("size", ROOT / "tools" / "size.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docstrings_comments_and_layout_do_not_count() -> None:
    source = '"""D."""\n\n# why\ndef f(\n    x,\n):\n    """D\n    of f."""\n    return x  # so\n'
    assert tuple(size_module().size_of(source)) == (4, 9, 1)


def test_a_string_that_is_no_docstring_counts_with_all_its_lines() -> None:
    assert size_module().size_of('x = """a\nb\nc"""\n').lines == 3


def test_only_what_exceeds_the_cap_is_named() -> None:
    module = size_module()
    total = module.Size(lines=11, tokens=50, files=3)
    assert module.excess(total, {"lines": 11, "tokens": 50, "files": 3}) == []
    assert module.excess(total, {"lines": 10, "files": 2}) == [
        "11 lines (cap 10)",
        "3 files (cap 2)",
    ]


def test_every_module_of_the_package_is_counted() -> None:
    package = ROOT / "src" / "normlens"
    rooms = size_module().sizes_by_room(package)
    assert sum(size.files for size in rooms.values()) == len(list(package.rglob("*.py")))
