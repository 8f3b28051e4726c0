"""What sparse and multi-vector models compare: words of the vocabulary, and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import InputError, check_choice, require
from normlens.explain.questions import readable
from normlens.explain.whole_vectors import FrozenReading, Reading, SentenceParts, parts_of_texts
from normlens.frozen.network import FrozenReadout
from normlens.inputs.text import Encoded, tokens_of
from normlens.layers import ANY, MASKED, SENTENCES, Head
from normlens.loading.sentences import Pooling, SparseVectors, TokenVectors
from normlens.models.base import read_head
from normlens.options import CosineOptions
from normlens.pipeline.batches import Progress
from normlens.trace.locking import exclusive
from normlens.trace.run import model_inputs, plain_options, reading

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Towers:
    """The models that read a query and its documents, often one, and how they are read."""

    lenses: tuple[Lens, Lens]
    poolings: tuple[Pooling, Pooling]
    options: CosineOptions
    progress: Progress | None = None

    def check_widths(self, u: Tensor | np.ndarray, v: Tensor | np.ndarray) -> None:
        """Refuse vectors that cannot be compared."""
        if u.shape[-1] != v.shape[-1]:
            raise InputError(
                f"{self.lenses[0].name} gives vectors of {u.shape[-1]} numbers and "
                f"{self.lenses[1].name} of {v.shape[-1]}, so there is no score; give towers of one "
                "model"
            )

    def parts(
        self, side: int, readings: Sequence[Reading], texts: Sequence[Encoded]
    ) -> list[SentenceParts]:
        """What the vectors of one side's texts consist of."""
        return parts_of_texts(self.lenses[side], readings, list(texts), self.options, self.progress)


@dataclass(frozen=True)
class Match:
    """What a query and a document are matched by; each match compares a part of both vectors."""

    names: list[str]
    places: NDArray[np.int64]  # [match, (query, document)]; −1: no token alone
    columns: slice | NDArray[np.int64]  # of the query's vector, those that are compared
    document: Reading
    width: int = 1  # numbers of the vectors for each match
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


#: How the query's vector is read (or its parts, if no model reads it), and every document's match.
Matches: TypeAlias = tuple[Reading | SentenceParts, list[Match]]


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


def sparse_matches(towers: Towers, query: Encoded, documents: Sequence[Encoded]) -> Matches:
    """The vocabulary's words that are in both texts' vectors, by document."""
    asking, answering = (
        _SparseSide(*both) for both in zip(towers.lenses, towers.poolings, strict=True)
    )
    static = asking.static(query)
    if static is None:
        (u,) = asking.vectors([query])
    else:
        u = _SparseText(static.sum(0), (static != 0).to(torch.int64).argmax(0), len(query))
    texts = answering.vectors(documents)
    for v in texts:
        towers.check_widths(u.vector, v.vector)
    shared = [((u.vector > 0) & (v.vector > 0)).nonzero().flatten() for v in texts]
    every = torch.cat(shared).unique()
    matches = [
        Match(
            readable(asking.lens.tokenizer, words.tolist()),
            torch.stack([u.places[words], v.places[words]], -1).cpu().numpy(),
            torch.searchsorted(every, words).cpu().numpy(),
            answering.reading(v, words),
        )
        for v, words in zip(texts, shared, strict=True)
    ]
    if static is None:
        return asking.reading(u, every), matches
    tokens = static[:, every].cpu().numpy()
    return SentenceParts(tokens, np.zeros(len(every)), tokens.sum(0)), matches


class _SparseText(NamedTuple):
    """A text's vector over the vocabulary."""

    vector: Tensor  # (words,)
    places: Tensor  # (words,), where it is largest; −1: at several
    length: int  # of the text


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
        found = []
        for y in _behind_head(self.lens, self.head, texts):
            numbers = self._squeezed(self._words(y, slice(None)))  # (n, words)
            value, places = numbers.max(0)
            if self.search.pools == "sum":
                value, places = numbers.sum(0), torch.full_like(places, -1)
            found.append(_SparseText(value, places, len(y)))
        return found

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

    def reading(self, text: _SparseText, words: Tensor) -> Reading:
        """Read some words' numbers of a text: each at its place, or summed over all."""
        place, summed = text.places[words], self.search.pools == "sum"
        places = list(range(text.length)) if summed else sorted(set(place.tolist()))
        at = torch.tensor(places, device=place.device)[:, None]
        kept = torch.ones_like(at == place) if summed else at == place  # (p, words)

        def linear(y: Tensor, real: Tensor) -> Tensor:
            z = self._words(real, words)
            slopes = torch.where((z > 0) & kept, self._squeezed(z) / z, 0)
            return (self._words(y, words, biased=False) * slopes).sum(-2)

        def whole(y: Tensor) -> Tensor:
            return (self._squeezed(self._words(y, words)) * kept).sum(-2)

        return _of_tokens(self.head, places, linear, whole)

    def static(self, query: Encoded) -> Tensor | None:
        """An inference-free query: the weight of each token's word, (n, words), whatever stands
        around it; None where the model reads the query.
        """
        weights = self.search.query_weights
        if weights is None:
            return None
        assert self.head.output is not None
        of_word = torch.zeros(len(query), self.head.output.weight.shape[1], dtype=torch.float64)
        for place, (token, special) in enumerate(zip(query.ids, query.special, strict=True)):
            if not special and token < len(weights):
                of_word[place, token] = float(weights.detach()[token])
        times = (of_word != 0).sum(0).clamp_min(1)  # a word that comes twice counts once
        return (of_word / times).to(self.lens.device)


# Late interaction: each token of a query takes the token of the document that matches it best.


def expanded(lens: Lens, query: Encoded, search: TokenVectors) -> Encoded:
    """The query with the tokens that a multi-vector model appends to it."""
    expansion = search.expansion
    tokenizer: Any = lens.tokenizer
    if expansion is None or len(query) >= expansion["length"]:
        return query
    token = expansion.get("token")
    kinds = ("mask", "eos", "pad")
    ids = (getattr(tokenizer, f"{kind}_token_id", None) for kind in kinds)
    wanted = next((one for one in ids if one is not None), None)
    if token is not None:
        wanted = tokenizer.convert_tokens_to_ids(token)
    if wanted is None:
        raise InputError(f"{lens.name}'s tokenizer has no [MASK], which its queries end with")
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


def late_matches(towers: Towers, query: Encoded, documents: Sequence[Encoded]) -> Matches:
    """The token of each document that matches each of the query's best."""
    poolings = towers.poolings
    heads = [
        Head(SENTENCES, ANY, tuple(tower.adapter.end()), pooling.steps_on(tower.device))
        for tower, pooling in zip(towers.lenses, poolings, strict=True)
    ]

    def vectors(side: int, texts: Sequence[Encoded]) -> list[Tensor]:
        found = _behind_head(towers.lenses[side], heads[side], texts)
        return [F.normalize(y, dim=-1) if poolings[side].normalized else y for y in found]

    def of_side(side: int, places: Sequence[int]) -> Reading:
        def linear(y: Tensor, real: Tensor) -> Tensor:
            if poolings[side].normalized:
                y = y / torch.linalg.vector_norm(real, dim=-1, keepdim=True)
            return y.flatten(-2)

        return _of_tokens(heads[side], places, linear, lambda y: linear(y, y))

    (q,), search = vectors(0, [query]), poolings[0].search
    assert isinstance(search, TokenVectors)
    lens = towers.lenses[0]
    asking = _scored(lens, search, query, "query")
    names = readable(lens.tokenizer, [query.ids[i] for i in asking])
    size, matches = float(len(asking)) if search.mean else 1.0, []
    for document, d in zip(documents, vectors(1, documents), strict=True):
        answering = _scored(towers.lenses[1], poolings[1].search, document, "document")
        if not answering:
            raise InputError(f"no token of the document {document.text!r} is scored")
        towers.check_widths(q, d)
        best = (q[asking] @ d[answering].to(q).T).argmax(-1).tolist()
        matched = [answering[j] for j in best]
        places = np.array([asking, matched], dtype=np.int64).T
        reading = of_side(1, matched)
        matches.append(Match(names, places, slice(None), reading, q.shape[-1], size))
    return of_side(0, asking), matches


def _scored(lens: Lens, search: Any, text: Encoded, side: str) -> list[int]:
    """The places of the tokens that are scored."""
    tokenizer: Any = lens.tokenizer
    assert isinstance(search, TokenVectors)
    if side not in search.skipped_in or not search.skipped:
        return list(range(len(text)))
    ids = {*tokenizer.convert_tokens_to_ids(list(search.skipped))}
    if getattr(tokenizer, "unk_token", None) not in search.skipped:
        ids.discard(getattr(tokenizer, "unk_token_id", None))
    return [place for place, token in enumerate(text.ids) if token not in ids]
