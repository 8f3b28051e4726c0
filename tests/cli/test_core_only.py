"""Every command on a machine that has NormLens without any extra."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import core_only
import pytest
import transformers
import typer
from test_loading import save_tiny

from normlens.cli import app
from normlens.errors import EXTRAS, check_installed, extra_for
from normlens.loading.embedded import EMBEDDED

TEXT = "the cats sat on a mat"
COMMANDS = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
#: Distributions of modules that are called otherwise; Matplotlib brings Pillow along.
DISTRIBUTIONS = {"PIL": "matplotlib", "Pillow": "matplotlib"}
RUN = ("--data", "sample", "--limit", "2")

#: Command lines that need an extra, and the modules that they lack.
REFUSED: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "map picture": (("map", TEXT, "--model", "MODEL", "--out", "m.png"), {"matplotlib"}),
    "map image": (("map", "--image", "i.png", "--model", "MODEL"), {"PIL"}),
    "map image picture": (
        ("map", "--image", "i.png", "--model", "MODEL", "--out", "m.svg"),
        {"PIL", "matplotlib"},
    ),
    "explain": (("explain", TEXT, "--model", "MODEL", "--out", "m.pdf"), {"matplotlib"}),
    "cite": (
        ("cite", "-q", TEXT, "--sources", "a.txt", "--model", "MODEL", "--out", "m.png"),
        {"matplotlib"},
    ),
    "cosine": (("cosine", TEXT, TEXT, "--model", "MODEL", "--out", "m.png"), {"matplotlib"}),
    "serve": (("serve", "--port", "0", "--model", "MODEL"), {"fastapi", "uvicorn"}),
    "run ray": (("run", "--model", "MODEL", *RUN, "--engine", "ray", "--out", "r"), {"ray"}),
    "evaluate": (("evaluate", "--model", "MODEL", *RUN, "--out", "e"), {"duckdb", "matplotlib"}),
    "evaluate gradients": (
        ("evaluate", "--model", "MODEL", *RUN, "--methods", "integrated-gradients", "--out", "e"),
        {"duckdb", "matplotlib", "captum"},
    ),
    "align": (("reproduce", "align", "--model", "MODEL", *RUN, "--out", "a"), {"duckdb"}),
    "query": (("query", "nowhere", "SELECT 1"), {"duckdb"}),
    "reproduce": (
        ("reproduce", "all", "--model", "MODEL", *RUN, "--out", "p"),
        {"duckdb", "matplotlib"},
    ),
    "reproduce evaluate": (
        ("reproduce", "ff,evaluate", "--model", "MODEL", *RUN, "--engine", "ray", "--out", "p"),
        {"duckdb", "matplotlib", "ray"},
    ),
    "ablate": (
        ("reproduce", "ablate", "--model", "MODEL", *RUN, "--out", "b"),
        {"duckdb", "matplotlib"},
    ),
    "report": (("reproduce", "report", "nowhere"), {"duckdb", "matplotlib"}),
    "compare": (("reproduce", "compare", "nowhere", "elsewhere"), {"duckdb", "matplotlib"}),
}
if EMBEDDED["smollm2"].installed:
    REFUSED["explain default"] = (("explain", TEXT), {"gguf", "accelerate"})
    REFUSED["run embedded"] = (("run", "-m", "smollm2", *RUN, "-o", "r"), {"gguf", "accelerate"})

#: Command lines that work without any extra; MAPS and RUN are files of earlier ones.
WORKING: dict[str, tuple[str, ...]] = {
    "map": ("map", TEXT, "--model", "MODEL", "--out", "maps.safetensors"),
    "map page": ("map", TEXT, "--model", "MODEL", "--out", "maps.html"),
    "explain": ("explain", TEXT, "--model", "HEADED"),
    "cosine": ("cosine", TEXT, "a cat", "--model", "MODEL"),
    "score": ("score", TEXT, "a cat", "--model", "MODEL"),
    "rank": ("rank", TEXT, "a cat", "a dog", "--model", "MODEL", "--out", "rank.html"),
    "view": ("view", "MAPS", "--out", "page.html"),
    "models": ("models", "--json"),
    "installation": ("check",),
    "estimate": ("map", "--model", "MODEL", "--estimate", "8"),
    "run": ("run", "--model", "MODEL", *RUN, "--out", "run"),
    "status": ("status", "MADE"),
    "check": ("check", "MADE"),
    "query": ("query", "MADE"),
    "help": ("help", "glossary"),
}


def test_every_command_is_tried():
    tried = {words[0] for words in WORKING.values()} | {words[0] for words, _ in REFUSED.values()}
    assert tried == COMMANDS


def test_extras_bring_what_pyproject_says():
    core, extras = core_only.declared()
    assert set(EXTRAS) == set(extras) - {"dev", "docs"}  # for those who work on NormLens
    for extra, modules in EXTRAS.items():
        assert {DISTRIBUTIONS.get(name, name) for name in modules} == core_only.in_extra(extra)
    assert not {"matplotlib", "duckdb"} & core_only.closure(core)


def test_the_smallest_extra_is_named():
    assert extra_for(["matplotlib"]) == "viz"
    assert extra_for(["matplotlib"], "reproduce") == "reproduce"
    assert extra_for(["duckdb", "captum"], "reproduce") == "evaluate"
    assert extra_for(["gguf", "matplotlib", "duckdb"]) == "reproduce,gguf"
    check_installed()


def run(commands: dict[str, tuple[str, ...]], base: Path) -> dict[str, dict[str, Any]]:
    """Run commands in one process that sees the core alone, each in a new folder of its own."""
    listed = []
    for kind, words in commands.items():
        folder = base / kind.replace(" ", "-")
        folder.mkdir()
        listed.append((str(folder), words))
    done = subprocess.run(
        [sys.executable, str(Path(core_only.__file__)), "--each"],
        input=json.dumps(listed),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    folders = [Path(folder) for folder, _ in listed]
    return {
        kind: {**result, "folder": folder}
        for kind, folder, result in zip(commands, folders, results, strict=True)
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("core") / "tiny")


@pytest.fixture(scope="module")
def refused(model, tmp_path_factory):
    commands = {
        kind: tuple(str(model) if word == "MODEL" else word for word in words)
        for kind, (words, _) in REFUSED.items()
    }
    return run(commands, tmp_path_factory.mktemp("refused"))


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_missing_is_said_before_anything_is_done(kind, refused):
    lacking, done = REFUSED[kind][1], refused[kind]
    assert (done["status"], done["out"]) == (2, ""), done
    line = done["err"]
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert not done["torch"]  # without it nothing can have been computed
    assert list(done["folder"].iterdir()) == []
    (named,) = re.findall(r"pip install 'normlens\[([\w,]+)\]'", line)
    brought = set().union(*map(core_only.in_extra, named.split(",")))
    assert {DISTRIBUTIONS.get(name, name) for name in lacking} <= brought
    # A cluster beside an evaluation is two extras; everything else is one.
    assert ("," in named) == (kind == "reproduce evaluate")
    for name in lacking:
        assert {"PIL": "pillow"}.get(name, name) in line.lower()


@pytest.fixture(scope="module")
def working(model, tmp_path_factory):
    base = tmp_path_factory.mktemp("working")
    headed = save_tiny(tmp_path_factory.mktemp("core") / "headed", "gpt2")
    config = transformers.AutoConfig.from_pretrained(headed)
    transformers.GPT2LMHeadModel(config).save_pretrained(headed)
    made = {
        "MODEL": str(model),
        "HEADED": str(headed),
        "MAPS": str(base / "map" / "maps.safetensors"),
        "MADE": str(base / "run" / "run"),
    }
    commands = {
        kind: tuple(made.get(word, word) for word in words) for kind, words in WORKING.items()
    }
    return run(commands, base)


@pytest.mark.parametrize("kind", WORKING)
def test_what_needs_no_extra_works(kind, working):
    assert working[kind]["status"] == 0, working[kind]["err"]
