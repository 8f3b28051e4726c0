"""Cross-encoders: one score of a query and a document that are read at once, by their tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens.errors import InputError, UnsupportedModelError, require
from normlens.explain.explainer import ask
from normlens.inputs.text import Encoded, tokenise, words_of
from normlens.layers import CAUSAL, SEQUENCES
from normlens.loading.sentences import BothTexts, Pooling
from normlens.models.base import read_head
from normlens.options import CosineOptions, ExplainOptions, ScoreOptions
from normlens.pipeline.batches import Progress
from normlens.results.explanation import Explanation
from normlens.results.search import CROSS, Score

if TYPE_CHECKING:
    from normlens.lens import Lens


def reads_both(lens: Lens, options: ScoreOptions) -> BothTexts | None:
    """How a model scores two texts at once; None: it makes vectors of each."""
    search = lens.pooling.search
    if isinstance(search, BothTexts):
        return search
    if options.template is not None:
        return BothTexts()
    if lens.pooling == Pooling():  # nothing is said of vectors
        with suppress(UnsupportedModelError):
            if read_head(lens.adapter).task == SEQUENCES:
                return BothTexts()
    return None


def cross_scores(
    lens: Lens,
    search: BothTexts,
    query: str,
    documents: Sequence[str],
    options: ScoreOptions,
    truncate: bool,
    progress: Progress | None,
) -> list[Score]:
    """The logit of a class, or of one next token against another, for each document."""
    head, template = read_head(lens.adapter), options.template
    prompt = lens.pooling.query_prompt if options.query_prompt is None else options.query_prompt
    target: Any = options.label
    contrast: Any = None
    is_chat = False
    if head.task == CAUSAL:
        given = search.true_id is not None
        target = search.true_id if given else options.yes
        contrast = search.false_id if given else options.no or None
        if is_chat := template is None:
            template, prompt = _chat(lens, search, prompt), ""
    elif head.task == SEQUENCES and head.output is not None:
        count = head.output.weight.shape[1]
        if target is None and count > 1:
            names = ", ".join(head.labels.get(k, str(k)) for k in range(count))
            raise InputError(f"{lens.name} has several labels; say which with label=…: {names}")
        target = 0 if target is None else target
    else:
        raise InputError(f"{lens.name} is a {head.task}, which gives no score of two texts")
    texts = [(prompt + query, document) for document in documents]
    if template is None:
        items = lens.encode(texts, truncate=truncate)
        sides = [_runs(item) for item in items]
    else:
        filled = [_filled(template, *both) for both in texts]
        # A chat template writes its special tokens itself. The end of a text must not be cut.
        read = [_within(lens, *one, special=not is_chat) for one in filled]
        items, sides = [item for item, _ in read], [places for _, places in read]
    shared = {item.name: getattr(options, item.name) for item in fields(CosineOptions)}
    asked = ExplainOptions(**shared, flow=False)
    answers = ask(lens, items, True, asked, progress, target=target, contrast=contrast)
    both = zip(texts, sides, answers, strict=True)
    return [_cross_score(why, of_texts, places) for of_texts, places, why in both]


def _cross_score(why: Explanation, texts: tuple[str, str], sides: list[list[int]]) -> Score:
    """An explanation of a score of two texts, by either text's tokens."""
    owned = set(sides[0] + sides[1])
    others = [place for place in range(len(why.axis)) if place not in owned]
    given = np.asarray(why.contributions, dtype=np.float64)
    a, b, rest = (given[places] for places in (*sides, others))
    of_query, of_document = (why.axis.take(places) for places in sides)
    named = why.target if why.contrast is None else f"{why.target} against {why.contrast}"
    return Score(
        why.value,
        np.zeros((len(a), len(b))),
        a,
        b,
        why.remainder + float(rest.sum()),
        of_query,
        of_document,
        why.completeness,
        {**why.provenance, "logit": named},
        *texts,
        kind=CROSS,
        others=why.axis.take(others) if others else None,
        others_values=rest if others else None,
    )


def _runs(item: Encoded) -> list[list[int]]:
    """The places of both texts' tokens, which special tokens separate."""
    runs: list[list[int]] = [[]]
    for place, special in enumerate(item.special):
        if special and runs[-1]:
            runs.append([])
        elif not special:
            runs[-1].append(place)
    found = [run for run in runs if run]
    if len(found) != 2:
        raise InputError(
            "the tokenizer does not say which tokens are the query's and which the document's; "
            "give a template with {query} and {document}"
        )
    return found


def _chat(lens: Lens, search: BothTexts, prompt: str) -> str:
    """The chat template of a model that reads a query and a document as messages."""
    tokenizer: Any = lens.tokenizer
    messages = [{"role": role, "content": f"{{{role}}}"} for role in ("query", "document")]
    if prompt:
        messages.insert(0, {"role": "system", "content": prompt})
    rendered: str = ""
    if getattr(tokenizer, "chat_template", None):
        with suppress(Exception):  # a template is a program, and may refuse these roles
            rendered = tokenizer.apply_chat_template(messages, tokenize=False, **search.chat)
    if not all(message["content"] in rendered for message in messages):
        raise InputError(
            f"{lens.name} predicts next tokens, and nothing says how it reads a query and a "
            "document; give template='… {query} … {document} …', and the words that it answers "
            "with (yes=…, no=…)"
        )
    return rendered


def _filled(template: str, query: str, document: str) -> tuple[str, list[tuple[int, int]]]:
    """A template with both texts in it, and the characters that each takes."""
    given = {"{query}": query, "{document}": document}
    pieces = re.split("({query}|{document})", template)
    if sorted(pieces[1::2]) != sorted(given):
        raise InputError("a template holds {query} and {document} once each")
    spans, text = {}, ""
    for piece in pieces:
        own = given.get(piece, piece)
        spans[piece] = len(text), len(text) + len(own)
        text += own
    return text, [spans[name] for name in given]


def _within(
    lens: Lens, text: str, spans: Sequence[tuple[int, int]], special: bool
) -> tuple[Encoded, list[list[int]]]:
    """A text as the model reads it, and the places of the tokens with characters of each span."""
    tokenizer: Any = lens.tokenizer
    require(getattr(tokenizer, "is_fast", False), "a template needs a fast tokenizer")
    options = {"add_special_tokens": special, "return_offsets_mapping": True}
    found = tokenise(tokenizer, text, **options)
    places = [
        [k for k, (low, high) in enumerate(found["offset_mapping"]) if low < end and high > start]
        for start, end in spans
    ]
    (item,) = lens.encode(input_ids=[list(found["input_ids"])])
    words, labels = words_of(found, (text,))
    return replace(item, words=words, word_labels=labels, text=text), places
