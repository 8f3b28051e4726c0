"""Scores of two texts: cosines, and what dense search models compute of a query and a document.

With u = Σ_k u_k + b_u and v = Σ_l v_l + b_v every such score is one bilinear form,

    s · u·v = s · ( Σ_kl u_k·v_l + Σ_k u_k·b_v + Σ_l b_u·v_l + b_u·b_v ),

and s holds the vectors' lengths as a LayerNorm's is held.
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
from normlens.explain.whole_vectors import SentenceParts, parts_of_texts, pooled
from normlens.inputs.text import Encoded
from normlens.layers import Head
from normlens.loading.sentences import Pooling
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
    return dense_scores(towers, poolings, a, bs, options, progress)


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
    a: Encoded, b: Encoded, u: SentenceParts, v: SentenceParts, size: float, dtype: torch.dtype
) -> dict[str, Any]:
    """The fields of a score u · v / size; its error is relative to the largest of such vectors."""
    value = float(u.vector @ v.vector) / size
    matrix = u.tokens @ v.tokens.T / size
    a_with_bias, b_with_bias = u.tokens @ v.bias / size, v.tokens @ u.bias / size
    bias = float(u.bias @ v.bias) / size
    total = float(matrix.sum() + a_with_bias.sum() + b_with_bias.sum()) + bias
    error, tolerance = abs(total - value), batches.SCORE_TOLERANCE[dtype]
    error *= size / _lengths(u, v)
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
