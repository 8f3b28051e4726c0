"""Citations: which sources made an answer, by one exact backward pass and a few ablations.

Sources, a question and an answer are one prompt. The backward pass from the answer's
log-probability gives ``c_k = g_k · e_k`` for every token (`normlens.explain.backward`), and a
source's score is the sum over its tokens.

Ablations sharpen these: k subsets, each source in half of them, and the answer's log-probability y
under each and with all sources. ``y = b + M w`` is solved for w around the prior mean ``a c``: a by
least squares, at least 0, then a ridge on what is left, which moves a source in proportion to its
own |c| and a share of the mean one. The largest sources are in subsets that are orthogonal, so that
their effects are told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import hadamard

from normlens.errors import InputError, require
from normlens.explain.backward import ask_for_places, chooses_positions, rows_read
from normlens.explain.explainer import Explainer
from normlens.explain.questions import questions_of_parts
from normlens.inputs import as_list
from normlens.inputs.encode import answered, encode_target, generated, reader_of
from normlens.inputs.text import (
    DOCUMENT,
    SENTENCE,
    SOURCE,
    TARGET,
    TEXT,
    TOKEN,
    Answer,
    Encoded,
    Reader,
    Span,
    owner_of,
    parts_of,
    tokens_of,
)
from normlens.layers import CAUSAL
from normlens.models.base import read_head
from normlens.options import CiteOptions, ExplainOptions
from normlens.pipeline.batches import Progress, batches
from normlens.results.citation import ANSWER, PROMPT, Citation
from normlens.trace.locking import exclusive
from normlens.trace.run import EAGER, can_keep_queries, model_inputs, plain_options, reading

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Where sources and the question stand in the prompt.
CONTEXT, QUESTION = "{context}", "{question}"
#: What a model without a chat template reads behind the prompt, before it answers.
_CUE = "\n\nAnswer:"
#: Attention weights of one layer are formed up to this size on a CPU.
ALPHA_BYTES = 1 << 21
#: Scores of all words that subsets may take at a time, in bytes.
LOGIT_BYTES = 1 << 28
#: λ of the ridge, and the share of the mean |c| that every source may move by.
RIDGE, SHARE = 2.0, 0.3


# The prompt: sources and a question as the model reads them, with all sources or some.


@dataclass(frozen=True)
class Prompt:
    """Sources and a question, and the answer's tokens once they are known."""

    lens: Lens
    question: str
    sources: list[str]
    documents: list[int]  # of each source
    gaps: list[str]  # the white space before each source
    options: CiteOptions
    answer: Answer | None = None
    ids: tuple[int, ...] = ()  # of the answer
    start: tuple[int, ...] = ()  # what a decoder reads before it
    generated: str | None = None

    def read(self, kept: Sequence[bool] | None = None) -> tuple[Encoded, list[Span]]:
        """What the model reads with all sources or those that are kept, and where each stands.

        The second are the characters of each kept source in the text.
        """
        before, behind = (
            part.replace(QUESTION, self.question) for part in self.options.prompt.split(CONTEXT)
        )
        text, spans, last = before.lstrip(), list[Span](), 0
        for place, source in enumerate(self.sources):
            if kept is None or kept[place]:
                if spans:  # documents and paragraphs stay apart without their first source
                    between = self.gaps[last + 1 : place + 1]
                    text += max(between, key=lambda gap: gap.count("\n"))
                spans.append((len(text), len(text) + len(source)))
                text, last = text + source, place
        text = (text + behind).rstrip()
        lens, shift = self.lens, 0
        if lens.two_stacks:
            encoded = reader_of(lens, SOURCE).read(text)
        elif getattr(lens.tokenizer, "chat_template", None):
            chat = [{"role": "user", "content": text}]
            if self.options.system is not None:
                chat = [{"role": "system", "content": self.options.system}, *chat]
            encoded = reader_of(lens).read(chat)
            found = (encoded.contents or [None])[-1]
            if found is None or found[1] - found[0] != len(text):
                raise InputError(
                    "the chat template changes the message that holds the sources, so that they "
                    "cannot be told apart; change the template or give prompt=… another form"
                )
            shift = found[0]
        else:
            system = "" if self.options.system is None else f"{self.options.system}\n\n"
            encoded, shift = reader_of(lens).read(system + text + _CUE), len(system)
        return encoded, [(start + shift, stop + shift) for start, stop in spans]

    def spans_of(self, encoded: Encoded) -> list[Span]:
        """The characters of the prompt's text that each of its tokens covers."""
        reader = reader_of(self.lens, SOURCE if self.lens.two_stacks else TEXT)
        assert isinstance(encoded.text, str)
        return reader.spans(encoded.text, special=encoded.contents is None)

    def followed(self, encoded: Encoded) -> Encoded:
        """The prompt's tokens with those of the answer, which stay whatever the prompt is."""
        if self.lens.two_stacks:
            ids = [*self.start, *self.ids[:-1]]
            tokens = tokens_of(ids, self.lens.tokenizer)
            special = [place < len(self.start) for place in range(len(ids))]
            return Encoded(ids, tokens, special, source=encoded, end=self.ids[-1])
        answer = self.answer
        assert answer is not None
        return reader_of(self.lens).followed_by(encoded, [*self.ids], answer.text, answer.spans)

    def position(self, whole: Encoded) -> int:
        """Where the answer's last token is predicted."""
        return len(whole) - (1 if self.lens.two_stacks else 2)


def check_answers(lens: Lens, two_stacks: bool = True) -> None:
    """Refuse models that give no answer; without `two_stacks` encoder–decoders, too."""
    task = read_head(lens.adapter).task
    if task != CAUSAL and not (two_stacks and lens.two_stacks):
        needed = "causal language model" + two_stacks * " or an encoder–decoder"
        raise InputError(f"{lens.name} is a {task}; citations need a {needed}")


def prepared(
    lens: Lens,
    question: str,
    sources: Any,
    answer: str | None,
    options: CiteOptions,
    check: Callable[[Encoded], None] = lambda encoded: None,
) -> Prompt:
    """The prompt with its answer, which the model generates where none is given.

    `check` sees the prompt before the model does, and again with a given answer.
    """
    check_answers(lens)
    if not getattr(lens.tokenizer, "is_fast", False):
        raise InputError(
            "citations need a fast tokenizer, which says which characters each token covers; pass "
            "one to load(model, tokenizer)"
        )
    if not isinstance(question, str) or not question.strip():
        raise InputError("the question is empty; give at least one word")
    prompt = Prompt(lens, question.strip(), *read_sources(lens, sources, options), options)
    whole = prompt.read()[0]
    check(whole)
    if answer is not None and (not isinstance(answer, str) or not answer.strip()):
        raise InputError("the answer is empty; leave it out to let the model answer")
    if lens.two_stacks:
        return _target(prompt, whole, answer)
    if answer is None:
        whole = answered(lens, whole, options.generate, options.generation or {})
    else:
        spoken = whole.contents is None and not answer[:1].isspace()
        whole = reader_of(lens).answered(whole, f" {answer}" if spoken else answer)
        check(whole)
    assert whole.answer is not None
    ids = tuple(whole.ids[whole.answer.first :])
    return replace(prompt, answer=whole.answer, ids=ids, generated=whole.generated)


def _target(prompt: Prompt, source: Encoded, answer: str | None) -> Prompt:
    """The prompt with the target of an encoder–decoder."""
    lens = prompt.lens
    if prompt.options.generation is not None:
        raise InputError(
            "an encoder–decoder generates its likeliest target; leave generation out, or give the "
            "answer"
        )
    if answer is None:
        target = generated(lens, source, prompt.options.generate + 1)
    else:
        target = encode_target(lens, answer)
    said = [place for place, special in enumerate(target.special) if place and not special]
    require(said, "the model ends its answer before the first token; give an answer yourself")
    start, ids = target.ids[: said[0]], target.ids[said[0] : said[-1] + 1]
    whole = Reader(lens.tokenizer, TARGET).followed_by(Encoded([], [], [], text=""), ids)
    return replace(
        prompt,
        answer=whole.answer,
        ids=tuple(ids),
        start=tuple(start),
        generated=target.generated,
    )


def read_sources(
    lens: Lens, sources: Any, options: CiteOptions
) -> tuple[list[str], list[int], list[str]]:
    """Sources, the documents that they are of, and the white space before each of them."""
    alone = isinstance(sources, str)
    texts = [sources] if alone else as_list(sources)
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"sources are a list of texts, or one text to be split, not {type(sources).__name__}"
        )
    require(len(texts), "there are no sources; give at least one text")
    by = options.by or (SENTENCE if alone else DOCUMENT)
    found, documents, gaps = list[str](), list[int](), list[str]()
    for place, text in enumerate(texts):
        if by == TOKEN:
            spans = [_stripped(text, s) for s in reader_of(lens).spans(text, special=False)]
            spans = [span for span in spans if span[0] < span[1]]
        else:
            spans = parts_of(text, by)
        require(spans, "the sources are empty" if alone else f"source {place} is empty")
        last = 0
        for start, stop in spans:
            gap = text[last:start] if last else "\n\n"
            gaps.append(gap if options.separator is None else options.separator)
            found.append(text[start:stop])
            documents.append(place)
            last = stop
    return found, documents, gaps


def _stripped(text: str, span: Span) -> Span:
    start, stop = span
    inside = text[start:stop]
    return start + len(inside) - len(inside.lstrip()), start + len(inside.rstrip())


# The exact pass, and the ablations.


def cite(prompt: Prompt, progress: Progress | None = None) -> Citation:
    """Score every source of a prompt that has its answer."""
    lens, options, answer = prompt.lens, prompt.options, prompt.answer
    assert answer is not None
    encoded, places = prompt.read()
    whole = prompt.followed(encoded)
    first = prompt.position(whole) + 1 - len(prompt.ids)  # where its first token is predicted
    parts = answer.parts(options.parts)
    questions = questions_of_parts(0, first, prompt.ids, parts, options.score)
    asked = ExplainOptions(
        nonlinearity=options.nonlinearity, flow=False, memory_limit=options.memory_limit
    )
    explainer = Explainer(lens, [whole], read_head(lens.adapter), asked, progress)
    if lens.device.type == "cpu":
        # Of a few hundred tokens the weights of all layers are not kept, and nobody asks for them.
        explainer.alpha_bytes = min(explainer.alpha_bytes, ALPHA_BYTES)
    explained = explainer.explain(questions)
    spans = prompt.spans_of(encoded)
    text: Any = encoded.text
    owners = [owner_of(text, span, places) for span in spans]
    behind = len(explained[0].raw_tokens) - len(spans)
    exact = np.stack([why.contributions for why in explained]).astype(np.float64)
    why = explained[0]
    citation = Citation(
        question=prompt.question,
        sources=prompt.sources,
        documents=prompt.documents,
        answer=answer.text,
        parts=[text for text, _ in parts],
        score=options.score,
        values=np.array([why.value for why in explained]),
        log_probabilities=np.array([why.log_probability for why in explained]),
        token_scores=exact,
        biases=np.array([why.remainder for why in explained]),
        owners=np.array([PROMPT if o is None else o for o in owners] + [ANSWER] * behind),
        spans=np.array([*spans, *[(0, 0)] * behind]),
        source_spans=np.array(places),
        raw_tokens=why.raw_tokens,
        completeness=max(why.completeness for why in explained),
        provenance={**why.provenance, "target": prompt.generated or "given"},
        token_ids=why.token_ids,
        special=why.special,
        text=(text, answer.text) if lens.two_stacks else text + answer.text,
    )
    if options.ablations:
        prior, whole_score = citation.contributions, float(citation.log_probabilities.sum())
        masks = ablation_masks(prior, options.ablations, options.seed)
        scores, interval = sharpened(prior, masks, subset_scores(prompt, masks), whole_score)
        citation = replace(citation, ablated=scores, interval=interval, ablations=options.ablations)
    return citation


def random_masks(sources: int, count: int, seed: int | Sequence[int]) -> NDArray[np.bool_]:
    """Random subsets (subset, source), each source kept with probability ½."""
    return np.random.default_rng(seed).random((count, sources)) < 0.5


def ablation_masks(
    prior: NDArray[np.float64], count: int, seed: int | Sequence[int]
) -> NDArray[np.bool_]:
    """Subsets (subset, source) for ablations, each source in about half of them.

    The sources with the largest scores take the columns of a Hadamard matrix, with random signs and
    rows; the others share these columns.
    """
    chance = np.random.default_rng(seed)
    size = 2 << max(0, (count - 1).bit_length() - 1)
    columns = hadamard(size)[chance.permutation(size)[:count], 1:]
    columns = columns[:, chance.permutation(size - 1)]
    masks = np.empty((count, len(prior)), bool)
    for place, source in enumerate(np.argsort(-np.abs(prior), kind="stable")):
        masks[:, source] = columns[:, place % (size - 1)] * chance.choice([-1, 1]) > 0
    return masks


def subset_scores(prompt: Prompt, masks: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The log-probability of the answer's tokens with each subset (subset, source) of the sources.

    The prompt is the same with the other sources left out, and the answer's tokens stay.
    """
    lens = prompt.lens
    items = [prompt.followed(prompt.read(mask)[0]) for mask in masks]
    found = np.empty(len(items))
    for batch in batches(lens, items, prompt.options.batch_size):
        for alike in _alike(prompt, items, batch):
            together = [items[index] for index in alike]
            work = partial(_log_probabilities, prompt, together)
            found[alike] = exclusive(lens.adapter.whole, work)
    return found


def _alike(prompt: Prompt, items: Sequence[Encoded], batch: Sequence[int]) -> Iterator[list[int]]:
    """The items of a batch, shortest first, in groups whose scores of all words are not too large.

    The model gives scores at every position where the answer of any of them is predicted.
    """
    whole, output = prompt.lens.adapter.whole, read_head(prompt.lens.adapter).output
    assert output is not None
    row = output.weight.shape[1] * prompt.lens.dtype.itemsize
    group = list[int]()
    for index in sorted(batch, key=lambda index: len(items[index])):
        width = len(items[index])
        if chooses_positions(whole):
            width = len(prompt.ids) + width - len(items[group[0] if group else index])
        if group and (len(group) + 1) * width * row > LOGIT_BYTES:
            yield group
            group = []
        group.append(index)
    yield group


def _log_probabilities(prompt: Prompt, items: Sequence[Encoded]) -> list[float]:
    """The log-probability of the answer behind each of these prompts."""
    lens, count = prompt.lens, len(prompt.ids)
    whole = lens.adapter.whole
    inputs = model_inputs(lens.adapter, items, lens.device)
    ends = [prompt.position(item) + 1 for item in items]
    # Of texts of similar lengths these are few more than the answers' own.
    places = ask_for_places(whole, inputs, [slice(min(ends) - count, max(ends))])
    kind = "sdpa" if can_keep_queries(lens.layers) else EAGER
    with reading(whole, lens.adapter, kind):
        output = whole(**inputs, **plain_options(whole))
    asked = [(b, slice(end - count, end)) for b, end in enumerate(ends)]
    ids = torch.tensor(prompt.ids, device=lens.device)
    return [
        float(rows.double().log_softmax(-1).gather(1, ids[:, None].to(rows.device)).sum())
        for rows in rows_read(output, places, asked)
    ]


def sharpened(
    prior: NDArray[np.float64],
    masks: NDArray[np.bool_],
    y: NDArray[np.float64],
    whole: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores (source,) from the answer's log-probabilities `y` under subsets, around a·`prior`.

    `whole` is that with all sources. The second are 95 % intervals (source, 2): normal ones of the
    ridge's posterior, with the variance that the residuals show.
    """
    m = np.vstack([masks, np.ones(len(prior))])
    m, y = m - m.mean(0), np.append(y, whole)  # b is not penalised
    expected, y = m @ prior, y - y.mean()
    size = float(expected @ expected)
    a = max(0.0, float(expected @ y) / size) if size > 0 else 0.0
    left = y - a * expected
    width = np.abs(prior) + SHARE * np.abs(prior).mean()  # how far each source may move
    width = width / width.mean() if width.any() else np.ones(len(prior))
    moved = m * width
    gram = np.linalg.inv(moved @ m.T + RIDGE * np.eye(len(m)))
    scores = a * prior + moved.T @ gram @ left
    variance = float(left @ gram @ left) / max(1, len(m) - 2)
    shrunk = width - np.einsum("ks,kl,ls->s", moved, gram, moved)
    half = 1.96 * np.sqrt(variance * np.maximum(shrunk, 0))
    return scores, np.stack([scores - half, scores + half], axis=1)
