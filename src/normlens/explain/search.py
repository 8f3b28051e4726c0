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

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from normlens.errors import (
    CompletenessError,
    InputError,
    UnsupportedModelError,
    check_choice,
    require,
)
from normlens.explain.matching import Matches, Towers, expanded, late_matches, sparse_matches
from normlens.explain.reranking import cross_scores, reads_both
from normlens.explain.whole_vectors import SentenceParts, pooled
from normlens.inputs.text import Encoded
from normlens.loading.sentences import Pooling, SparseVectors, TokenVectors
from normlens.models.parts import SignalEncoder
from normlens.options import SIMILARITIES, CosineOptions, ScoreOptions
from normlens.pipeline import batches
from normlens.pipeline.batches import Progress
from normlens.results.explanation import Cosine
from normlens.results.search import COSINE, DOT, LATE, SPARSE, Score

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


# Scores, by what kind of model it is.


def cosines(
    lens: Lens,
    pooling: Pooling,
    encoded: Sequence[tuple[Encoded, Encoded]],
    options: CosineOptions,
    progress: Progress | None = None,
) -> list[Cosine]:
    """The cosine of every pair."""
    towers = Towers((lens, lens), (pooling, pooling), options, progress)
    return _pooled_scores(Cosine, towers, encoded, "cosine")


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
    lenses = lens, lens if document_lens is None else document_lens
    for tower in lenses:
        check_search(tower)
    if (both := reads_both(lens, options)) is not None:
        require(document_lens is None, "a cross-encoder reads both texts; leave document_lens out")
        _without(options, lens, "reads both texts", "similarity", "truncate_dim", "document_prompt")
        return cross_scores(lens, both, query, documents, options, truncate, progress)
    _without(options, lens, "makes vectors of each text", "label")
    poolings = lens.pooling, lenses[1].pooling
    given = (options.query_prompt, options.document_prompt)
    own = (poolings[0].query_prompt, poolings[1].document_prompt)
    prompts = [mine if asked is None else asked for asked, mine in zip(given, own, strict=True)]
    texts = [prompts[0] + query], [prompts[1] + document for document in documents]
    for tower, pooling, some, prompt in zip(lenses, poolings, texts, prompts, strict=True):
        check_texts([tuple(some)], pooling)  # type: ignore[list-item]
        if prompt and not pooling.pools_prompt:
            raise UnsupportedModelError(
                f"{tower.name} leaves its prompt {prompt!r} out of the mean of a text's vectors "
                "(include_prompt), which is not described; give query_prompt='' and "
                "document_prompt='', or compare without"
            )
    (a,), bs = (t.encode(some, truncate=truncate) for t, some in zip(lenses, texts, strict=True))
    search = poolings[0].search
    if type(search) is not type(poolings[1].search):
        raise InputError(f"{lenses[0].name} and {lenses[1].name} are search models of two kinds")
    towers = Towers(lenses, poolings, options, progress)
    if search is None:
        similarity = options.similarity or poolings[0].similarity
        check_choice(similarity, SIMILARITIES, "similarity")
        pairs = [(a, document) for document in bs]
        kind = COSINE if similarity == "cosine" else DOT
        return _pooled_scores(Score, towers, pairs, similarity, options.truncate_dim, kind=kind)
    _without(options, lens, "does not pool its vectors", "similarity", "truncate_dim")
    if isinstance(search, SparseVectors):
        return _matched_scores(SPARSE, towers, a, bs, sparse_matches(towers, a, bs))
    assert isinstance(search, TokenVectors)
    a = expanded(lens, a, search)
    return _matched_scores(LATE, towers, a, bs, late_matches(towers, a, bs))


def _without(options: ScoreOptions, lens: Lens, why: str, *names: str) -> None:
    """Refuse options that mean nothing for a model."""
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(f"{lens.name} {why}, so leave {name} out")


def _pooled_scores(
    result: type[Kind],
    towers: Towers,
    pairs: Sequence[tuple[Encoded, Encoded]],
    similarity: str,
    width: int | None = None,
    **fields: Any,
) -> list[Kind]:
    """Cosines or dot products of pooled vectors, of their first numbers if asked.

    A text that comes several times is run once.
    """
    sides = [{_key(pair[side]): pair[side] for pair in pairs} for side in range(2)]
    if towers.lenses[0] is towers.lenses[1]:
        sides = [sides[0] | sides[1]]
    found: list[dict[Hashable, SentenceParts]] = []
    for side, texts in enumerate(sides):
        lens, pooling = towers.lenses[side], towers.poolings[side]
        head = replace(pooling, cut=None).head(lens.adapter.end(), lens.device)
        each = towers.parts(side, [pooled(head)] * len(texts), [*texts.values()])
        if pooling.normalized:
            each = [parts.times(1 / _length(parts)) for parts in each]
        kept = slice(width or pooling.truncate_dim)
        found.append(dict(zip(texts, (parts.at(kept) for parts in each), strict=True)))
    results = []
    for a, b in pairs:
        u, v = found[0][_key(a)], found[-1][_key(b)]
        towers.check_widths(u.vector, v.vector)
        size = _length(u) * _length(v) if similarity == "cosine" else 1.0
        results.append(_shared_out(result, towers, (a, b), (u, v), size, **fields))
    return results


def _matched_scores(
    kind: str,
    towers: Towers,
    query: Encoded,
    documents: Sequence[Encoded],
    matches: Matches,
) -> list[Score]:
    """The score of each document, a sum over what is matched in it."""
    asking, of_documents = matches
    found = [place for place, match in enumerate(of_documents) if match.names]
    parts = towers.parts(
        1, [of_documents[place].document for place in found], [documents[place] for place in found]
    )
    of_document = dict(zip(found, parts, strict=True))
    if not isinstance(asking, SentenceParts):
        whole = towers.parts(0, [asking], [query]) if found else []
        asking = whole[0] if whole else SentenceParts.empty(len(query))
    results = []
    for place, (document, match) in enumerate(zip(documents, of_documents, strict=True)):
        u = asking.at(match.columns)
        v = of_document.get(place, SentenceParts.empty(len(document)))  # nothing is matched
        terms = match.shares(u, v) if match.names else {}
        texts, fields = (query, document), {"kind": kind, **terms}
        score = _shared_out(Score, towers, texts, (u, v), match.size, match.width, **fields)
        results.append(score)
    return results


# What they share.


Kind = TypeVar("Kind", bound=Cosine)


def _key(text: Encoded) -> Hashable:
    return tuple(text.ids), tuple(text.type_ids or ())


def _length(parts: SentenceParts) -> float:
    length = float(np.linalg.norm(parts.vector))
    require(length > 0, "one of the texts has a vector of length 0, so there is no cosine")
    return length


def _shared_out(
    result: type[Kind],
    towers: Towers,
    texts: tuple[Encoded, Encoded],
    vectors: tuple[SentenceParts, SentenceParts],
    size: float,
    width: int | None = None,
    **fields: Any,
) -> Kind:
    """The score u · v / size; its error is relative to the largest of such vectors.

    With `width` the vectors are made of several of this width, and so is the largest score.
    """
    (u, v), lenses, dtype = vectors, towers.lenses, towers.lenses[1].dtype
    value = float(u.vector @ v.vector) / size
    matrix = u.tokens @ v.tokens.T / size
    a_with_bias, b_with_bias = u.tokens @ v.bias / size, v.tokens @ u.bias / size
    bias = float(u.bias @ v.bias) / size
    total = float(matrix.sum() + a_with_bias.sum() + b_with_bias.sum()) + bias
    error, tolerance = abs(total - value), batches.SCORE_TOLERANCE[dtype]
    if width is None:
        error *= size / (_length(u) * _length(v))
    else:
        each = (np.linalg.norm(x.vector.reshape(-1, width), axis=-1) for x in vectors)
        error *= size / max(float(np.prod(list(each), axis=0).sum()), 1e-12)
    if not error <= tolerance:
        raise CompletenessError(
            f"the parts of the cosine miss the model's own by {error:.1e}, tolerance "
            f"{tolerance:.0e} for {str(dtype).removeprefix('torch.')}; the model may differ "
            "from its family"
        )
    said = batches.provenance(
        lenses[0], towers.options.nonlinearity, error, batches.SCORE_TOLERANCE[lenses[0].dtype]
    )
    said["pooling"] = towers.poolings[0].reads
    if notes := _notes(towers.poolings, texts):
        said["note"] = "; ".join(notes)
    if lenses[0] is not lenses[1]:
        said["document_model"] = lenses[1].name
    (a, text_a), (b, text_b) = ((x, x.text if isinstance(x.text, str) else None) for x in texts)
    return result(
        value=value,
        matrix=matrix,
        a_with_bias=a_with_bias,
        b_with_bias=b_with_bias,
        bias=bias,
        a=a.axis,
        b=b.axis,
        completeness=error,
        provenance=said,
        text_a=text_a,
        text_b=text_b,
        **fields,
    )


def _notes(poolings: tuple[Pooling, Pooling], texts: tuple[Encoded, Encoded]) -> list[str]:
    """What to know of how texts become vectors."""
    notes = [pooling.note for pooling in poolings if pooling.note]
    query, document = poolings
    limits = query.max_query_tokens or query.max_tokens, document.max_tokens
    for text, limit in zip(texts, limits, strict=True):
        if limit is not None and len(text) > limit:
            notes.append(
                f"sentence-transformers would cut texts after {limit} tokens; here they are whole"
            )
    return list(dict.fromkeys(notes))
