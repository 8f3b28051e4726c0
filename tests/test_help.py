"""Pages that are installed with the package, and what refers to them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from one_case import in_one_case

from normlens import errors
from normlens.cli import main
from normlens.cli import tools as pages
from normlens.corpus.runs.folder import RunError
from normlens.errors import NormLensError

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "normlens"
KINDS = [
    kind
    for kind in [*vars(errors).values(), RunError]
    if isinstance(kind, type) and issubclass(kind, NormLensError)
]


@in_one_case("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_error_has_a_page_with_cause_and_cure(kind):
    text = pages.page(kind.__name__)
    assert text.startswith(f"# {kind.__name__}\n\n")
    parts = re.split(r"^## (?:Cause|Cure)$", text, flags=re.M)
    assert len(parts) == 3
    assert all(len(part.split()) > 10 for part in parts[1:])


def test_no_page_is_about_an_error_that_is_gone():
    about = {name for name in pages.topics() if name not in pages.SITE_PAGES}
    assert about == {kind.__name__ for kind in KINDS}


def strings(path: Path) -> list[str]:
    """Texts of a module that are no docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    described = ast.Module | ast.ClassDef | ast.FunctionDef
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, described) and node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    ]


def test_messages_refer_to_pages_that_are_installed():
    topics = {name.lower() for name in pages.topics()}
    referred = set()
    for path in PACKAGE.rglob("*.py"):
        for text in strings(path):
            assert not re.search(r"\bdocs/\w+\.md", text), path
            if path.parent.name != "cli":
                referred |= set(re.findall(r"normlens help (\w+)", text))
    assert {"adapters", "CompletenessError"} <= referred
    assert {name.lower() for name in referred} <= topics
    for name in pages.topics():
        if name not in pages.SITE_PAGES:
            for topic in re.findall(r"normlens help (\w+)", pages.page(name)):
                assert topic.lower() in topics, f"{topic} in {name}"


def test_pages_of_the_site_are_those_that_the_wheel_holds():
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"]["force-include"]
    assert included == {f"docs/{n}.md": f"normlens/help/{n}.md" for n in pages.SITE_PAGES}
    assert set(pages.SITE_PAGES) <= set(pages.topics())


def test_the_command_prints_a_page_and_lists_them(capsys):
    assert main(["help"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in pages.topics())
    assert main(["help", "completenesserror"]) == 0
    assert "## Cure" in capsys.readouterr().out
    assert main(["help", "nothing"]) == 2
    assert "no page about 'nothing'" in capsys.readouterr().err
