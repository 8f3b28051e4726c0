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
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from normlens.errors import (
    CompletenessError,
    InputError,
    UnsupportedModelError,
    check_choice,
    require,
)
from normlens.explain.matching import (
    Matches,
    check_widths,
    expanded,
    joined,
    late_matches,
    sparse_matches,
)
from normlens.explain.reranking import cross_scores, reads_both
from normlens.explain.whole_vectors import (
    SentenceParts,
    parts_of_texts,
    pooled,
)
from normlens.inputs.text import Encoded
from normlens.layers import Head
from normlens.loading.sentences import Pooling, SparseVectors
from normlens.models.parts import SignalEncoder
from normlens.options import SIMILARITIES, CosineOptions, ScoreOptions
from normlens.pipeline import batches
from normlens.pipeline.batches import Progress
from normlens.results.explanation import Cosine
from normlens.results.search import COSINE, DOT, Score

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
    if (both := reads_both(lens, options)) is not None:
        require(document_lens is None, "a cross-encoder reads both texts; leave document_lens out")
        _without(options, lens, "reads both texts", "similarity", "truncate_dim", "document_prompt")
        return cross_scores(lens, both, query, documents, options, truncate, progress)
    _without(options, lens, "makes vectors of each text", "label")
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
    _without(options, lens, "does not pool its vectors", "similarity", "truncate_dim")
    if isinstance(search, SparseVectors):
        matches = sparse_matches(towers, poolings, a, bs)
    else:
        a = expanded(lens, a, search)
        matches = late_matches(towers, poolings, a, bs)
    return _matched_scores(towers, poolings, a, bs, matches, options, progress)


def _without(options: ScoreOptions, lens: Lens, why: str, *names: str) -> None:
    """Refuse options that mean nothing for a model."""
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(f"{lens.name} {why}, so leave {name} out")


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
        check_widths(towers, u.vector, v.vector)
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
    parts_of = parts_of_texts(towers[1], readings, some, options, progress)
    of_document = dict(zip(found, parts_of, strict=True))
    # All of the query's readings are of the same tokens, which pass the model once.
    asked = {
        one: len(match.names) * match.width for match in matches if callable(one := match.query)
    }
    asked = {one: width for one, width in asked.items() if width}
    pieces: dict[Any, SentenceParts] = {}
    if asked:
        (joint,) = parts_of_texts(towers[0], [joined([*asked])], [query], options, progress)
        places = np.cumsum([*asked.values()])[:-1].tolist()
        pieces = dict(zip(asked, joint.split(places), strict=True))
    results = []
    for place, (document, match) in enumerate(zip(documents, matches, strict=True)):
        u = match.query if isinstance(match.query, SentenceParts) else pieces.get(match.query)
        v = of_document.get(place)
        if u is None or v is None:  # nothing is matched
            u, v = (SentenceParts.empty(len(text)) for text in (query, document))
        parts = _shared_out(query, document, u, v, match.size, towers[1].dtype, match.width)
        texts = list(zip(poolings, (query, document), strict=True))
        terms = match.shares(u, v) if match.names else {}
        said = _provenance(towers[0], options, parts["completeness"], texts)
        if towers[0] is not towers[1]:
            said["document_model"] = towers[1].name
        results.append(Score(**parts, **terms, kind=match.kind, provenance=said))
    return results


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
    for side, (pooling, text) in enumerate(texts):
        limit = pooling.max_tokens if side else pooling.max_query_tokens or pooling.max_tokens
        if limit is not None and len(text) > limit:
            notes.append(
                f"sentence-transformers would cut texts after {limit} tokens; here they are whole"
            )
    if notes:
        said["note"] = "; ".join(dict.fromkeys(notes))
    return said
