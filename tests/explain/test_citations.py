"""`Lens.cite`: exact sums over sources, ablations of the real model, prompts of every kind."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from one_case import in_one_case
from pair_examples import fast_tokenizer, with_head
from search_models import tiny_of
from test_loading import tiny_tokenizer

import normlens
from normlens.errors import InputError
from normlens.explain import citations
from normlens.explain.citations import (
    RIDGE,
    SHARE,
    ablation_masks,
    prepared,
    random_masks,
    sharpened,
    subset_scores,
)
from normlens.options import CiteOptions
from normlens.results.citation import PROMPT

QUESTION = "What is the capital of Peru, and where does it lie?"
DOCUMENTS = [
    "The Eiffel Tower is in Paris. It was finished in 1889.",
    "The capital of Peru is Lima. Lima lies on the coast.",
    "Bananas are yellow. They grow in Ecuador.",
]
ANSWER = "It is Lima. Lima lies on the coast."


@pytest.fixture(scope="module")
def citation(smollm2):
    return smollm2.cite(QUESTION, DOCUMENTS, ANSWER, by="sentence")


def message(sources: list[str], separator: str = "\n\n") -> str:
    return f"Context: {separator.join(sources)}\n\nQuery: {QUESTION}"


def test_the_source_that_says_so_is_first(citation):
    assert citation.top(1)["text"].tolist() == ["The capital of Peru is Lima."]
    assert citation.documents == [0, 0, 1, 1, 2, 2]
    assert citation.parts == ["It is Lima.", "Lima lies on the coast."]
    assert citation.matrix[0].argmax() == 2
    assert citation.matrix[1].argmax() == 3
    assert citation.completeness < 1e-5


def test_sources_and_the_rest_are_the_score(citation):
    table = citation.table()
    np.testing.assert_allclose(table.drop(columns="value").sum(axis=1), table["value"], rtol=1e-4)


def test_scores_are_sums_of_an_explanation(smollm2, citation):
    """By characters of the text that the template writes, found here once more."""
    text = message([" ".join(DOCUMENTS[k : k + 1]) for k in range(3)])
    chat = [{"role": "user", "content": text}]
    why = smollm2.explain(chat, target=ANSWER)
    rendered = smollm2.tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    batch = smollm2.tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    sentences = [s for document in DOCUMENTS for s in document.replace(". ", ".|").split("|")]
    assert citation.sources == sentences
    for sentence, score in zip(sentences, citation.scores, strict=True):
        start = rendered.index(sentence)
        own = [
            place
            for place, (a, b) in enumerate(batch["offset_mapping"])
            if start <= a + (rendered[a] == " ") < start + len(sentence)
        ]
        assert float(why.contributions[own].sum()) == pytest.approx(score, abs=2e-4)
    assert citation.log_probability == pytest.approx(why.log_probability, rel=1e-5)


def test_subsets_leave_sources_out_and_keep_paragraphs(smollm2):
    prompt = prepared(smollm2, QUESTION, DOCUMENTS, ANSWER, CiteOptions(by="sentence"))
    for mask, kept in (
        ([1, 1, 1, 1, 1, 1], DOCUMENTS),
        (
            [0, 1, 0, 1, 1, 0],
            ["It was finished in 1889.", "Lima lies on the coast.", "Bananas are yellow."],
        ),
        ([0] * 6, []),
        ([0, 0, 1, 1, 0, 0], [DOCUMENTS[1]]),
    ):
        encoded, spans = prompt.read(mask)
        assert encoded.text[slice(*encoded.contents[-1])] == message(kept).strip()
        sources = [source for source, on in zip(prompt.sources, mask, strict=True) if on]
        assert [encoded.text[slice(*span)] for span in spans] == sources
        assert prompt.followed(encoded).ids == [*encoded.ids, *prompt.ids]


def test_a_ridge_around_the_exact_scores():
    rng = np.random.default_rng(0)
    masks, prior = random_masks(12, 8, 3), rng.normal(size=12)
    real = 2 * prior + rng.normal(size=12)
    y, whole = masks @ real - 30 + rng.normal(size=8), real.sum() - 30
    scores, interval = sharpened(prior, masks, y, whole)
    rows, every = np.vstack([masks, np.ones(12)]), np.append(y, whole)
    m = np.column_stack([np.ones(9), rows])
    a = np.linalg.lstsq(np.column_stack([np.ones(9), rows @ prior]), every, rcond=None)[0][1]
    assert a > 0
    width = np.abs(prior) + SHARE * np.abs(prior).mean()
    penalty = np.diag([0.0, *(RIDGE * width.mean() / width)])
    target = m.T @ every + penalty @ np.array([0, *(a * prior)])
    np.testing.assert_allclose(scores, np.linalg.solve(m.T @ m + penalty, target)[1:], atol=1e-9)
    assert (interval[:, 0] <= scores).all()
    assert (scores <= interval[:, 1]).all()
    wrong, _ = sharpened(-np.abs(prior), masks, masks.sum(1) * 5.0, 60.0)  # a is not negative
    assert (wrong >= 0).all()
    same, width = sharpened(prior, masks, np.full(8, -4.0), -4.0)
    np.testing.assert_allclose(same, 0)
    np.testing.assert_allclose(width, 0)


def test_intervals_hold_what_many_subsets_say():
    """Scores drawn around their prior, answers with noise: about 95 % are inside."""
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(200):
        prior = rng.normal(size=10)
        width = np.abs(prior) + SHARE * np.abs(prior).mean()
        real = 1.5 * prior + np.sqrt(width / width.mean()) * rng.normal(size=10)
        masks = ablation_masks(prior, 16, rng.integers(1 << 30))
        y, noise = masks @ real, np.sqrt(RIDGE) * rng.normal(size=17)
        _, interval = sharpened(prior, masks, y + noise[:16], real.sum() + noise[16])
        inside += list((interval[:, 0] <= real) & (real <= interval[:, 1]))
    assert 0.88 < np.mean(inside) < 0.98


@pytest.mark.parametrize("count", [1, 2, 8, 11, 32])
def test_large_sources_are_in_orthogonal_subsets(count):
    prior = np.random.default_rng(count).normal(size=19)
    masks = ablation_masks(prior, count, 5)
    assert masks.shape == (count, 19)
    assert np.array_equal(masks, ablation_masks(prior, count, 5))
    if count in (8, 32):
        assert (masks.sum(0) == count / 2).all()
        largest = np.argsort(-np.abs(prior))[: count - 1]
        signs = 2.0 * masks[:, largest] - 1
        np.testing.assert_allclose(signs.T @ signs, count * np.eye(len(largest)))
    assert len({ablation_masks(prior, count, seed).tobytes() for seed in range(8)}) > 1


def test_ablations_sharpen(smollm2, citation):
    sharp = smollm2.cite(QUESTION, DOCUMENTS, ANSWER, by="sentence", ablations=8, seed=2)
    np.testing.assert_allclose(sharp.contributions, citation.scores, atol=1e-6)
    assert sharp.interval.shape == (6, 2)
    assert sharp.scores.argmax() in (2, 3)  # which say what the answer says
    assert {"low", "high"} <= {*sharp.to_pandas().columns}
    again = smollm2.cite(QUESTION, DOCUMENTS, ANSWER, by="sentence", ablations=8, seed=2)
    assert again == sharp


def test_every_way_to_split(smollm2, citation):
    whole = smollm2.cite(QUESTION, np.array(DOCUMENTS), ANSWER)
    assert whole.sources == DOCUMENTS
    np.testing.assert_allclose(whole.scores, citation.scores.reshape(3, 2).sum(1), atol=1e-4)
    tokens = smollm2.cite(QUESTION, DOCUMENTS, ANSWER, by="token", parts="document")
    assert "".join(DOCUMENTS[0].split()) == "".join(tokens.sources[: tokens.documents.count(0)])
    space = [place for place, token in enumerate(tokens.tokens) if token == "␣"]
    assert len(space) == 1  # before 1889; white space between sources is nobody's
    total = tokens.scores.sum() + tokens.token_scores[:, space].sum()
    assert total == pytest.approx(citation.scores.sum(), abs=1e-3)
    text = " ".join(DOCUMENTS)
    for sources, options in ((text, {}), (DOCUMENTS, {"separator": " ", "by": "sentence"})):
        prompt = prepared(smollm2, QUESTION, sources, ANSWER, CiteOptions(**options))
        assert prompt.sources == citation.sources
        assert text in prompt.read()[0].text


TEMPLATE = (
    "{{ '<|im_start|>' }}{% for message in messages %}|{{ message['role'] }}: "
    "{{ message['content'].split('</think>')[-1].strip() }}{% endfor %}|assistant:"
)


def test_what_a_template_strips_of_an_answer_stays(smollm2):
    lens = copy.copy(smollm2)
    lens.tokenizer = copy.deepcopy(lens.tokenizer)
    lens.tokenizer.chat_template = TEMPLATE
    made = lens.cite(QUESTION, DOCUMENTS, "<think>Peru?</think> Lima", system="Be brief.")
    assert made.text.startswith("<|im_start|>|system: Be brief.|user: Context: The Eiffel")
    assert made.text.endswith("|assistant:<think>Peru?</think> Lima")
    assert [made.text[a:b] for a, b in made.source_spans] == DOCUMENTS


@in_one_case("sources", [["a mat"], ["a mat", "the cats sat", "a mat"]])
@in_one_case("side", ["left", "right"])
@in_one_case("limit", [1 << 28, 1 << 10])
def test_single_and_equal_sources_behind_a_first_token(side, sources, limit, monkeypatch):
    """A model whose tokenizer puts [CLS] first, wherever it pads, a subset at a time or several."""
    monkeypatch.setattr(citations, "LOGIT_BYTES", limit)
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = side
    model = tiny_of("GPT2LMHeadModel", of="gpt2")
    lens = normlens.Lens(model, tokenizer)
    options = {"by": "document", "ablations": 4}
    made, alone = (
        lens.cite("the cats", sources, "on the mat", batch_size=size, **options) for size in (4, 1)
    )
    np.testing.assert_allclose(made.scores, alone.scores, rtol=1e-9, atol=1e-12)
    assert (made.raw_tokens[0], int(made.owners[0])) == ("[CLS]", PROMPT)
    assert [made.text[a:b] for a, b in made.source_spans] == sources
    assert len({*map(tuple, made.source_spans)}) == len(sources)
    for place, source in enumerate(sources):
        own = [
            token for token, who in zip(made.raw_tokens, made.owners, strict=True) if who == place
        ]
        assert own == tokenizer.tokenize(source)
    total = made.contributions.sum() + made.rest.sum()
    assert total == pytest.approx(made.value, rel=1e-9)

    def log_p(kept: list[str]) -> float:
        text = f"Context: {chr(10).join(kept)}\n\nQuery: the cats\n\nAnswer:"
        prompt = tokenizer(text)["input_ids"]  # as the tokenizer writes it, with a last [SEP]
        answer = tokenizer(" on the mat", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            rows = model(torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(-1)
        return sum(float(rows[len(prompt) - 1 + k, token]) for k, token in enumerate(answer))

    masks = random_masks(len(sources), 4, 0)
    prompt = prepared(lens, "the cats", sources, "on the mat", CiteOptions(by="document"))
    expected = [log_p([t for t, on in zip(sources, mask, strict=True) if on]) for mask in masks]
    np.testing.assert_allclose(subset_scores(prompt, masks), expected, rtol=1e-9)
    assert made.log_probability == pytest.approx(log_p(sources), rel=1e-9)


@in_one_case("family", ["bart", "t5"])
def test_encoder_decoders(family):
    model = with_head(family).double()
    lens = normlens.load(model, fast_tokenizer())
    sources = ["the house is small", "and green", "don't stop ."]
    made = lens.cite("is it small ?", sources, "the house")
    made._check()
    assert made.answer == "the house"
    assert [made.text[0][a:b] for a, b in made.source_spans] == sources
    prompt = prepared(lens, "is it small ?", sources, "the house", CiteOptions())
    masks = np.array([[True] * 3, [True, False, True]])
    (encoded,) = lens.encode_pairs(
        "Context: the house is small\n\ndon't stop .\n\nQuery: is it small ?", "the house"
    )
    answer = [*encoded.ids[1:], encoded.end]
    answer = answer[: answer.index(lens.tokenizer.eos_token_id)]
    with torch.no_grad():
        rows = (
            model(
                input_ids=torch.tensor([encoded.source.ids]),
                decoder_input_ids=torch.tensor([encoded.ids]),
            )
            .logits[0]
            .log_softmax(-1)
        )
    first = 1 if answer[0] == lens.tokenizer.bos_token_id else 0
    expected = sum(float(rows[k, answer[k]]) for k in range(first, len(answer)))
    found = subset_scores(prompt, masks)
    assert found[0] == pytest.approx(made.log_probability, rel=1e-9)
    assert found[1] == pytest.approx(expected, rel=1e-9)
    assert lens.cite("is it ?", sources, ablations=4, generate=5).scores.shape == (3,)


@in_one_case(
    "given",
    [
        {"sources": []},
        {"sources": ["a", " \n"]},
        {"question": " "},
        {"by": "chapter"},
        {"ablations": 2},
        {"prompt": "{context}"},
        {"sources": 9000 * ["many words"]},
    ],
)
def test_wrong_citations(given, smollm2):
    with pytest.raises(InputError):
        smollm2.cite(**{"question": QUESTION, "sources": DOCUMENTS, "answer": ANSWER} | given)
