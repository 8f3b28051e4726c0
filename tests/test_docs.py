"""The documents say what is true: tables, code and commands are taken from them and tried."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

import normlens
from normlens.loading.embedded import EMBEDDED
from normlens.models import supported_families

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]
#: The tool that writes the tables of families.
FAMILIES = runpy.run_path(str(ROOT / "tools" / "write_family_pages.py"))
needs_minilm = pytest.mark.skipif(
    not EMBEDDED["minilm"].installed,
    reason="the embedded model is not installed (normlens models --install minilm)",
)


def fences(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), flags=re.S)


def family_rows(table: str) -> dict[str, str]:
    """Every model type of a table of families, with the rest of its row."""
    rows = (line.strip("| ").split(" | ", 1) for line in table.strip().splitlines()[2:])
    return {name: rest for types, rest in rows for name in types.split(", ")}


def generated_part(path: Path) -> str:
    part = re.search(r"<!-- families:.*?-->\n(.*?)<!-- /families -->", path.read_text(), re.S)
    assert part is not None
    return part[1]


def test_the_family_tables_say_what_is_true():
    """Each table is made when the site is built; the page has a place for each."""
    places = re.findall(r"^```\{family-table\} (\w+)$", (ROOT / "docs/models.md").read_text(), re.M)
    assert places == list(FAMILIES["TABLES"])
    traits, kinds, refused = (family_rows(FAMILIES["TABLES"][name]()) for name in places)
    assert {f"`{name}`" for name in supported_families()} >= set(traits) == set(kinds)
    assert {"`bert`", "`gpt2`", "`llama`"} <= set(traits)
    assert "`mamba`" in refused
    assert not set(traits) & set(refused)


def test_the_readme_counts_no_family_too_many():
    found, generated = (
        generated_part(ROOT / "README.md").split(),
        FAMILIES["readme_lines"]().split(),
    )
    numbers = [[int(word) for word in words if word.isdigit()] for words in (found, generated)]
    # all, kinds of layer, each attention, and what else is read
    assert len(numbers[0]) == len(numbers[1]) == 7
    assert all(few <= many for few, many in zip(*numbers, strict=True))
    assert {word for word in found if word.startswith("`")} <= {
        word for word in generated if word.startswith("`")
    }


@pytest.fixture
def run(smollm2, minilm, tmp_path, monkeypatch):
    """Run the Python of a page in an empty folder, with models that are loaded already."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    loaded = {"smollm2": smollm2, "minilm": minilm}
    monkeypatch.setattr(normlens, "load", lambda name: loaded[name])

    def execute(page: str, first: int | None = None, times: int = 1) -> dict[str, Any]:
        names: dict[str, Any] = {"normlens": normlens}
        for code in times * fences(ROOT / page, "python")[:first]:
            exec(compile(code, page, "exec"), names)
        return names

    return execute


def test_the_readme_code_runs(run, tmp_path):
    names = run("README.md", times=2)  # as readers do
    assert isinstance(names["why"], normlens.Explanation)
    assert names["cited"].top(1)["document"].tolist() == [1]
    assert isinstance(names["maps"], normlens.Maps)
    assert (tmp_path / "soap.safetensors").is_file()


def test_the_code_that_explains_runs(run):
    pytest.importorskip("xarray")
    assert isinstance(run("docs/explain.md", first=1)["why"], normlens.Explanation)


def test_the_code_that_cites_runs(run, tmp_path):
    cited = run("docs/cite.md")["cited"]
    assert "Lima" in cited.answer
    assert cited.top(1)["document"].tolist() == [1]
    assert (tmp_path / "cite.html").is_file()


@pytest.mark.filterwarnings("ignore:.*which is another token")
def test_the_code_that_ranks_runs(run, tmp_path):
    names = run("docs/rank.md")
    assert names["ranking"].places == [0, 1, 2]
    assert names["above"].by_query()["difference"].sum() == pytest.approx(names["above"].value)
    assert normlens.open(tmp_path / "score.safetensors") == names["score"]
    assert len(names["reranked"]) == 3
    assert (tmp_path / "ranking.html").is_file()


def test_the_adapter_examples_register(monkeypatch):
    from normlens.models import base

    monkeypatch.setattr(base, "_ADAPTERS", dict(base._ADAPTERS))
    names: dict[str, Any] = {}
    for code in fences(ROOT / "docs" / "adapters.md", "python"):
        exec(compile(code, "adapters.md", "exec"), names)
    assert {"llama_without_a_gate", "my_mixture"} <= set(supported_families())
    body = SimpleNamespace(config=None, final_norm=nn.LayerNorm(4))
    whole = SimpleNamespace(transform=nn.Linear(4, 4), lm_head=nn.Linear(4, 9))
    head = names["MyModelWithHead"](body).head(whole)
    assert [step.symbol for step in (*head.body, *head.steps)] == ["LN", "DENSE", "ACT"]
    assert head.output.weight.shape == (4, 9)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_have_the_options_that_are_shown(path):
    import typer

    from normlens.cli import app

    commands = typer.main.get_command(app).commands
    for block in fences(path, "sh"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] != ["normlens"]:
                continue
            command = commands[words[1]]
            known = {option for parameter in command.params for option in parameter.opts}
            for word in words[2:]:
                if word.startswith("--"):
                    assert word in known, f"{word} in: {line}"


def test_the_architecture_names_files_that_exist():
    """Files by their path in the package; behind a comma, also by their name alone."""
    package = Path(normlens.__file__).parent
    text = (ROOT / "docs" / "adapters.md").read_text().split("## How the code is laid out")[1]
    paths = set(re.findall(r"[\w/]+\.py\b", text))
    assert len(paths) > 20
    for path in paths:
        named = "/" not in path and [*package.rglob(path)]
        assert (package / path).is_file() or (ROOT / path).is_file() or named, path
    folders = set(re.findall(r"`([\w/]+/)`", text))
    assert {"families/", "frozen/"} <= folders
    for folder in folders:
        assert (package / folder).is_dir(), folder


def test_the_code_about_images_and_sound_runs():
    pytest.importorskip("matplotlib")
    seeing, towers, hearing = fences(ROOT / "docs" / "models.md", "python")
    small = seeing.replace("num_hidden_layers=12", "num_hidden_layers=4")
    names: dict[str, Any] = {}
    exec(compile(small, "models.md", "exec"), names)
    maps, why = names["maps"], names["why"]
    assert (maps.tokens[:3], maps.grid.rows, maps.grid.columns) == (["[CLS]", "1,1", "1,2"], 14, 14)
    assert why.contributions.sum() + why.remainder == pytest.approx(why.value, rel=1e-4)
    exec(compile(towers, "models.md", "exec"), {})
    exec(compile(hearing, "models.md", "exec"), names)
    assert names["maps"].tokens[:3] == ["0.00 s", "0.02 s", "0.04 s"]


@needs_minilm
def test_the_code_about_input_tokens_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"lens": normlens.load("minilm", device="cpu"), "text": "She teaches soap opera."}
    codes = fences(ROOT / "docs" / "explain.md", "python")
    for code in (code for code in codes if 'origin="input"' in code or "lens.cosine" in code):
        exec(compile(code.replace(", pair.to_xarray()", ""), "explain.md", "exec"), names)
    assert names["maps"].origin == "input"
    assert normlens.open(tmp_path / "pair.safetensors") == names["pair"]
