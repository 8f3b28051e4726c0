"""What sparse and multi-vector models compare: words of the vocabulary, and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import (
    InputError,
    check_choice,
    require,
)
from normlens.explain.questions import readable
from normlens.explain.whole_vectors import (
    FrozenReading,
    Reading,
    SentenceParts,
)
from normlens.frozen.network import FrozenReadout
from normlens.inputs.text import Encoded, tokens_of
from normlens.layers import ANY, MASKED, SENTENCES, Head
from normlens.loading.sentences import Pooling, SparseVectors, TokenVectors
from normlens.models.base import read_head
from normlens.results.search import LATE, SPARSE
from normlens.trace.locking import exclusive
from normlens.trace.run import model_inputs, plain_options, reading

if TYPE_CHECKING:
    from normlens.lens import Lens


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


def joined(readings: Sequence[Reading]) -> Reading:
    """Several readings of one text as one, their vectors one behind the other."""

    def read(last: Tensor, own: Tensor, rule: str) -> FrozenReading:
        each = [one(last, own, rule) for one in readings]
        return FrozenReading(
            lambda vectors: torch.cat([one.linear(vectors) for one in each], -1),
            torch.cat([one.bias for one in each]),
            torch.cat([one.vector for one in each]),
        )

    return read


def check_widths(towers: tuple[Lens, Lens], u: Tensor | np.ndarray, v: Tensor | np.ndarray) -> None:
    """Refuse two towers whose vectors cannot be compared."""
    if u.shape[-1] != v.shape[-1]:
        raise InputError(
            f"{towers[0].name} gives vectors of {u.shape[-1]} numbers and {towers[1].name} of "
            f"{v.shape[-1]}, so there is no score; give towers of one model"
        )


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


def sparse_matches(
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
        check_widths(towers, u.vector, v.vector)
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


def expanded(lens: Lens, query: Encoded, search: Any) -> Encoded:
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


def late_matches(
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
    of_query, matches = of_side(0, asking), list[Matches]()
    for document, d in zip(documents, vectors(1, documents), strict=True):
        answering = _scored(towers[1], poolings[1], document, "document")
        if not answering:
            raise InputError(f"no token of the document {document.text!r} is scored")
        check_widths(towers, q, d)
        best = (q[asking] @ d[answering].to(q).T).argmax(-1).tolist()
        matched = [answering[j] for j in best]
        places = np.array([asking, matched], dtype=np.int64).T
        readings = of_query, of_side(1, matched)
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
    ids = {*tokenizer.convert_tokens_to_ids(list(search.skipped))}
    if getattr(tokenizer, "unk_token", None) not in search.skipped:
        ids.discard(getattr(tokenizer, "unk_token_id", None))
    return [place for place, token in enumerate(text.ids) if token not in ids]
