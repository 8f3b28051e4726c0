"""Where modules import each other: at the top, unless there is a reason, and never in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import normlens

ROOT = Path(normlens.__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "normlens").rglob("*.py")
}
#: Pairs in which a function imports what imports its module, and why.
CIRCLES = {
    # A method that makes its own class again by computing (which needs torch).
    ("normlens.corpus.runs.results", "normlens.corpus.runs.runs"),
    # The kernels need Triton, which is optional.
    ("normlens.frozen.stage", "normlens.gpu.feed_forward"),
    ("normlens.frozen.stage", "normlens.gpu.rows"),
    ("normlens.frozen.stage", "normlens.gpu.stage"),
    ("normlens.frozen.parts", "normlens.gpu.rows"),
    ("normlens.frozen.activations", "normlens.gpu.rows"),
    ("normlens.frozen.norm_maps", "normlens.gpu.rows"),
}


def imports(node: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Modules of the package that code imports when it runs, and whether a function does it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        names = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            whole = [f"{child.module}.{alias.name}" for alias in child.names]
            names = [name if name in FILES else str(child.module) for name in whole]
        yield from ((name, inside) for name in names if name in FILES)
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imports(child, inside or function)


@cache
def imports_of(module: str) -> frozenset[tuple[str, bool]]:
    return frozenset(imports(ast.parse(FILES[module].read_text("utf-8"))))


def brought_along(module: str) -> set[str]:
    """Every module that importing this one imports."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [target for target, inside in imports_of(name) if not inside]
            waiting += [name.rpartition(".")[0]] if "." in name else []
    return seen


def test_function_level_imports_hide_no_cycle() -> None:
    found = {
        (module, target)
        for module in FILES
        for target, inside in imports_of(module)
        if inside and module in brought_along(target)
    }
    assert found <= CIRCLES
    assert len(FILES) > 100  # the package was read


def test_only_what_needs_torch_imports_it() -> None:
    """Rooms that read, draw and report do so without torch."""
    light = [
        "normlens.studies.ablation.options",
        "normlens.studies.ablation.report",
        "normlens.cli",
        "normlens.corpus.measures",
        "normlens.corpus.runs.results",
        "normlens.results.exports",
        "normlens.figures",
        "normlens.results.maps",
        "normlens.studies.faithfulness.report",
        "normlens.studies.alignment.report",
        "normlens.studies.reports.compare",
        "normlens.studies.papers.reporting",
        "normlens.viewer",
    ]
    for module in light:
        for name in brought_along(module):
            tree = ast.parse(FILES[name].read_text("utf-8"))
            roots = {
                alias.partition(".")[0]
                for node in tree.body
                for alias in (
                    [str(node.module)]
                    if isinstance(node, ast.ImportFrom)
                    else [a.name for a in node.names]
                    if isinstance(node, ast.Import)
                    else []
                )
            }
            assert not roots & {"torch", "transformers", "duckdb", "matplotlib", "jinja2", "ray"}, (
                f"{module} brings {name}"
            )


def test_reports_import_no_experiments() -> None:
    """A report is written without importing any room whose results it shows."""
    for module in (name for name in FILES if name.startswith("normlens.studies.reports")):
        studies = [name.split(".") for name in brought_along(module) if ".studies." in name]
        rooms = {path[2] for path in studies}
        assert "reports" in rooms
        assert not rooms & {"papers", "faithfulness", "ablation", "alignment"}, module
