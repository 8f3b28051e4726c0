"""Every study goes on where it was stopped, with the same tables, and refuses other options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import run_examples as examples
import torch
from heads import headed
from pair_examples import fast_tokenizer, with_head
from quick_reports import drawing_nothing
from run_examples import assert_same_tables

import normlens
from normlens.corpus import Run
from normlens.corpus.runs.progress import Progress
from normlens.errors import NormLensError
from normlens.studies.papers.reproduce import reproduce

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")


class Interrupting(Progress):
    """Stops a run after its first sequences."""

    def advance(self, sequences: int, failures: int) -> None:
        raise KeyboardInterrupt


class Study(NamedTuple):
    """One study on small data."""

    do: Callable[..., Any]
    options: dict[str, Any]
    other: dict[str, Any]  # an option with which the same folder is refused
    page: str


CPU: dict[str, Any] = {"execution": {"device": "cpu"}, "resamples": 100}
STUDIES = {
    "evaluate": Study(
        normlens.evaluate,
        {"methods": "random,first-token,normlens", "device": "cpu", "block_size": 2},
        {"methods": "random"},
        "report/report.html",
    ),
    "ablate": Study(
        normlens.ablate,
        {"components": "FF,LN", "kinds": "zero,mean,left-out", "draws": 2, **CPU},
        {"draws": 3},
        "report.html",
    ),
    "align": Study(
        normlens.align,
        {"scopes": "all", "device": "cpu", "block_size": 1},
        {"ways": "input"},
        "links/CROSS-N.layer0.input.txt",
    ),
    "reproduce": Study(
        lambda *given, **options: reproduce("all", *given, **options),
        CPU,
        {"seed": 1},
        "report.html",
    ),
}


def inputs(name: str, folder: Path) -> tuple[Path, Path]:
    """A tiny model of the right kind, and data."""
    model, data = folder / "model", folder / "data.txt"
    if name == "align":
        with_head("bart").save_pretrained(model)
        fast_tokenizer().save_pretrained(model)
        data.write_text("the house ||| la maison\ngreen house ||| la maison verte\nstop ||| .\n")
        return model, data
    headed("gpt2", "CausalLM", torch.float32).save_pretrained(model)
    examples.tiny_tokenizer().save_pretrained(model)
    lines = examples.corpus_file(data, 14).read_text().splitlines()
    data.write_text("".join(f"{line} ab\n" for line in lines))
    return model, data


def tables(folder: Path) -> dict[str, Run]:
    """The runs of a study, by their folders."""
    found = sorted(path.parent for path in folder.rglob("manifest.json"))
    return {str(path.relative_to(folder)): Run.open(path) for path in found}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_was_stopped_goes_on(name, tmp_path):
    study, given = STUDIES[name], inputs(name, tmp_path)
    whole, out = tmp_path / "whole", tmp_path / "stopped"
    with drawing_nothing():
        study.do(*given, whole, **study.options)
        with pytest.raises(KeyboardInterrupt):
            study.do(*given, out, progress=Interrupting(), **study.options)
        assert not (out / study.page).exists()
        with pytest.raises(NormLensError) as refused:
            study.do(*given, out, **{**study.options, **study.other})
        assert "\n" not in str(refused.value)
        study.do(*given, out, **study.options)
    assert (out / study.page).is_file()
    expected, found = tables(whole), tables(out)
    assert expected.keys() == found.keys() != set()
    for run, resumed in found.items():
        assert resumed.check().sound
        assert_same_tables(resumed, expected[run], tolerance=0)
