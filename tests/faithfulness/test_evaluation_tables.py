"""The tables of an evaluation: every figure can be computed again from rows by SQL."""

from __future__ import annotations

import evaluation_examples as examples

from normlens.studies.faithfulness.protocols import TABLES

RUN_TABLES = {"sequences", "failures"}


def test_every_table_is_there_and_rows_are_whole(classified):
    assert set(classified.tables) == {*TABLES, *RUN_TABLES}
    methods = len(examples.METHODS.split(","))
    counts = classified.sql(
        "SELECT (SELECT count(*) FROM examples) AS examples, "
        "(SELECT sum(tokens) FROM examples) AS tokens, "
        "(SELECT count(*) FROM attributions) AS attributions, "
        "(SELECT count(*) FROM removals) AS removals, "
        "(SELECT count(*) FROM faithfulness) AS faithfulness, "
        "(SELECT count(*) FROM method_passes) AS passes"
    ).iloc[0]
    assert counts["examples"] == examples.N
    assert counts["attributions"] == counts["tokens"] * methods
    assert counts["removals"] == examples.N * methods * (10 + 10 + 5 + 5)
    assert counts["faithfulness"] == examples.N * methods * 4
    assert counts["passes"] == examples.N * methods


def test_accuracy_is_by_the_label(classified, places):
    names = ["bad", "fair", "good"]
    table = classified.table("examples")
    for index, line in enumerate(places.labelled.read_text().splitlines()[1:]):
        label = line.split("\t")[1]
        name = names[int(label)] if label.isdecimal() else label.lower()
        assert table["label"][index] == name
        assert table["target"][index] == names[table["target_id"][index]]
        assert table["correct"][index] == (name == table["target"][index])
    removals = classified.sql(
        "SELECT avg(CAST(correct AS INT)) AS accuracy FROM removals WHERE removed > 0"
    )
    assert 0 < removals["accuracy"][0] < 1
