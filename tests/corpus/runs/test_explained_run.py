"""A run of explanations: its tables are what the lens says, and it can be stopped and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from run_examples import (
    assert_each_once,
    assert_same_tables,
    corpus_file,
    some_fail,
    tiny_tokenizer,
)

import normlens
from normlens import cli
from normlens.corpus import Run
from normlens.corpus.engines import block_rows
from normlens.errors import InputError, UnsupportedModelError
from normlens.loading.hub import quiet_transformers
from normlens.models.tiny import scramble, tiny_config, tiny_model

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
ASKED = {"target": "a", "contrast": "b"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder with its head."""
    folder = tmp_path_factory.mktemp("model")
    model = transformers.LlamaForCausalLM(tiny_config("llama")).eval()
    scramble(model)
    with quiet_transformers():
        model.save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus_file(tmp_path_factory.mktemp("data") / "lines.txt", 11)


@pytest.fixture(scope="module")
def whole(checkpoint: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return normlens.run(
        checkpoint,
        corpus,
        tmp_path_factory.mktemp("runs") / "whole",
        measures="explanations",
        settings={"explanations": ASKED},
        block_size=3,
    )


def test_tables_are_what_the_lens_says(whole: Run, checkpoint: Path, corpus: Path) -> None:
    lens = normlens.load(checkpoint)
    lines = corpus.read_text().splitlines()
    scores, tokens = whole.table("explanations"), whole.table("explanation_tokens")
    parts, bias = whole.table("explanation_components"), whole.table("explanation_bias")
    assert len(scores) == len(lines)
    for index, line in enumerate(lines):
        why: Any = lens.explain(line, flow=False, **ASKED)
        score = scores[scores["index"] == index].iloc[0]
        assert score.value == pytest.approx(why.value, rel=1e-5, abs=1e-5)
        assert score.target == why.target
        mine = tokens[tokens["index"] == index]
        np.testing.assert_allclose(mine.contribution, why.contributions, atol=1e-5)
        own_bias = bias[bias["index"] == index].value.sum()
        assert mine.contribution.sum() + own_bias == pytest.approx(why.value, abs=1e-4)
        own = parts[parts["index"] == index].groupby("layer").value.sum()
        np.testing.assert_allclose(own, np.nansum(why.components, axis=(1, 2)), atol=1e-4)
        # The first layer's components and all biases are the score.
        assert own[0] + own_bias == pytest.approx(why.value, abs=1e-4)
    assert whole.table("sequences").completeness.max() < 1e-5


def test_it_computes_no_maps(checkpoint, corpus, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("maps were computed")

    monkeypatch.setattr(normlens.Lens, "analyse", refuse)
    run = normlens.run(checkpoint, corpus, tmp_path / "run", measures="explanations", limit=2)
    assert len(run.table("explanations")) == 2


def test_beside_measures_of_maps(checkpoint, corpus, tmp_path):
    measures = "mixing,explanations"
    run = normlens.run(checkpoint, corpus, tmp_path / "run", measures=measures, limit=2)
    assert len(run.table("explanations")) == 2
    assert len(run.table("mixing")) > 0


def test_stopped_and_resumed_is_whole(whole, checkpoint, corpus, tmp_path, monkeypatch):
    out = tmp_path / "run"
    add = block_rows.Gatherer.add
    finished: list[int] = []

    def interrupted(self, prepared, alone):
        if len(finished) == 2:
            raise KeyboardInterrupt
        finished.append(prepared.block.number)
        return add(self, prepared, alone)

    monkeypatch.setattr(block_rows.Gatherer, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        normlens.run(
            checkpoint,
            corpus,
            out,
            measures="explanations",
            settings={"explanations": ASKED},
            block_size=3,
        )
    monkeypatch.setattr(block_rows.Gatherer, "add", add)
    assert not Run.open(out).status().complete
    resumed = normlens.resume(out)
    assert resumed.status().complete
    assert_each_once(resumed)
    assert_same_tables(resumed, whole, tolerance=0)


def test_each_next_token(checkpoint, corpus, tmp_path):
    run = normlens.run(
        checkpoint,
        corpus,
        tmp_path / "run",
        measures="explanations",
        settings={"explanations": {"position": "all"}},
        limit=3,
    )
    lines = corpus.read_text().splitlines()[:3]
    lens = normlens.load(checkpoint)
    for index, line in enumerate(lines):
        several: Any = lens.explain(line, position="all")
        rows = run.table("explanation_tokens")
        rows = rows[rows["index"] == index].sort_values(["read_at", "position"])
        found = rows.contribution.to_numpy().reshape(several.contributions.shape)
        np.testing.assert_allclose(found, several.contributions, atol=1e-5)


def test_the_command_line_runs_and_queries_it(checkpoint, corpus, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["--measures", "explanations", "--set", "explanations.target=a", "--limit", "4", "-q"]
    given = ["run", "-m", str(checkpoint), "-d", str(corpus), "-o", str(out), *words]
    assert cli.main(given) == 0
    capsys.readouterr()
    query = "SELECT count(*) AS n, min(target) AS target FROM explanations"
    assert cli.main(["query", str(out), query, "--csv"]) == 0
    assert capsys.readouterr().out.split() == ["n,target", "4,a"]
    assert cli.main(["run", "--resume", str(out), "-q"]) == 0
    assert cli.main(["check", str(out)]) == 0


def test_a_model_without_a_head_is_refused_before_the_run_begins(corpus, tmp_path):
    lens = normlens.load(tiny_model("bert"), tiny_tokenizer())
    out = tmp_path / "run"
    with pytest.raises((InputError, UnsupportedModelError), match="head"):
        normlens.run(lens, corpus, out, measures="explanations")
    assert not (out / "manifest.json").exists()


@some_fail
def test_a_sequence_that_cannot_be_explained_is_a_failure(checkpoint, tmp_path):
    data = tmp_path / "lines.txt"
    data.write_text("ab\ncd ef\n")
    run = normlens.run(
        checkpoint,
        data,
        tmp_path / "run",
        measures="explanations",
        settings={"explanations": {"position": 5}},
    )
    (failure,) = run.table("failures").to_dict("records")
    assert failure["index"] == 0
    assert "position 5 is out of range" in failure["reason"]
    assert run.table("explanations")["index"].tolist() == [1]
