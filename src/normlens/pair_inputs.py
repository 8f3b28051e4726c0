"""What a lens on an encoder–decoder is given, as pairs of sequences that its model takes.

A source and a target are one pair, each a text or a list of words. A list holds several: sources,
or pairs (source, target). Either side may be token ids instead, and a source may be sound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from normlens.errors import InputError
from normlens.given_padding import warn_of_padding
from normlens.models.two_stacks import TwoStacks
from normlens.pairs import Pair
from normlens.targets import generated, shifted
from normlens.text import Encoded, Ids, encode_ids
from normlens.text_sides import Side, SideReader

if TYPE_CHECKING:
    from normlens.lens import Lens

#: A source alone, or with its target.
SourceTarget: TypeAlias = tuple[Side, Side | None]


@dataclass(frozen=True)
class GivenPairs:
    """What `Lens.maps` is given: one sequence, an encoder–decoder's two, or a signal."""

    source: Any = None
    target: Any = None
    input_ids: Ids | None = None
    attention_mask: Ids | None = None
    decoder_input_ids: Ids | None = None
    decoder_attention_mask: Ids | None = None
    input_features: Any = None
    sampling_rate: int | None = None  # of a sound, in Hz


def encode_pairs(lens: Lens, given: GivenPairs, *, truncate: bool) -> tuple[list[Pair], bool]:
    """The pairs, and whether they were given as a list."""
    adapter = lens.adapter
    if not isinstance(adapter, TwoStacks):
        raise InputError(f"{lens.name} reads one sequence; pairs are for encoder–decoders")
    source, target = given.source, given.target
    pairs_of_texts: list[Any] | None = None
    if isinstance(source, list) and target is None:
        # Without a target beside it a list holds several sources or pairs, as everywhere.
        pairs_of_texts = [_source_target(entry) for entry in source]
    elif isinstance(source, tuple) and target is None:
        source, target = _source_target(source)
    if pairs_of_texts is not None:
        _check_alone(given)
        pairs = [encode_pair(lens, texts, truncate=truncate) for texts in pairs_of_texts]
        return pairs, True
    sources, many = _sources(lens, adapter, source, given, truncate)
    targets = _targets(lens, adapter, target, given, truncate, len(sources))
    pairs = [
        generated(lens, encoded, features)
        if of_target is None
        else Pair(encoded, of_target, features=features)
        for (encoded, features), of_target in zip(sources, targets, strict=True)
    ]
    warn_of_padding(lens, pairs)
    return pairs, many


def encode_pair(
    lens: Lens, texts: SourceTarget, *, truncate: bool, max_length: int | None = None
) -> Pair:
    """One source and its target, or what the model generates; either of `max_length` at most."""
    adapter = lens.adapter
    if not isinstance(adapter, TwoStacks):
        raise InputError(f"{lens.name} reads one sequence; pairs are for encoder–decoders")
    source, target = texts
    encoded = _read_source(lens, adapter, source, truncate, max_length)
    if target is None:
        return generated(lens, encoded, None)
    return Pair(encoded, _read_target(lens, adapter, target, truncate, max_length))


def encode_target(lens: Lens, target: Side) -> Encoded:
    """A target alone, as the decoder reads it."""
    adapter = lens.adapter
    assert isinstance(adapter, TwoStacks)
    return _read_target(lens, adapter, target, truncate=False)


def _source_target(entry: Any) -> SourceTarget:
    """One entry of a list: a source, or a pair of a source and its target (or None)."""
    if isinstance(entry, str):
        return entry, None
    if isinstance(entry, tuple) and len(entry) == 2:
        return entry
    raise InputError(
        f"expected a source, or a pair (source, target), got {entry!r}; words stand in lists: "
        '(["The", "house"], ["La", "maison"])'
    )


def _check_alone(given: GivenPairs) -> None:
    ids = (given.input_ids, given.decoder_input_ids, given.input_features)
    if any(value is not None for value in ids):
        raise InputError("pass either a list of texts or pairs, or ids, one of the two")


def _read_source(
    lens: Lens, adapter: TwoStacks, source: Side, truncate: bool, max_length: int | None = None
) -> Encoded:
    if adapter.hears:
        raise InputError(
            f"{lens.name} hears its source; pass input_features=… as its feature extractor gives "
            "them, and the text as the target"
        )
    limit = _shorter(adapter.max_source_positions(), max_length)
    reader = SideReader(lens.tokenizer, False, limit, adapter.source_vocabulary())
    return reader.read(source, truncate)


def _read_target(
    lens: Lens, adapter: TwoStacks, target: Side, truncate: bool, max_length: int | None = None
) -> Encoded:
    limit = _shorter(adapter.max_positions(), max_length)
    reader = SideReader(lens.tokenizer, True, limit, adapter.target_vocabulary())
    encoded = shifted(adapter, reader.read(target, truncate), lens.tokenizer)
    if limit is not None and len(encoded) > limit:
        raise InputError(
            f"the target has {len(encoded)} tokens with the one that starts it, and the model "
            f"takes at most {limit}; shorten it"
        )
    return encoded


def _shorter(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _sources(
    lens: Lens, adapter: TwoStacks, source: Any, given: GivenPairs, truncate: bool
) -> tuple[list[tuple[Encoded, torch.Tensor | None]], bool]:
    """Every source, with its sound if it is one, and whether they were a batch."""
    ways = [source, given.input_ids, given.input_features]
    if sum(way is not None for way in ways) != 1:
        raise InputError(
            "pass one source: a text, input_ids=… or (for a model that hears) input_features=…"
        )
    if given.input_features is not None:
        return _sounds(lens, adapter, given.input_features)
    if given.input_ids is None:
        return [(_read_source(lens, adapter, source, truncate), None)], False
    if adapter.hears:
        raise InputError(f"{lens.name} hears its source; pass input_features=…, not input_ids")
    encoded, many = encode_ids(
        given.input_ids,
        given.attention_mask,
        None,
        lens.tokenizer,
        adapter.source_vocabulary(),
        adapter.max_source_positions(),
    )
    return [(sequence, None) for sequence in encoded], many


def _sounds(
    lens: Lens, adapter: TwoStacks, given: Any
) -> tuple[list[tuple[Encoded, torch.Tensor | None]], bool]:
    if not adapter.hears:
        raise InputError(f"{lens.name} reads its source; pass a text or input_ids=…")
    try:
        features = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        features = torch.empty(0)
    frames = adapter.max_source_positions()
    bins = adapter.config.num_mel_bins
    if features.dim() not in (2, 3) or features.shape[-2] != bins or not features.numel():
        raise InputError(
            f"input_features has shape {tuple(features.shape)}; {lens.name} takes ({bins} mel "
            "bins, time steps), or a batch of them"
        )
    many = features.dim() == 3
    # Two time steps of the features make one frame, of 20 ms.
    tokens = [f"{k * 0.02:.2f}s" for k in range(frames or 0)]
    encoded = Encoded(list(range(len(tokens))), tokens, [False] * len(tokens))
    if features.shape[-1] != 2 * len(tokens):
        raise InputError(
            f"input_features has {features.shape[-1]} time steps; {lens.name} takes "
            f"{2 * len(tokens)}, shorter sound is padded by its feature extractor"
        )
    return [(encoded, one) for one in (features if many else features[None])], many


def _targets(
    lens: Lens, adapter: TwoStacks, target: Any, given: GivenPairs, truncate: bool, count: int
) -> list[Encoded | None]:
    """A target for each source; None where the model has to generate it."""
    if target is not None and given.decoder_input_ids is not None:
        raise InputError("pass either a target or decoder_input_ids=…, one of the two")
    if given.decoder_input_ids is not None:
        encoded, _ = encode_ids(
            given.decoder_input_ids,
            given.decoder_attention_mask,
            None,
            lens.tokenizer,
            adapter.target_vocabulary(),
            adapter.max_positions(),
        )
    elif target is None:
        return [None] * count
    else:
        many = isinstance(target, list) and given.source is None and count > 1
        listed = target if many else [target]
        encoded = [_read_target(lens, adapter, one, truncate) for one in listed]
    if len(encoded) != count:
        raise InputError(f"there are {count} sources and {len(encoded)} targets; give one for each")
    return list(encoded)
