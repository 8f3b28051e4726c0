"""A source and a target for an encoder–decoder: given as text, words or ids, or generated."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from normlens.errors import SMALLER, InputError, shortage_explained
from normlens.inputs.padding import warn_of_padding
from normlens.inputs.text import Encoded, Ids, Pair, check_ids, encode_ids, tokenise, words_of
from normlens.loading.hub import quiet_transformers
from normlens.models.base import Adapter
from normlens.models.parts import TwoStacks
from normlens.trace.locking import alone_with_model
from normlens.trace.run import pair_inputs, reading, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens


# One side of a translation as a sequence: a text, or words that are tokenised already.
#
# A fast tokenizer says which characters a token covers. With another one, each word is tokenised
# on its own: words are known where that gives the tokens of the whole text, and words that are
# given as such keep their own tokens in any case.


#: A text, or the words of one.
Words: TypeAlias = Sequence[str]
Side: TypeAlias = str | Words


@dataclass(frozen=True)
class SideReader:
    """Reads the sources, or the targets, of a model."""

    tokenizer: Any
    is_target: bool
    limit: int | None = None  # tokens
    vocabulary: int | None = None

    @property
    def name(self) -> str:
        return "target" if self.is_target else "source"

    def read(self, given: Side, truncate: bool = False) -> Encoded:
        """Tokenise one side with its special tokens."""
        if self.tokenizer is None:
            ids = "decoder_input_ids" if self.is_target else "input_ids"
            raise InputError(
                "this lens has no tokenizer; pass one to load(model, tokenizer) (--tokenizer), or "
                f"pass {ids}=…"
            )
        words = None if isinstance(given, str) else self._words(given)
        text = str(given) if words is None else " ".join(words)
        if not text.strip():
            raise InputError(f"the {self.name} is empty; give at least one word")
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        read = self._by_offsets if fast else self._word_by_word
        encoded = read(text, words)
        if self.limit is not None and len(encoded) > self.limit:
            if not truncate:
                raise InputError(
                    f"the {self.name} has {len(encoded)} tokens and the model takes at most "
                    f"{self.limit}; shorten it, or accept its beginning with truncate=True "
                    "(--truncate)"
                )
            encoded = _cut(encoded, self.limit)
        check_ids(encoded.ids, self.vocabulary, self.limit)
        return encoded

    def plain_ids(self, text: str) -> list[int]:
        """The tokens of a text without special ones."""
        return list(self._tokenise(text, add_special_tokens=False)["input_ids"])

    def _words(self, given: Any) -> list[str]:
        words = list(given)
        if not all(isinstance(word, str) for word in words):
            raise InputError(f"the {self.name} must be a text or a list of words, got {given!r}")
        spaced = next((word for word in words if word != word.strip() or " " in word), None)
        if spaced is not None or not all(words):
            raise InputError(
                f"{spaced or ''!r} is no word of the {self.name}; a list beside a target holds the "
                "words of one text, and several pairs are given as [(source, target), …]"
            )
        return words

    def _tokenise(self, text: str, **options: Any) -> Any:
        if not self.is_target:
            return tokenise(self.tokenizer, text, **options)
        return tokenise(self.tokenizer, text_target=text, **options)

    def _by_offsets(self, text: str, words: list[str] | None) -> Encoded:
        batch = self._tokenise(text, return_special_tokens_mask=True, return_offsets_mapping=True)
        ids, special = list(batch["input_ids"]), [bool(f) for f in batch["special_tokens_mask"]]
        if words is None:
            of_tokens, labels = words_of(batch, (text,))
        else:
            labels, of_tokens = words, _words_at(text, words, batch["offset_mapping"], special)
        return self._encoded(ids, special, of_tokens, labels, text)

    def _word_by_word(self, text: str, words: list[str] | None) -> Encoded:
        whole = list(self._tokenise(text)["input_ids"])
        plain = list(self._tokenise(text, add_special_tokens=False)["input_ids"])
        labels = re.findall(r"\S+", text) if words is None else words
        pieces = [
            list(self._tokenise(word, add_special_tokens=False)["input_ids"]) for word in labels
        ]
        joined = [token for piece in pieces for token in piece]
        start = _place_of(plain, whole)
        if start is None or (words is None and joined != plain):
            specials = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
            return self._encoded(whole, [token in specials for token in whole], None, [], text)
        before, behind = whole[:start], whole[start + len(plain) :]
        of_tokens: list[int | None] = [None] * len(before)
        of_tokens += [index for index, piece in enumerate(pieces) for _ in piece]
        of_tokens += [None] * len(behind)
        special = [True] * len(before) + [False] * len(joined) + [True] * len(behind)
        return self._encoded([*before, *joined, *behind], special, of_tokens, labels, text)

    def _encoded(
        self,
        ids: list[int],
        special: list[bool],
        words: list[int | None] | None,
        labels: list[str],
        text: str,
    ) -> Encoded:
        if not ids:
            raise InputError(f"the tokenizer makes no token of {text!r}; give at least one word")
        tokens = [str(token) for token in self.tokenizer.convert_ids_to_tokens(ids)]
        return Encoded(ids, tokens, special, None, words, list(labels), text)


def _words_at(
    text: str,
    words: Sequence[str],
    offsets: Sequence[tuple[int, int]],
    special: Sequence[bool],
) -> list[int | None]:
    """The index of each token's word, where words are joined by single spaces."""
    begins, place = [], 0
    for word in words:
        begins.append(place)
        place += len(word) + 1
    of_tokens: list[int | None] = []
    for (start, stop), flag in zip(offsets, special, strict=True):
        token = text[start:stop]
        first = start + len(token) - len(token.lstrip())
        of_tokens.append(None if flag else bisect_right(begins, first) - 1)
    return of_tokens


def _place_of(part: Sequence[int], whole: Sequence[int]) -> int | None:
    """Where a run of tokens begins in a sequence; None if it is not there."""
    count = len(part)
    places = range(len(whole) - count + 1)
    return next((k for k in places if list(whole[k : k + count]) == list(part)), None)


def _cut(encoded: Encoded, limit: int) -> Encoded:
    """The beginning of a sequence, with the special tokens of its end."""
    flags = encoded.special
    behind = next((k for k, flag in enumerate(reversed(flags)) if not flag), len(flags))
    kept = [*range(max(0, limit - behind)), *range(len(encoded) - behind, len(encoded))][:limit]
    words = encoded.words
    return Encoded(
        [encoded.ids[k] for k in kept],
        [encoded.tokens[k] for k in kept],
        [flags[k] for k in kept],
        None,
        None if words is None else [words[k] for k in kept],
        encoded.word_labels,
        encoded.text,
    )


# What a decoder reads: a given target, shifted, or one that the model generates itself.


#: How many tokens a model generates at most, unless its positions end before that.
MOST_GENERATED = 512
GENERATED = "generated"


def shifted(adapter: TwoStacks, labels: Encoded, tokenizer: Any) -> Encoded:
    """What the decoder reads in order to predict `labels`: its start token, then all but the last.

    The last label ends the target and is only ever predicted. Where a tokenizer ends a target with
    no special token, all of it is read.
    """
    ends = labels.special[-1] and len(labels) > 1
    kept = slice(0, len(labels) - 1 if ends else len(labels))
    start = adapter.start_token(labels.ids)
    has_start = adapter.target_has_start and labels.ids[0] == start
    before = [] if has_start else [start]
    words = labels.words
    return replace(
        labels,
        ids=[*before, *labels.ids[kept]],
        tokens=[*_tokens(before, tokenizer), *labels.tokens[kept]],
        special=[*[True] * len(before), *labels.special[kept]],
        words=None if words is None else [*[None] * len(before), *words[kept]],
        end=labels.ids[-1] if ends else None,
    )


def can_generate(adapter: Adapter) -> bool:
    """Whether a model has a head that makes a target of a source."""
    return bool(getattr(adapter.whole, "can_generate", lambda: False)())


@shortage_explained("generating a target", SMALLER)
def generated(lens: Lens, source: Encoded, features: torch.Tensor | None) -> Pair:
    """A source with the target that the model makes of it, always taking the likeliest token."""
    adapter, whole = lens.adapter, lens.adapter.whole
    assert isinstance(adapter, TwoStacks)
    if not can_generate(adapter):
        raise InputError(
            f"{type(whole).__name__} has no head that could generate a target; pass one "
            "(lens.maps(source, target), or decoder_input_ids=…), or load the model with its head"
        )
    limit = min(adapter.max_positions() or MOST_GENERATED, MOST_GENERATED)
    # A target of one token: only what belongs to the source is taken from it.
    inputs = pair_inputs(
        adapter, [Pair(source, source, features=features)], lens.device, lens.dtype
    )
    inputs = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
    options = {"num_beams": 1, "do_sample": False, "max_new_tokens": limit - 1}
    options |= adapter.generation_options(_example_labels(lens))

    def run() -> Any:
        with without_autocast(lens.device), reading(whole, adapter), quiet_transformers():
            return whole.generate(**inputs, **options)

    (ids,) = alone_with_model(whole, run).tolist()
    ends = whole.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    finished = len(ids) > 1 and ids[-1] in ends
    said = GENERATED if finished else f"{GENERATED}, cut at {len(ids)} tokens"
    target = _from_ids(ids[:-1] if finished else ids, lens)
    return Pair(source, replace(target, end=ids[-1] if finished else None), said, features)


def _from_ids(ids: list[int], lens: Lens) -> Encoded:
    """A generated target, with its words where the tokenizer gives the same ids to its text."""
    tokenizer: Any = lens.tokenizer
    adapter = lens.adapter
    assert isinstance(adapter, TwoStacks)
    if tokenizer is None:
        return Encoded(ids, [str(token) for token in ids], [False] * len(ids))
    text = tokenizer.decode(ids, skip_special_tokens=True)
    if text.strip():
        reader = SideReader(tokenizer, is_target=True)
        again = shifted(adapter, reader.read(text), tokenizer)
        if again.ids == ids:
            return again
    specials = set(tokenizer.all_special_ids) - {getattr(tokenizer, "unk_token_id", None)}
    special = [token in specials for token in ids]
    return Encoded(ids, _tokens(ids, tokenizer), special, text=text or None)


def _example_labels(lens: Lens) -> list[int] | None:
    """Some target as the tokenizer writes it, which shows the token of its language."""
    if lens.tokenizer is None:
        return None
    return SideReader(lens.tokenizer, is_target=True).read("a").ids


def _tokens(ids: list[int], tokenizer: Any) -> list[str]:
    if tokenizer is None:
        return [str(token) for token in ids]
    return [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]


# What a lens on an encoder–decoder is given, as pairs of sequences that its model takes.
#
# A source and a target are one pair, each a text or a list of words. A list holds several:
# sources, or pairs (source, target). Either side may be token ids instead, and a source may be
# sound.


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
