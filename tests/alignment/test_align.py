"""``normlens align`` and ``normlens.align``: links, files, error rates, resuming, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from pair_examples import fast_tokenizer, with_head
from shell import Shell
from tokenizers import processors

import normlens
from normlens.corpus.runs.folder import AllFailedError, RunError
from normlens.errors import InputError
from normlens.inputs import encode
from normlens.studies.alignment.gold import SUMS, error_rates
from normlens.studies.alignment.links import pharaoh, word_links

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
PAIRS = [
    (["the", "house", "is", "small"], ["la", "maison", "est", "petite"]),
    (["don't", "stop", "."], ["verte", "."]),
    (["green"], ["la", "maison"]),
    (["the", "green", "house"], ["la", "maison", "verte"]),
]
GOLD = ["1-1 2-2 3p3 4-4", "1p1 2-1 3-2", "1-1 1p2", "1-1 2-3 3-2"]  # words from 1
SURE = [{(0, 0), (1, 1), (3, 3)}, {(1, 0), (2, 1)}, {(0, 0)}, {(0, 0), (1, 2), (2, 1)}]
POSSIBLE = [SURE[0] | {(2, 2)}, SURE[1] | {(0, 0)}, SURE[2] | {(0, 1)}, SURE[3]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    with_head("bart").save_pretrained(folder)
    fast_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def lens(checkpoint):
    return normlens.load(checkpoint)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"{' '.join(s)} ||| {' '.join(t)}\n" for s, t in PAIRS))
    return path


@pytest.fixture
def gold(tmp_path):
    path = tmp_path / "pairs.gold"
    path.write_text("\n".join(GOLD) + "\n")
    return path


@pytest.fixture
def shell(capsys):
    return Shell(capsys)


def test_links_are_those_of_the_maps_and_files_have_a_line_per_pair(lens, data, tmp_path):
    run = normlens.align(lens, data, tmp_path / "run", scopes="all")
    maps = [lens.maps(*pair) for pair in PAIRS]
    scopes = [scope for scope in maps[0].scopes if "CROSS" in scope]
    table = run.table("alignment").set_index(["index", "layer", "scope", "way"])["alignment"]
    assert len(table) == len(PAIRS) * 3 * len(scopes) * 2
    for way in ("input", "output"):
        for scope in scopes:
            name = "CROSS-N" if scope.endswith("CROSS-N") else scope
            for layer in range(3):
                links = [pharaoh(word_links(one, scope, layer, way)) for one in maps]
                assert [table[index, layer, name, way] for index in range(4)] == links
                file = tmp_path / "run" / "links" / f"{name}.layer{layer}.{way}.txt"
                assert file.read_text().split("\n") == [*links, ""]
    assert run.table("alignment")["sure"].isna().all()
    assert run.check().sound
    texts = run.table("alignment_texts")
    assert texts["source"].tolist() == [" ".join(source) for source, _ in PAIRS]
    assert texts["completeness"].max() < 1e-4
    with pytest.raises(InputError):
        error_rates(run)


def test_error_rates_by_hand_and_by_sql(lens, data, gold, tmp_path):
    run = normlens.align(lens, data, tmp_path / "run", gold=gold)
    table = error_rates(run, resamples=200).table
    assert list(table["scope"].unique()) == ["CROSS-W", "CROSS-N"]
    assert len(table) == 2 * 2 * 3
    maps = [lens.maps(*pair) for pair in PAIRS]
    by_sql = run.sql(SUMS).set_index(["scope", "way", "layer"])
    for row in table.itertuples():
        links = [set(word_links(one, row.scope, row.layer, row.way)) for one in maps]
        sure = sum(len(a & s) for a, s in zip(links, SURE, strict=True))
        possible = sum(len(a & p) for a, p in zip(links, POSSIBLE, strict=True))
        size = sum(map(len, links))
        assert row.aer == pytest.approx(1 - (sure + possible) / (size + 9))
        assert row.recall == pytest.approx(sure / 9)
        if size:
            assert row.precision == pytest.approx(possible / size)
        assert row.aer_low <= row.aer <= row.aer_high
        assert by_sql.loc[(row.scope, row.way, row.layer), "aer"] == pytest.approx(row.aer)
    assert table.loc[table["best"], "aer"].unique().tolist() == [table["aer"].min()]


def test_single_heads(lens, data, gold, tmp_path):
    every = normlens.align(lens, data, tmp_path / "all", head="all", gold=gold, layers=[1])
    one = normlens.align(lens, data, tmp_path / "one", head=1, layers=1, ways="input")
    rows = every.table("alignment")
    assert set(rows["head"].fillna(-1)) == {-1, 0, 1}
    kept = rows[(rows["head"] == 1) & (rows["way"] == "input")].reset_index(drop=True)
    assert kept["alignment"].equals(one.table("alignment")["alignment"])
    places = lens.maps(*PAIRS[0], heads=True, scopes=["CROSS-W"], layers=[1])
    scores = places.heads["CROSS-N"][0, 1]
    assert len(scores) == len(places.targets)
    assert (tmp_path / "one" / "links" / "CROSS-N.layer1.input.head1.txt").is_file()
    assert len(error_rates(every, resamples=10).table) == 2 * 2 * 3
    with pytest.raises(InputError):
        normlens.align(lens, data, tmp_path / "no", head=1, scopes=["LN3"])
    with pytest.raises(InputError):
        normlens.align(lens, data, tmp_path / "no", head=2)


def test_links_from_contributions_to_logits(lens, data, gold, tmp_path):
    run = normlens.align(lens, data, tmp_path / "run", gold=gold, scopes=["explain", "CROSS-W"])
    rows = run.table("alignment")
    explained = rows[rows["scope"] == "EXPLAIN"]
    assert explained["layer"].isna().all()
    assert set(explained["way"]) == {"output"}
    assert explained["index"].tolist() == list(range(len(PAIRS)))
    for (source, target), written in zip(PAIRS, explained["alignment"], strict=True):
        (pair,) = lens.encode_pairs((source, target))
        answers = lens.explain(source, target=target, token="all")
        links = []
        for j in range(len(target)):
            places = [k for k, word in enumerate(pair.words) if word == j]
            mean = np.mean([answers[k - 1].source.contributions for k in places], axis=0)
            sums = [
                sum(mean[k] for k, word in enumerate(pair.source.words) if word == i)
                for i in range(len(source))
            ]
            special = max(mean[k] for k, word in enumerate(pair.source.words) if word is None)
            if max(sums) >= special:
                links.append((int(np.argmax(sums)), j))
        assert written == pharaoh(links)
    rates = error_rates(run, resamples=20).table
    assert rates.loc[rates["scope"] == "EXPLAIN", "layer"].tolist() == [-1]
    assert (tmp_path / "run" / "links" / "EXPLAIN.output.txt").is_file()


def test_a_generated_target_is_aligned_by_its_words(lens, tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "MOST_GENERATED", 8)
    path = tmp_path / "sources.txt"
    path.write_text("the house\n")
    tokenizer = fast_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    other = normlens.load(with_head("bart"), tokenizer)
    run = normlens.align(other, path, tmp_path / "run")
    texts = run.table("alignment_texts")
    assert texts["generated"].tolist() == [True]
    assert texts["target"].tolist() == [other.maps("the house").text[1]]
    # This model's own target begins otherwise than its tokenizer would write it.
    with pytest.raises(AllFailedError):
        normlens.align(lens, path, tmp_path / "failed")
    gold = tmp_path / "links.gold"
    gold.write_text("0-0\n")
    with pytest.raises(InputError):
        normlens.align(lens, path, tmp_path / "other", gold=gold)


def test_an_alignment_is_not_mixed_with_another(lens, data, gold, tmp_path):
    out = tmp_path / "out"
    normlens.align(lens, data, out, gold=gold)
    for other in ({"scopes": "all"}, {"ways": "input"}, {"head": 0}, {"layers": [0]}):
        with pytest.raises(RunError):
            normlens.align(lens, data, out, **other)
    gold.write_text("\n".join(["1-1", *GOLD[1:]]))
    normlens.run(lens, data, tmp_path / "run", measures="mixing")
    for folder in (out, tmp_path / "run"):
        with pytest.raises(RunError):
            normlens.align(lens, data, folder, gold=gold)


def test_the_command_prints_error_rates(checkpoint, data, gold, shell, tmp_path):
    words = ("reproduce", "align", "-m", checkpoint, "-d", data, "-o", tmp_path / "run", "--quiet")
    out = shell(*words, "--gold", gold, "--scope", "CROSS-N", "--layers", "0,2")
    header, *rows = out.splitlines()
    assert header.split() == ["scope", "way", "layer", "aer", "precision", "recall"]
    assert sorted(row.split()[:3] for row in rows) == [
        ["CROSS-N", way, n] for way in ("input", "output") for n in ("0", "2")
    ]
    assert sum(row.rstrip().endswith("best") for row in rows) in range(1, 5)
    assert shell(*words, "--gold", gold) == out  # done already


def test_bad_options_are_one_line(checkpoint, data, shell, tmp_path):
    out = tmp_path / "run"
    given = ("reproduce", "align", "-m", checkpoint, "-d", data, "-o", out, "--quiet")
    for options in (("--scope", "ATTN-N"), ("--layers", "3"), ("--layers", "last")):
        shell.error(*given, *options)
        assert not (out / "manifest.json").exists()


def test_a_gold_file_that_does_not_fit_is_one_line(checkpoint, data, shell, tmp_path):
    gold, out = tmp_path / "other.gold", tmp_path / "run"
    given = ("reproduce", "align", "-m", checkpoint, "-d", data, "-o", out, "--gold", gold)
    for lines, named in (
        (GOLD[:3], "4 sentence pairs"),
        ([*GOLD[:3], "9-9"], "line 4"),
        (["1-1"] * 4, "gold_first="),
    ):
        gold.write_text("\n".join(lines) + "\n")
        if named == "gold_first=":
            data.write_text("a b ||| c d\n" * 4)
        assert named in shell.error(*given, "--quiet")


def test_a_model_of_one_sequence_aligns_nothing(tiny, data, tmp_path):
    model = normlens.load(tiny("bert"), fast_tokenizer())
    with pytest.raises(InputError):
        normlens.align(model, data, tmp_path / "run")
