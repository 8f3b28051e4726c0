"""Scores of two texts: cosines, and what search models compute of a query and a document.

With u = Σ_k u_k + b_u and v = Σ_l v_l + b_v every score but a cross-encoder's is one bilinear form,

    s · u·v = s · ( Σ_kl u_k·v_l + Σ_k u_k·b_v + Σ_l b_u·v_l + b_u·b_v ),

where s holds the vectors' lengths as a LayerNorm's is held. The vectors of a dense model are its
pooled ones. A sparse model's have a number for each vocabulary term t that both texts have,
``u_t = s_t z_t`` at the position of the largest ``z_t``, with the secant ``log(1 + z_t) / z_t``.
Those of late interaction are the query's tokens q_i, one behind the other, and the document's
tokens that match them best, ``d_{j(i)}``. A cross-encoder's logit is a sum over both texts' tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import (
    CompletenessError,
    InputError,
    UnsupportedModelError,
    check_choice,
    require,
)
from normlens.explain.explainer import ask
from normlens.explain.questions import readable
from normlens.explain.whole_vectors import (
    FrozenReading,
    Reading,
    SentenceParts,
    parts_of_texts,
    pooled,
)
from normlens.frozen.network import FrozenReadout
from normlens.inputs.text import Encoded, tokenise, tokens_of, words_of
from normlens.layers import ANY, CAUSAL, MASKED, SENTENCES, SEQUENCES, Head
from normlens.loading.sentences import BothTexts, Pooling, SparseVectors, TokenVectors
from normlens.models.base import read_head
from normlens.models.parts import SignalEncoder
from normlens.options import SIMILARITIES, CosineOptions, ExplainOptions, ScoreOptions
from normlens.pipeline import batches
from normlens.pipeline.batches import Progress
from normlens.results.explanation import Cosine, Explanation
from normlens.results.search import COSINE, CROSS, DOT, LATE, SPARSE, Score
from normlens.trace.locking import exclusive
from normlens.trace.run import model_inputs, plain_options, reading

if TYPE_CHECKING:
    from normlens.lens import Lens


# What a call is about.


def text_pairs(a: Any, b: Any) -> tuple[list[tuple[str, str]], bool]:
    """The pairs of texts that a call is about, and whether they were given as a list."""
    many = b is None
    pairs = a if many and isinstance(a, list) else [(a, b)]
    for pair in pairs:
        texts = pair if isinstance(pair, (tuple, list)) else ()
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"cosine takes two texts, cosine(a, b), or a list of pairs of texts, not {pair!r}"
            )
    return [(first, second) for first, second in pairs], many


def check_texts(pairs: Sequence[tuple[str, str]], pooling: Pooling) -> None:
    """Refuse texts that the sentence encoder would change before it reads them."""
    if pooling.lower_case and any(text != text.lower() for pair in pairs for text in pair):
        raise InputError(
            "this sentence encoder puts its texts into lower case first (do_lower_case); pass them "
            "in lower case"
        )


def check_search(lens: Lens) -> None:
    """Refuse models whose vectors are of no text, or of two."""
    if isinstance(lens.adapter, SignalEncoder) or lens.two_stacks:
        reads = "is an encoder–decoder" if lens.two_stacks else "reads pictures or sound"
        raise InputError(f"{lens.name} {reads}; scores are of a query and a document")


def check_documents(query: Any, documents: Any) -> list[str]:
    """The documents as a list of texts, where a query and at least one of them are given."""
    listed = None if isinstance(documents, str) else list(documents)
    if not isinstance(query, str) or listed is None or not all(isinstance(d, str) for d in listed):
        raise InputError("give a query (a text) and documents (a list of texts)")
    require(listed, "there are no documents; give at least one")
    return listed


# Cosines, and scores of pooled vectors.


def cosines(
    lens: Lens,
    pooling: Pooling,
    encoded: Sequence[tuple[Encoded, Encoded]],
    options: CosineOptions,
    progress: Progress | None = None,
) -> list[Cosine]:
    """The cosine of every pair. A text that comes several times is run once."""
    head = pooling.head(lens.adapter.end(), lens.device)
    found = _parts_by_text(
        lens, head, [text for pair in encoded for text in pair], options, progress
    )
    results = []
    for a, b in encoded:
        u, v = found[_key(a)], found[_key(b)]
        parts = _shared_out(a, b, u, v, _lengths(u, v), lens.dtype)
        said = _provenance(lens, options, parts["completeness"], [(pooling, a), (pooling, b)])
        results.append(Cosine(**parts, provenance=said))
    return results


def scores(
    lens: Lens,
    query: str,
    documents: Sequence[str],
    options: ScoreOptions,
    *,
    document_lens: Lens | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
) -> list[Score]:
    """The score of a query and each of several documents, in their order."""
    towers = lens, lens if document_lens is None else document_lens
    for tower in towers:
        check_search(tower)
    if (both := _reads_both(lens, options)) is not None:
        require(document_lens is None, "a cross-encoder reads both texts; leave document_lens out")
        return _cross_scores(lens, both, query, documents, options, truncate, progress)
    poolings = lens.pooling, towers[1].pooling
    given = (options.query_prompt, options.document_prompt)
    own = (poolings[0].query_prompt, poolings[1].document_prompt)
    prompts = [mine if asked is None else asked for asked, mine in zip(given, own, strict=True)]
    texts = [prompts[0] + query], [prompts[1] + document for document in documents]
    for tower, pooling, some, prompt in zip(towers, poolings, texts, prompts, strict=True):
        check_texts([tuple(some)], pooling)  # type: ignore[list-item]
        if prompt and not pooling.pools_prompt:
            raise UnsupportedModelError(
                f"{tower.name} leaves its prompt {prompt!r} out of the mean of a text's vectors "
                "(include_prompt), which is not described; give query_prompt='' and "
                "document_prompt='', or compare without"
            )
    (a,), bs = (t.encode(some, truncate=truncate) for t, some in zip(towers, texts, strict=True))
    search = poolings[0].search
    if type(search) is not type(poolings[1].search):
        raise InputError(f"{towers[0].name} and {towers[1].name} are search models of two kinds")
    if search is None:
        return dense_scores(towers, poolings, a, bs, options, progress)
    if isinstance(search, SparseVectors):
        matches = _sparse_matches(towers, poolings, a, bs)
    else:
        a = _expanded(lens, a, search)
        matches = _late_matches(towers, poolings, a, bs)
    return _matched_scores(towers, poolings, a, bs, matches, options, progress)


def dense_scores(
    towers: tuple[Lens, Lens],
    poolings: tuple[Pooling, Pooling],
    query: Encoded,
    documents: Sequence[Encoded],
    options: ScoreOptions,
    progress: Progress | None = None,
) -> list[Score]:
    """Scores of pooled vectors: their cosine or dot product, of their first numbers if asked."""
    similarity = options.similarity or poolings[0].similarity
    check_choice(similarity, SIMILARITIES, "similarity")
    heads = [
        replace(pooling, cut=None).head(tower.adapter.end(), tower.device)
        for tower, pooling in zip(towers, poolings, strict=True)
    ]
    if towers[0] is towers[1]:
        found = _parts_by_text(towers[0], heads[0], [query, *documents], options, progress)
        of_query, of_documents = found[_key(query)], found
    else:
        of_query = _parts_by_text(towers[0], heads[0], [query], options, progress)[_key(query)]
        of_documents = _parts_by_text(towers[1], heads[1], documents, options, progress)

    def read(parts: SentenceParts, pooling: Pooling) -> SentenceParts:
        if pooling.normalized:
            parts = parts.times(1 / _length(parts))
        return parts.cut(options.truncate_dim or pooling.truncate_dim)

    u, results = read(of_query, poolings[0]), []
    for document in documents:
        v = read(of_documents[_key(document)], poolings[1])
        if u.vector.shape != v.vector.shape:
            raise InputError(
                f"{towers[0].name} gives vectors of {len(u.vector)} numbers and {towers[1].name} "
                f"of {len(v.vector)}, so there is no score; give towers of one model"
            )
        size = _lengths(u, v) if similarity == "cosine" else 1.0
        parts = _shared_out(query, document, u, v, size, towers[1].dtype)
        texts = list(zip(poolings, (query, document), strict=True))
        said = _provenance(towers[0], options, parts["completeness"], texts)
        if towers[0] is not towers[1]:
            said["document_model"] = towers[1].name
        kind = COSINE if similarity == "cosine" else DOT
        results.append(Score(**parts, kind=kind, provenance=said))
    return results


# Scores of sparse and multi-vector models: sums over what is matched.


@dataclass(frozen=True)
class Matches:
    """What a query and a document are matched by; each match compares a part of both vectors."""

    kind: str
    names: list[str]
    places: NDArray[np.int64]  # [match, (query, document)]; −1: no token alone
    width: int  # numbers of the vectors for each match
    query: Reading | SentenceParts
    document: Reading
    size: float = 1.0  # what the score is divided by

    def shares(self, u: SentenceParts, v: SentenceParts) -> dict[str, Any]:
        """What each match adds to the score, and either text's tokens of that."""
        by_match = (len(self.names), self.width)

        def of_tokens(parts: SentenceParts, other: SentenceParts) -> NDArray[np.float64]:
            tokens, vector = parts.tokens.reshape(-1, *by_match), other.vector.reshape(by_match)
            return np.einsum("krd,rd->rk", tokens, vector) / self.size

        return {
            "term_names": self.names,
            "term_values": (u.vector * v.vector).reshape(by_match).sum(-1) / self.size,
            "term_query": of_tokens(u, v),
            "term_document": of_tokens(v, u),
            "term_places": self.places,
        }


def _matched_scores(
    towers: tuple[Lens, Lens],
    poolings: tuple[Pooling, Pooling],
    query: Encoded,
    documents: Sequence[Encoded],
    matches: Sequence[Matches],
    options: ScoreOptions,
    progress: Progress | None,
) -> list[Score]:
    """The score of each document, by its matches with the query."""
    found = [place for place, one in enumerate(matches) if one.names]
    readings = [matches[place].document for place in found]
    some = [documents[place] for place in found]
    of_documents = parts_of_texts(towers[1], readings, some, options, progress)
    results = []
    # The query's part of each match: all of a query's readings are of the same tokens.
    asked = [(place, matches[place].query) for place in found]
    given = {place: one for place, one in asked if isinstance(one, SentenceParts)}
    read = [(place, one) for place, one in asked if not isinstance(one, SentenceParts)]
    if read:
        (joint,) = parts_of_texts(
            towers[0], [_joined([one for _, one in read])], [query], options, progress
        )
        widths = np.cumsum([len(matches[place].names) * matches[place].width for place, _ in read])
        pieces = joint.split(widths[:-1].tolist())
        given |= {place: piece for (place, _), piece in zip(read, pieces, strict=True)}
    of_document = dict(zip(found, of_documents, strict=True))
    for place, (document, match) in enumerate(zip(documents, matches, strict=True)):
        u, v = given.get(place), of_document.get(place)
        if u is None or v is None:
            u, v = (SentenceParts.empty(len(text)) for text in (query, document))
        parts = _shared_out(query, document, u, v, match.size, towers[1].dtype, match.width)
        texts = list(zip(poolings, (query, document), strict=True))
        terms = match.shares(u, v) if match.names else {}
        said = _provenance(towers[0], options, parts["completeness"], texts)
        if towers[0] is not towers[1]:
            said["document_model"] = towers[1].name
        results.append(Score(**parts, **terms, kind=match.kind, provenance=said))
    return results


def _joined(readings: Sequence[Reading]) -> Reading:
    """Several readings of one text as one, their vectors one behind the other."""

    def read(last: Tensor, own: Tensor, rule: str) -> FrozenReading:
        each = [one(last, own, rule) for one in readings]
        return FrozenReading(
            lambda vectors: torch.cat([one.linear(vectors) for one in each], -1),
            torch.cat([one.bias for one in each]),
            torch.cat([one.vector for one in each]),
        )

    return read


def _of_tokens(
    head: Head,
    places: Sequence[int],
    linear: Callable[[Tensor, Tensor], Tensor],
    whole: Callable[[Tensor], Tensor],
) -> Reading:
    """Read a vector ``whole(y)`` of some tokens' vectors y (p, d) behind a head.

    It is ``linear(y, y)`` and a constant; the first of the two is linear in its first argument.
    """

    def read(last: Tensor, own: Tensor, rule: str) -> FrozenReading:
        exact, chosen = head.to(last.dtype), list(places)
        frozen = FrozenReadout.at((*exact.body, *exact.steps), last[chosen], rule)
        y = FrozenReadout.at(exact.steps, own[chosen], rule).output
        vector = whole(y)
        constant = vector - linear(y, y)
        return FrozenReading(
            lambda vectors: linear(frozen.linear(vectors[..., chosen, :]), y),
            linear(frozen.bias, y) + constant,
            vector,
        )

    return read


def _behind_head(lens: Lens, head: Head, texts: Sequence[Encoded]) -> list[Tensor]:
    """What a head's steps make of each text's vectors (n, d), as the model itself gives them."""

    def run() -> list[Tensor]:
        outputs = []
        with torch.no_grad(), reading(lens.model, lens.adapter):
            for text in texts:
                inputs = model_inputs(lens.adapter, [text], lens.device)
                own = lens.model(**inputs, **plain_options(lens.model)).last_hidden_state[0]
                exact = head.to(lens.compute_dtype)
                outputs.append(
                    FrozenReadout.at(exact.steps, own.to(lens.compute_dtype), "ig").output
                )
        return outputs

    return exclusive(lens.model, run)


# Sparse models: numbers for words of the vocabulary.


def _sparse_matches(
    towers: tuple[Lens, Lens],
    poolings: tuple[Pooling, Pooling],
    query: Encoded,
    documents: Sequence[Encoded],
) -> list[Matches]:
    """The vocabulary's words that are in both texts' vectors, by document."""
    sides = [_SparseSide(*both) for both in zip(towers, poolings, strict=True)]
    weights = sides[0].search.query_weights
    u = sides[0].vectors([query])[0] if weights is None else sides[0].static(query, weights)
    matches = []
    for v in sides[1].vectors(documents):
        terms = ((u.vector > 0) & (v.vector > 0)).nonzero().flatten()
        names = readable(towers[0].tokenizer, terms.tolist())
        places = np.stack([u.places[terms.cpu()], v.places[terms.cpu()]], axis=-1)
        of_document = v.reading(terms)
        assert not isinstance(of_document, SentenceParts)
        matches.append(Matches(SPARSE, names, places, 1, u.reading(terms), of_document))
    return matches


@dataclass(frozen=True)
class _SparseText:
    """A text's vector over the vocabulary, and how its parts are read."""

    vector: Tensor  # (words,)
    places: NDArray[np.int64]  # (words,), where it is largest; −1: at several
    reading: Callable[[Tensor], Reading | SentenceParts]  # of some words


class _SparseSide:
    """The vectors of one side's texts."""

    def __init__(self, lens: Lens, pooling: Pooling):
        assert isinstance(pooling.search, SparseVectors)
        self.lens, self.search = lens, pooling.search
        with torch.no_grad():
            self.head = read_head(lens.adapter)
        require(self.head.task == MASKED, f"{lens.name} has no head over its vocabulary")
        check_choice(self.search.pools, ("max", "sum"), "pooling")

    def vectors(self, texts: Sequence[Encoded]) -> list[_SparseText]:
        """What the model says of each text."""
        return [self._text(y) for y in _behind_head(self.lens, self.head, texts)]

    def _text(self, y: Tensor) -> _SparseText:
        z = self._words(y, slice(None))  # (n, words)
        value, place = self._squeezed(z).max(0)
        places = place.cpu().numpy()
        if self.search.pools == "sum":
            value, places = self._squeezed(z).sum(0), np.full_like(places, -1)

        def reading(words: Tensor) -> Reading:
            return self._reading(words, place[words], len(y))

        return _SparseText(value, places, reading)

    def _words(self, y: Tensor, words: Any, biased: bool = True) -> Tensor:
        """The scores of words of vectors (…, d), with or without the head's bias."""
        output = self.head.output
        assert output is not None
        scale = output.scale[words] if isinstance(output.scale, Tensor) else output.scale
        scores = y @ output.weight[:, words].to(y)
        if biased and output.bias is not None:
            scores = scores + output.bias[words].to(y)
        return scores * scale

    def _squeezed(self, z: Tensor) -> Tensor:
        z = z.relu().log1p()
        return z.log1p() if self.search.twice else z

    def _reading(self, words: Tensor, place: Tensor, n: int) -> Reading:
        """Read the words' numbers: each at its place, or summed over all n."""
        summed = self.search.pools == "sum"
        places = list(range(n)) if summed else sorted(set(place.tolist()))
        at = torch.tensor(places, device=place.device)[:, None]
        kept = torch.ones_like(at == place) if summed else at == place  # (p, words)

        def linear(y: Tensor, real: Tensor) -> Tensor:
            z = self._words(real, words)
            slopes = torch.where((z > 0) & kept, self._squeezed(z) / z, 0)
            return (self._words(y, words, biased=False) * slopes).sum(-2)

        def whole(y: Tensor) -> Tensor:
            return (self._squeezed(self._words(y, words)) * kept).sum(-2)

        return _of_tokens(self.head, places, linear, whole)

    def static(self, query: Encoded, weights: Tensor) -> _SparseText:
        """An inference-free query: each of its words has its weight, whatever stands around it."""
        assert self.head.output is not None
        n, count = len(query), self.head.output.weight.shape[1]
        weights = F.pad(weights.detach().cpu(), (0, count - len(weights)))
        of_word = torch.zeros(n, count, dtype=torch.float64)
        for place, (token, special) in enumerate(zip(query.ids, query.special, strict=True)):
            if not special:
                of_word[place, token] = float(weights[token])
        times = (of_word != 0).sum(0).clamp_min(1)  # a word that comes twice counts once
        parts = of_word / times
        places = (of_word != 0).to(torch.int64).argmax(0).numpy()

        def reading(words: Tensor) -> SentenceParts:
            tokens = parts[:, words.cpu()].numpy()
            return SentenceParts(tokens, np.zeros(tokens.shape[1]), tokens.sum(0))

        return _SparseText(parts.sum(0).to(self.lens.device), places, reading)


# Late interaction: each token of a query takes the token of the document that matches it best.


def _expanded(lens: Lens, query: Encoded, search: Any) -> Encoded:
    """The query with the tokens that a multi-vector model appends to it."""
    expansion = search.expansion
    tokenizer: Any = lens.tokenizer
    if expansion is None or len(query) >= expansion["length"]:
        return query
    token = expansion.get("token")
    wanted = (
        tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.eos_token_id
    )
    if token is not None:
        wanted = tokenizer.convert_tokens_to_ids(token)
    count = expansion["length"] - len(query)
    return replace(
        query,
        ids=query.ids + [wanted] * count,
        tokens=query.tokens + tokens_of([wanted], tokenizer) * count,
        special=query.special + [True] * count,
        type_ids=None if query.type_ids is None else query.type_ids + [0] * count,
        words=None if query.words is None else query.words + [None] * count,
        unattended=0 if expansion.get("attend") else count,
    )


def _late_matches(
    towers: tuple[Lens, Lens],
    poolings: tuple[Pooling, Pooling],
    query: Encoded,
    documents: Sequence[Encoded],
) -> list[Matches]:
    """The token of each document that matches each of the query's best."""
    heads = [
        Head(SENTENCES, ANY, tuple(tower.adapter.end()), pooling.steps_on(tower.device))
        for tower, pooling in zip(towers, poolings, strict=True)
    ]

    def vectors(side: int, texts: Sequence[Encoded]) -> list[Tensor]:
        found = _behind_head(towers[side], heads[side], texts)
        return [F.normalize(y, dim=-1) if poolings[side].normalized else y for y in found]

    def of_side(side: int, places: Sequence[int]) -> Reading:
        def linear(y: Tensor, real: Tensor) -> Tensor:
            if poolings[side].normalized:
                y = y / torch.linalg.vector_norm(real, dim=-1, keepdim=True)
            return y.flatten(-2)

        return _of_tokens(heads[side], places, linear, lambda y: linear(y, y))

    (q,), search = vectors(0, [query]), poolings[0].search
    assert isinstance(search, TokenVectors)
    asking = _scored(towers[0], poolings[0], query, "query")
    names = readable(towers[0].tokenizer, [query.ids[i] for i in asking])
    matches = []
    for document, d in zip(documents, vectors(1, documents), strict=True):
        answering = _scored(towers[1], poolings[1], document, "document")
        if not answering:
            raise InputError(f"no token of the document {document.text!r} is scored")
        best = (q[asking] @ d[answering].to(q).T).argmax(-1).tolist()
        matched = [answering[j] for j in best]
        places = np.array([asking, matched], dtype=np.int64).T
        readings = of_side(0, asking), of_side(1, matched)
        size = float(len(asking)) if search.mean else 1.0
        matches.append(Matches(LATE, names, places, q.shape[-1], *readings, size))
    return matches


def _scored(lens: Lens, pooling: Pooling, text: Encoded, side: str) -> list[int]:
    """The places of the tokens that are scored."""
    tokenizer: Any = lens.tokenizer
    search = pooling.search
    assert isinstance(search, TokenVectors)
    if side not in search.skipped_in or not search.skipped:
        return list(range(len(text)))
    ids = dict.fromkeys(tokenizer.convert_tokens_to_ids(list(search.skipped)))
    ids.pop(getattr(tokenizer, "unk_token_id", None), None)
    return [place for place, token in enumerate(text.ids) if token not in ids]


# Cross-encoders: one score of both texts, by the tokens of either.


def _reads_both(lens: Lens, options: ScoreOptions) -> BothTexts | None:
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


def _cross_scores(
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
    names = ("{query}", "{document}")
    if any(template.count(name) != 1 for name in names):
        raise InputError("a template holds {query} and {document} once each")
    given = zip(names, (query, document), strict=True)
    first, second = sorted(given, key=lambda one: template.index(one[0]))
    before, _, rest = template.partition(first[0])
    between, _, behind = rest.partition(second[0])
    spans, text = {}, before
    for (name, own), more in ((first, between), (second, behind)):
        spans[name] = (len(text), len(text) + len(own))
        text += own + more
    return text, [spans[name] for name in names]


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


# What they share.


def _key(text: Encoded) -> Hashable:
    return tuple(text.ids), tuple(text.type_ids or ())


def _parts_by_text(
    lens: Lens,
    head: Head,
    encoded: Sequence[Encoded],
    options: CosineOptions,
    progress: Progress | None,
) -> dict[Hashable, SentenceParts]:
    """What the vectors of texts consist of; a text that comes several times is run once."""
    texts = {_key(text): text for text in encoded}
    readings = [pooled(head)] * len(texts)
    parts = parts_of_texts(lens, readings, list(texts.values()), options, progress)
    return dict(zip(texts, parts, strict=True))


def _length(parts: SentenceParts) -> float:
    length = float(np.linalg.norm(parts.vector))
    require(length > 0, "one of the texts has a vector of length 0, so there is no cosine")
    return length


def _lengths(u: SentenceParts, v: SentenceParts) -> float:
    return _length(u) * _length(v)


def _shared_out(
    a: Encoded,
    b: Encoded,
    u: SentenceParts,
    v: SentenceParts,
    size: float,
    dtype: torch.dtype,
    width: int | None = None,
) -> dict[str, Any]:
    """The fields of a score u · v / size; its error is relative to the largest of such vectors.

    With `width` the vectors are made of several of this width, and so is the largest score.
    """
    value = float(u.vector @ v.vector) / size
    matrix = u.tokens @ v.tokens.T / size
    a_with_bias, b_with_bias = u.tokens @ v.bias / size, v.tokens @ u.bias / size
    bias = float(u.bias @ v.bias) / size
    total = float(matrix.sum() + a_with_bias.sum() + b_with_bias.sum()) + bias
    error, tolerance = abs(total - value), batches.SCORE_TOLERANCE[dtype]
    if width is None:
        error *= size / _lengths(u, v)
    else:
        each = (np.linalg.norm(x.vector.reshape(-1, width), axis=-1) for x in (u, v))
        error *= size / max(float(np.prod(list(each), axis=0).sum()), 1e-12)
    if not error <= tolerance:
        raise CompletenessError(
            f"the parts of the cosine miss the model's own by {error:.1e}, tolerance "
            f"{tolerance:.0e} for {str(dtype).removeprefix('torch.')}; the model may differ "
            "from its family"
        )
    text_a, text_b = (one.text if isinstance(one.text, str) else None for one in (a, b))
    return {
        "value": value,
        "matrix": matrix,
        "a_with_bias": a_with_bias,
        "b_with_bias": b_with_bias,
        "bias": bias,
        "a": a.axis,
        "b": b.axis,
        "completeness": error,
        "text_a": text_a,
        "text_b": text_b,
    }


def _provenance(
    lens: Lens, options: CosineOptions, error: float, texts: Sequence[tuple[Pooling, Encoded]]
) -> dict[str, Any]:
    """How a score was made, with what to know of how texts become vectors."""
    tolerance = batches.SCORE_TOLERANCE[lens.dtype]
    said = batches.provenance(lens, options.nonlinearity, error, tolerance)
    said["pooling"] = texts[0][0].reads
    notes = [pooling.note for pooling, _ in texts if pooling.note]
    for pooling, text in texts:
        if pooling.max_tokens is not None and len(text) > pooling.max_tokens:
            notes.append(
                f"sentence-transformers would cut texts after {pooling.max_tokens} tokens; here "
                "they are whole"
            )
    if notes:
        said["note"] = "; ".join(dict.fromkeys(notes))
    return said
