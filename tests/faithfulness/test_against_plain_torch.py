"""Whole evaluations against a slow one: one changed text at a time, unpadded, in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import evaluation_examples as examples
import numpy as np
import pandas as pd
import pytest
import torch
import transformers

from normlens.corpus.runs.results import Run
from normlens.measures.bootstrap import numbers_of_text

Probability = Callable[[list[int]], float]


def load(folder: Any, kind: str) -> tuple[Any, Any]:
    model = getattr(transformers, kind).from_pretrained(folder, attn_implementation="eager").eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def orders(scores: np.ndarray, ids: list[int], ordinary: list[int]) -> dict[str, list[int]]:
    """Tokens by importance in both directions, ties by the seed 0, in plain Python."""
    ties = numbers_of_text(0, ids, "ties", len(ordinary)).tolist()
    by_place = dict(zip(ordinary, ties, strict=True))
    return {
        "most": sorted(ordinary, key=lambda place: (-scores[place], by_place[place])),
        "least": sorted(ordinary, key=lambda place: (scores[place], by_place[place])),
    }


def replaced(ids: list[int], places: list[int], tokens: dict[int, int]) -> list[int]:
    return [tokens[place] if place in places else i for place, i in enumerate(ids)]


def drop_curve(
    ids: list[int], order: list[int], tokens: dict[int, int], says: Probability
) -> list[float]:
    """What the model says as 0, 10, …, 90 % of the tokens are replaced."""
    return [says(replaced(ids, order[: int(k * len(order) // 10)], tokens)) for k in range(10)]


def values_of(run: Run) -> dict[tuple[int, str, str], dict[str, float]]:
    """The values by example, protocol and method, for what goes first."""
    found: dict[tuple[int, str, str], dict[str, float]] = {}
    for row in run.table("faithfulness").itertuples():
        found.setdefault((row.index, row.protocol, row.method), {})[row.first] = row.value
    return found


def scores_of(attributions: pd.DataFrame, index: int, method: str) -> np.ndarray:
    rows = attributions[(attributions["index"] == index) & (attributions.method == method)]
    return rows.sort_values("position")["score"].to_numpy()


METHODS = examples.METHODS.split(",")


def test_a_classifier(classified, places):
    model, tokenizer = load(places.classifier, "BertForSequenceClassification")
    attributions, table = classified.table("attributions"), classified.table("examples")
    found = values_of(classified)

    def probability(ids: list[int], target: int) -> float:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0].double()
        return float(logits.softmax(-1)[target])

    lines = places.labelled.read_text().splitlines()[1:]
    assert len(table) == len(lines) == examples.N
    for index, line in enumerate(lines):
        ids = tokenizer(line.split("\t")[0])["input_ids"]
        with torch.no_grad():
            target = int(model(input_ids=torch.tensor([ids])).logits.argmax())
        assert table["target_id"][index] == target
        says = partial(probability, target=target)
        whole = says(ids)
        assert table["probability"][index] == pytest.approx(whole, abs=1e-6)
        ordinary = list(range(1, len(ids) - 1))
        assert table["ordinary"][index] == len(ordinary)
        masks = dict.fromkeys(ordinary, tokenizer.mask_token_id)
        for method in METHODS:
            both = orders(scores_of(attributions, index, method), ids, ordinary)
            for first, order in both.items():
                expected = whole - np.mean(drop_curve(ids, order, masks, says))
                got = found[index, "aopc", method][first]
                assert got == pytest.approx(expected, abs=1e-6)
            gone, alone = [], []
            for percent in (1, 5, 10, 20, 50):
                top = both["most"][: max(1, percent * len(ordinary) // 100)]
                gone.append(says([i for place, i in enumerate(ids) if place not in top]))
                kept = {0, len(ids) - 1, *top}
                alone.append(says([i for place, i in enumerate(ids) if place in kept]))
            got = found[index, "comprehensiveness", method]
            assert got == {"most": pytest.approx(whole - np.mean(gone), abs=1e-6)}
            got = found[index, "sufficiency", method]
            assert got == {"most": pytest.approx(whole - np.mean(alone), abs=1e-6)}


def test_a_causal_model(preferred, places):
    model, tokenizer = load(places.causal, "LlamaForCausalLM")
    attributions, table = preferred.table("attributions"), preferred.table("examples")
    found = values_of(preferred)

    def contrast(ids: list[int], good: int, bad: int) -> float:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1].double()
        return float(logits[good] - logits[bad])

    lines = places.evidence.read_text().splitlines()[1:]
    failed = preferred.table("failures")["index"].tolist()
    assert failed == [examples.N - 2]
    for index, line in enumerate(lines):
        if index in failed:
            continue
        _, text, good, bad, evidence = line.split(",")
        ids = tokenizer(text)["input_ids"]
        columns = [tokenizer.convert_tokens_to_ids(word) for word in (good, bad)]
        says = partial(contrast, good=columns[0], bad=columns[1])
        row = table[table["index"] == index].iloc[0]
        assert [row["target_id"], row["contrast_id"]] == columns
        assert row["score"] == pytest.approx(says(ids), abs=1e-5)
        assert row["correct"] == (says(ids) > 0)
        special = {tokenizer.eos_token_id, *tokenizer.all_special_ids}
        vocabulary = [i for i in range(len(tokenizer)) if i not in special]
        drawn = numbers_of_text(0, ids, "replacements", len(ids)).tolist()
        ways = {
            "contrast-drop-end": dict.fromkeys(range(len(ids)), tokenizer.eos_token_id),
            "contrast-drop-random": {
                place: vocabulary[number % len(vocabulary)] for place, number in enumerate(drawn)
            },
        }
        words = text.split()
        of_token = [place for place, word in enumerate(words) for _ in word]
        for method in METHODS:
            scores = scores_of(attributions, index, method)
            for protocol, tokens in ways.items():
                for first, order in orders(scores, ids, list(range(len(ids)))).items():
                    expected = says(ids) - np.mean(drop_curve(ids, order, tokens, says))
                    got = found[index, protocol, method][first]
                    assert got == pytest.approx(expected, abs=1e-5)
            sums = [
                sum(s for s, word in zip(scores, of_token, strict=True) if word == place)
                for place in range(len(words))
            ]
            best = max(s for s, word in zip(sums, words, strict=True) if word == evidence)
            got = found[index, "evidence", method]["most"]
            if len(words) == 1:
                assert np.isnan(got)
            else:
                assert got == pytest.approx(1 / (1 + sum(s > best for s in sums)))
