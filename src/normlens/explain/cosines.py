"""Cosines of two texts, shared out among pairs of their tokens.

cos(u, v) = ( Σ_kl u_k·v_l + Σ_k u_k·b_v + Σ_l b_u·v_l + b_u·b_v ) / (‖u‖ ‖v‖)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens.advancing import Progress
from normlens.analysing.batches import affordable, batches, vector_batch
from normlens.analysing.provenance import provenance
from normlens.analysing.verdicts import SCORE_TOLERANCE
from normlens.checkpoints.sentences import Pooling
from normlens.cosine_options import CosineOptions
from normlens.decomposition.least import check_vectors_limit
from normlens.decomposition.memory import DEFAULT_LIMIT
from normlens.errors import CompletenessError, InputError
from normlens.explain.sentences import SentenceParts, sentence_parts
from normlens.heads import Head
from normlens.parsing import parse_bytes
from normlens.precisions import AUTO
from normlens.results.cosine import Cosine
from normlens.results.tokens import TokenAxis
from normlens.text import Encoded

if TYPE_CHECKING:
    from normlens.lens import Lens


def text_pairs(a: Any, b: Any) -> tuple[list[tuple[str, str]], bool]:
    """The pairs of texts that a call is about, and whether they were given as a list."""
    many = b is None
    pairs = list(a) if many and isinstance(a, (list, tuple)) else [(a, b)]
    if many and not isinstance(a, list):
        raise InputError("cosine takes two texts, cosine(a, b), or a list of pairs of texts")
    for pair in pairs:
        if not (
            isinstance(pair, (tuple, list))
            and len(pair) == 2
            and all(isinstance(text, str) for text in pair)
        ):
            raise InputError(f"cosine takes two texts, or a list of pairs of texts, not {pair!r}")
    return [(first, second) for first, second in pairs], many


def check_texts(pairs: Sequence[tuple[str, str]], pooling: Pooling) -> None:
    """Refuse texts that the sentence encoder would change before it reads them."""
    if pooling.lower_case and any(text != text.lower() for pair in pairs for text in pair):
        raise InputError(
            "this sentence encoder puts its texts into lower case first (do_lower_case); pass them "
            "in lower case"
        )


def cosines(
    lens: Lens,
    pooling: Pooling,
    encoded: Sequence[tuple[Encoded, Encoded]],
    options: CosineOptions,
    progress: Progress | None = None,
) -> list[Cosine]:
    """The cosine of every pair. A text that comes several times is run once."""
    head = pooling.head(lens.adapter.end(), lens.device)
    texts = {_key(text): text for pair in encoded for text in pair}
    parts = parts_of_texts(lens, head, list(texts.values()), options, progress)
    found = dict(zip(texts, parts, strict=True))
    return [
        _cosine(lens, head, pooling, a, b, found[_key(a)], found[_key(b)], options)
        for a, b in encoded
    ]


def _key(text: Encoded) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(text.ids), tuple(text.type_ids or ())


def parts_of_texts(
    lens: Lens,
    head: Head,
    texts: list[Encoded],
    options: CosineOptions,
    progress: Progress | None = None,
) -> list[SentenceParts]:
    """What the vector of every text consists of, as `head` pools it."""
    lengths = [len(text) for text in texts]
    limit = parse_bytes(options.memory_limit) or DEFAULT_LIMIT
    if options.memory_limit is not None:
        check_vectors_limit(limit, lens.layers, lengths, lens.compute_dtype.itemsize)
    longest = max(lengths, default=1)
    size = options.batch_size
    wanted = affordable(lens, longest) if size == AUTO else int(size)
    size = vector_batch(lens, longest, wanted, limit)
    parts: dict[int, SentenceParts] = {}
    for places in batches(lens, texts, size):
        batch = [texts[place] for place in places]
        done = sentence_parts(lens, head, batch, options.nonlinearity, limit, progress)
        parts |= dict(zip(places, done, strict=True))
    return [parts[place] for place in range(len(texts))]


def _cosine(
    lens: Lens,
    head: Head,
    pooling: Pooling,
    a: Encoded,
    b: Encoded,
    u: SentenceParts,
    v: SentenceParts,
    options: CosineOptions,
) -> Cosine:
    size = float(np.linalg.norm(u.vector) * np.linalg.norm(v.vector))
    if not size > 0:
        raise InputError("one of the texts has a vector of length 0, so there is no cosine")
    value = float(u.vector @ v.vector) / size
    matrix = u.tokens @ v.tokens.T / size
    a_with_bias, b_with_bias = u.tokens @ v.bias / size, v.tokens @ u.bias / size
    bias = float(u.bias @ v.bias) / size
    total = float(matrix.sum() + a_with_bias.sum() + b_with_bias.sum()) + bias
    error, tolerance = abs(total - value), SCORE_TOLERANCE[lens.dtype]
    if not error <= tolerance:
        raise CompletenessError(
            f"the parts of the cosine miss the model's own by {error:.1e}, tolerance "
            f"{tolerance:.0e} for {str(lens.dtype).removeprefix('torch.')}; the model may differ "
            "from its family"
        )
    return Cosine(
        value=value,
        matrix=matrix,
        a_with_bias=a_with_bias,
        b_with_bias=b_with_bias,
        bias=bias,
        a=_tokens(a),
        b=_tokens(b),
        text_a=_text(a),
        text_b=_text(b),
        completeness=error,
        provenance=_provenance(lens, head, _note(head, pooling, a, b), options, error),
    )


def _note(head: Head, pooling: Pooling, *texts: Encoded) -> str | None:
    """What to know about how the vectors of these texts were made."""
    limit = pooling.max_tokens
    cut = None
    if limit is not None and any(len(text) > limit for text in texts):
        cut = f"sentence-transformers would cut texts after {limit} tokens; here they are whole"
    return "; ".join(filter(None, [head.note, cut])) or None


def _tokens(text: Encoded) -> TokenAxis:
    return TokenAxis(text.tokens, text.ids, text.special, text.words, text.word_labels)


def _text(text: Encoded) -> str | None:
    return text.text if isinstance(text.text, str) else None


def _provenance(
    lens: Lens, head: Head, note: str | None, options: CosineOptions, completeness: float
) -> dict[str, Any]:
    said = provenance(lens, options.nonlinearity, completeness, SCORE_TOLERANCE[lens.dtype])
    said["pooling"] = head.reads
    return said if note is None else said | {"note": note}
