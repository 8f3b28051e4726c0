"""Count the package's code lines, tokens and files; fail above the cap in pyproject.toml.

    python tools/size.py            # one line per room, then the total beside the cap
    python tools/size.py --brief    # the total alone

A code line holds a token that is neither comment, docstring nor layout. Tokens are counted
because long lines must win nothing.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


class Size(NamedTuple):
    """Code lines, tokens and files of some modules."""

    lines: int = 0
    tokens: int = 0
    files: int = 0

    def plus(self, other: Size) -> Size:
        return Size(*(a + b for a, b in zip(self, other, strict=True)))

    def __str__(self) -> str:
        return f"{self.lines:7,d} code lines {self.tokens:9,d} tokens {self.files:4d} files"


def docstrings(tree: ast.Module) -> set[tuple[int, int]]:
    """Where docstrings begin: (line, column)."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    owners = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    firsts = [node.body[0] for node in owners if ast.get_docstring(node, clean=False) is not None]
    return {(first.lineno, first.col_offset) for first in firsts}


def size_of(text: str) -> Size:
    """The size of one module's source."""
    skipped, lines, tokens = docstrings(ast.parse(text)), set[int](), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and token.start not in skipped:
            tokens += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    return Size(len(lines), tokens, 1)


def sizes_by_room(package: Path) -> dict[str, Size]:
    """The size of every folder of the package, and of the modules at its top."""
    rooms: dict[str, Size] = defaultdict(Size)
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).parts
        room = inside[0] if len(inside) > 1 else "(top)"
        rooms[room] = rooms[room].plus(size_of(path.read_text(encoding="utf-8")))
    return rooms


def excess(total: Size, cap: dict[str, int]) -> list[str]:
    """What is above the cap, in words."""
    return [
        f"{getattr(total, what):,} {what} (cap {most:,})"
        for what, most in cap.items()
        if getattr(total, what) > most
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brief", action="store_true", help="the total alone")
    brief = parser.parse_args().brief
    rooms = sizes_by_room(ROOT / "src" / "normlens")
    cap = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["normlens"]["size"]
    total = Size()
    for room, size in sorted(rooms.items(), key=lambda item: -item[1].lines):
        total = total.plus(size)
        if not brief:
            print(f"{room:14s} {size}")
    print(f"{'normlens':14s} {total}   cap: {', '.join(f'{v:,} {k}' for k, v in cap.items())}")
    if over := excess(total, cap):
        print(f"the package is too large: {'; '.join(over)}", file=sys.stderr)
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
