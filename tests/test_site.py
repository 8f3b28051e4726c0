"""The documentation site, as far as it can be checked without building it (`make docs` does)."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import pytest

import normlens

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: Folders of the site that are made when it is built.
MADE = ("_build", "errors")
PAGES = sorted(
    path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0] not in (*MADE, "images")
)
NOTEBOOKS = [path for path in PAGES if "file_format: mystnb" in path.read_text()]
#: Modules beside `normlens` itself that the documents tell users to import from.
DOCUMENTED = {
    "normlens.layers",
    "normlens.corpus.measures",
    "normlens.models.base",
    "normlens.studies.papers.reproduce",
}
tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(path: Path) -> str:
    return path.relative_to(DOCS).with_suffix("").as_posix()


def fences(text: str, name: str) -> list[tuple[str, str]]:
    """Every directive of a name: its argument and its body without options."""
    pattern = rf"^```\{{{name}\}}[ ]*([^\n]*)\n(.*?)^```$"
    return [
        (found[1].strip(), re.sub(r"\A(:[^\n]*\n)+", "", found[2]))
        for found in re.finditer(pattern, text, re.M | re.S)
    ]


def cells(path: Path) -> list[str]:
    """The code of a notebook's cells, without what belongs to IPython alone."""
    code = [body for _, body in fences(path.read_text(), "code-cell")]
    return ["" if cell.startswith(("%%", "!")) else cell for cell in code]


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", ""))
    return text.replace(" ", "-")


def anchors(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def test_there_are_pages_and_notebooks_but_not_too_many():
    tutorials = [path for path in PAGES if path.parent.name == "tutorials"]
    assert 5 <= len(tutorials) <= 7
    assert 15 <= len(PAGES) - len(tutorials) <= 20
    # Sphinx writes pages of its own under these names.
    assert not {"search", "genindex", "py-modindex"} & {path.stem for path in PAGES}
    assert len(NOTEBOOKS) >= 8
    assert not [path for path in DOCS.rglob("*.ipynb") if "_build" not in path.parts]


def test_every_page_is_in_a_table_of_contents():
    entries = [
        line.strip()
        for path in PAGES
        for _, body in fences(path.read_text(), "toctree")
        for line in body.splitlines()
        if line.strip()
    ]
    assert len(entries) == len(set(entries))
    pages = {name_of(path) for path in PAGES}
    patterns = [entry for entry in entries if "*" in entry]
    assert "errors/*" in patterns
    matched = {page for page in pages for pattern in patterns if fnmatch(page, pattern)}
    assert matched | {entry for entry in entries if entry not in patterns} == pages - {"index"}


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=lambda path: path.stem)
def test_links_lead_to_files_and_headings(path):
    text = re.sub(r"^```(?!\{).*?^```$", "", path.read_text(), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if target.startswith(("http", "mailto")):
            continue
        page = path if not target else (path.parent / target).resolve()
        assert page.exists(), target
        if anchor:
            assert anchor in anchors(page), f"{target}#{anchor}"
    for target in re.findall(r"\{doc\}`([^`]+)`", text):
        assert (path.parent / f"{target}.md").is_file(), target


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_notebook_is_text_that_parses(path):
    text = path.read_text()
    assert re.match(r"---\nfile_format: mystnb\nkernelspec:\n  name: python3\n(.*\n)*?---\n", text)
    code = cells(path)
    assert code
    for cell in code:
        ast.parse(cell)


def used_names(tree: ast.AST) -> set[str]:
    """Names of the package that code uses: ``normlens.load``, ``normlens.models.base.linear``."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "normlens":
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("normlens.")}
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "normlens"
        ):
            names.add(f"normlens.{node.attr}")
    return names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_notebook_uses_the_public_interface(path):
    for cell in cells(path):
        for name in used_names(ast.parse(cell)):
            module, _, attribute = name.rpartition(".")
            assert module in DOCUMENTED or name in {f"normlens.{n}" for n in normlens.__all__}, name
            assert hasattr(import_module(module), attribute), name
        private = [
            node.attr
            for node in ast.walk(ast.parse(cell))
            if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr)
        ]
        assert not private


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_viewers_are_written_by_the_page_that_shows_them(path):
    shown = {name for name, _ in fences(path.read_text(), "viewer")}
    written = {
        node.args[0].value
        for cell in cells(path)
        for node in ast.walk(ast.parse(cell))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", None) == "to_html"
        and isinstance(node.args[0], ast.Constant)
    }
    assert shown <= written


def test_viewers_of_two_pages_have_two_names():
    shown = [name for path in PAGES for name, _ in fences(path.read_text(), "viewer")]
    assert len(shown) == len(set(shown))
    assert "soap.html" in {name for name, _ in fences((DOCS / "index.md").read_text(), "viewer")}


def test_the_reference_names_everything_that_is_exported():
    text = (DOCS / "api.md").read_text()
    every = re.findall(r"auto\w+:: normlens\.(?:\w+\.)*(\w+)", text)
    named = set(every)
    assert len(every) == len(named)
    assert set(normlens.__all__) - {"__version__"} <= named
    for name, _ in fences(text, "option-fields"):
        module, _, kind = name.rpartition(".")
        assert hasattr(import_module(module), kind)
    options = {name for name, _ in fences(text, "option-fields")}
    assert {"normlens.options.AnalysisOptions", "normlens.options.LoadOptions"} <= options


def test_all_extras_are_named():
    extras = set(project()["project"]["optional-dependencies"])
    (sentence,) = re.findall(r"^Extras: (.*?)\n\n", (ROOT / "README.md").read_text(), re.M | re.S)
    assert extras <= set(re.findall(r"`([\w]+)`", sentence))


def test_pages_load_nothing_from_elsewhere():
    """Pictures and frames of the documents lie beside them, so that the site works from disk."""
    for path in PAGES:
        assert not re.search(r"!\[[^\]]*\]\(https?:", path.read_text()), path.name
        assert not re.search(r"<(script|iframe|img)\b", path.read_text()), path.name
