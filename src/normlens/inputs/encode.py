"""What a lens is given, as the sequences that its model reads: one, or an encoder–decoder's two."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from normlens.errors import (
    SMALLER,
    InputError,
    NormLensWarning,
    listed,
    reason_of,
    require,
    shortage_explained,
)
from normlens.inputs import as_list
from normlens.inputs.signals import Features, encode_features, encode_signals
from normlens.inputs.text import (
    SOURCE,
    TARGET,
    TEXT,
    Encoded,
    Ids,
    Reader,
    Side,
    is_chat,
    tokens_of,
)
from normlens.loading.hub import quiet_transformers
from normlens.models.parts import SignalEncoder, TwoStacks
from normlens.options import whole_number
from normlens.trace.locking import exclusive
from normlens.trace.run import model_inputs, reading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from normlens.lens import Lens

#: A source alone, or with its target.
SourceTarget: TypeAlias = tuple[Side, Side | None]

#: How many tokens a model generates at most, unless its positions end before that.
MOST_GENERATED = 512
GENERATED = "generated"
#: What belongs to token ids and means nothing without them.
_BESIDE_IDS = {
    "attention_mask": "input_ids",
    "token_type_ids": "input_ids",
    "decoder_attention_mask": "decoder_input_ids",
}


@dataclass(frozen=True)
class RawInput:
    """What `Lens.maps` is given: one sequence, an encoder–decoder's two, or a signal."""

    source: Any = None
    target: Any = None
    input_ids: Ids | None = None
    attention_mask: Ids | None = None
    token_type_ids: Ids | None = None
    decoder_input_ids: Ids | None = None
    decoder_attention_mask: Ids | None = None
    input_features: Features | None = None
    sampling_rate: int | None = None  # of a sound, in Hz
    truncate: bool = False  # accept the beginning of a text that is too long

    def gives(self, *names: str) -> bool:
        """Whether any of these is given."""
        return any(getattr(self, name) is not None for name in names)

    def __post_init__(self) -> None:
        for name, ids in _BESIDE_IDS.items():
            if self.gives(name) and not self.gives(ids):
                raise InputError(
                    f"{name} belongs to token ids; give {ids}=… with it, or leave it out"
                )


def encode_input(lens: Lens, given: RawInput) -> tuple[list[Encoded], bool]:
    """Inputs as the model takes them, and whether they were given as a list."""
    return (encode_pairs if lens.adapter.two_stacks else encode_one)(lens, given)


def encode_one(lens: Lens, given: RawInput) -> tuple[list[Encoded], bool]:
    """Single sequences, as the model takes them, and whether they were given as a list."""
    source = given.source if is_chat(given.source) else as_list(given.source)
    if isinstance(lens.adapter, SignalEncoder):
        return encode_signals(lens, replace(given, source=source))
    check_no_signal(lens, source, given.sampling_rate)
    if lens.adapter.two_stacks:
        raise InputError(
            f"{lens.name} is an encoder–decoder, of which this analysis needs one stack; "
            "lens.maps(source, target) and lens.explain(source, target=…) take both"
        )
    if given.gives("target", "decoder_input_ids", "input_features"):
        raise InputError(
            f"{lens.name} reads one sequence, and a target (or decoder_input_ids, input_features) "
            "is for an encoder–decoder; pass the text alone, or a pair of texts as a tuple"
        )
    if (source is None) == (given.input_ids is None):
        raise InputError("pass either a text (or a list of texts) or input_ids=…, one of the two")
    reader, many = reader_of(lens), isinstance(source, list) and not is_chat(source)
    encoded = list[Encoded]()
    if source is not None:
        texts = source if many else [source]
        for text in texts:
            if isinstance(text, tuple):
                check_separated(lens)
            encoded.append(_warn_of_unknown(reader, reader.read(text, given.truncate)))
        return encoded, many
    encoded, many = reader.read_ids(given.input_ids, given.attention_mask, given.token_type_ids)
    count = lens.adapter.token_types()
    for kind in (kind for sequence in encoded for kind in sequence.type_ids or ()):
        if not 0 <= kind < max(1, count):  # type 0 is always allowed
            has = f"knows types 0 to {count - 1}" if count > 1 else "has no token types"
            raise InputError(
                f"token_type_ids holds {kind}, and {lens.name} {has}; leave token_type_ids out"
            )
    return encoded, many


def check_no_signal(lens: Lens, given: Any, sampling_rate: int | None) -> None:
    """Raise where a model that reads texts is given a picture or a sound."""
    first = given[0] if isinstance(given, list) and given else given
    is_signal = (
        isinstance(first, (Tensor, os.PathLike))
        or type(first).__module__.startswith("PIL.")
        or getattr(getattr(first, "dtype", None), "kind", "") in tuple("iufb")
    )
    if is_signal or sampling_rate is not None:
        what = f"a {type(first).__name__}" if is_signal else "sound"
        raise InputError(
            f"{lens.name} reads text, not {what}; pictures are "
            "for models such as vit or clip_vision_model, sound for wav2vec2 (`normlens models`)"
        )


def reader_of(lens: Lens, name: str = TEXT, max_length: int | None = None) -> Reader:
    """What reads a lens's texts, or an encoder–decoder's sources or targets."""
    adapter = lens.adapter
    limit, vocabulary = lens.max_tokens, getattr(adapter.config, "vocab_size", None)
    if isinstance(adapter, TwoStacks):
        limit, vocabulary = adapter.max_positions(), adapter.target_vocabulary()
        if name == SOURCE:
            limit, vocabulary = adapter.max_source_positions(), adapter.source_vocabulary()
    shorter = min(filter(None, (limit, max_length)), default=None)
    return Reader(lens.tokenizer, name, shorter, vocabulary, adapter.reads_padding)


def check_separated(lens: Lens) -> None:
    """Raise where neither a token nor a token's type tells the two texts of a pair apart."""
    added: Any = getattr(lens.tokenizer, "num_special_tokens_to_add", None)
    if added is None:
        return
    has_types = "token_type_ids" in getattr(lens.tokenizer, "model_input_names", ())
    if has_types and lens.adapter.token_types() > 1 and not lens.causal:
        return  # BERT's two segments
    if added(pair=True) <= added(pair=False):
        raise InputError(
            f"the tokenizer of {lens.name} puts nothing between the two texts of a pair, so the "
            "model cannot tell them apart; pass them as one text, joined as it should read them"
        )


def check_stacks(lens: Lens, items: Sequence[Encoded]) -> None:
    """Raise unless the items are pairs for an encoder–decoder, and single sequences for others."""
    takes, maker = "single sequences", "encode"
    if lens.adapter.two_stacks:
        takes, maker = "pairs of a source and a target", "encode_pairs"
    for item in items:
        if (item.source is not None) != lens.adapter.two_stacks:
            raise InputError(f"{lens.name} takes {takes}; make them with lens.{maker}(…)")


# A source and a target for an encoder–decoder: given as text, words or ids, or generated.
#
# A source and a target are one pair, each a text or a list of words. A list holds several:
# sources, or pairs (source, target). Either side may be token ids instead, and a source may be
# sound.


def encode_pairs(lens: Lens, given: RawInput) -> tuple[list[Encoded], bool]:
    """The pairs, and whether they were given as a list."""
    adapter = _two_stacks(lens)
    source, target, truncate = given.source, given.target, given.truncate
    if target is None:
        source = as_list(source)
    check_no_signal(lens, source, given.sampling_rate)
    if given.token_type_ids is not None:
        raise InputError(f"{lens.name} has no token types; leave token_type_ids out")
    if isinstance(source, list) and target is None:
        # Without a target beside it a list holds several sources or pairs, as everywhere.
        if given.gives("input_ids", "decoder_input_ids", "input_features"):
            raise InputError("pass either a list of texts or pairs, or ids, one of the two")
        entries = [_source_target(entry) for entry in source]
        return [encode_pair(lens, texts, truncate=truncate) for texts in entries], True
    if isinstance(source, tuple) and target is None:
        source, target = _source_target(source)
    ways = (source, given.input_ids, given.input_features)
    if sum(way is not None for way in ways) != 1:
        raise InputError(
            "pass one source: a text, input_ids=… or (for a model that hears) input_features=…"
        )
    many = False
    if given.input_features is not None:
        sources, many = encode_features(lens, given.input_features)
    elif source is not None or adapter.hears:
        sources = [_read_source(lens, source, truncate)]
    else:
        sources, many = reader_of(lens, SOURCE).read_ids(given.input_ids, given.attention_mask)
    if given.decoder_input_ids is not None:
        if target is not None:
            raise InputError("pass either a target or decoder_input_ids=…, one of the two")
        ids, mask = given.decoder_input_ids, given.decoder_attention_mask
        targets, _ = reader_of(lens, TARGET).read_ids(ids, mask)
    elif target is None:
        return [generated(lens, encoded) for encoded in sources], many
    else:
        several = isinstance(target, list) and given.source is None and len(sources) > 1
        targets = [encode_target(lens, one, truncate) for one in (target if several else [target])]
    if len(targets) != len(sources):
        raise InputError(
            f"there are {len(sources)} sources and {len(targets)} targets; give one for each"
        )
    both = zip(sources, targets, strict=True)
    return [replace(read, source=encoded) for encoded, read in both], many


def encode_pair(
    lens: Lens, texts: SourceTarget, *, truncate: bool, max_length: int | None = None
) -> Encoded:
    """One source and its target, or what the model generates; either of `max_length` at most."""
    source, target = texts
    encoded = _read_source(lens, source, truncate, max_length)
    if target is None:
        return generated(lens, encoded, max_length)
    return replace(encode_target(lens, target, truncate, max_length), source=encoded)


def encode_target(
    lens: Lens, target: Side, truncate: bool = False, max_length: int | None = None
) -> Encoded:
    """A target alone, as the decoder reads it."""
    reader = reader_of(lens, TARGET, max_length)
    read = _warn_of_unknown(reader, reader.read(target, truncate))
    encoded = _shifted(_two_stacks(lens), read, lens.tokenizer)
    reader.check(encoded.ids, "the target with the token that starts it", "; shorten it")
    return encoded


def _read_source(
    lens: Lens, source: Side, truncate: bool, max_length: int | None = None
) -> Encoded:
    if _two_stacks(lens).hears:
        raise InputError(
            f"{lens.name} hears its source; pass input_features=… as its feature extractor gives "
            "them, and the text as the target"
        )
    reader = reader_of(lens, SOURCE, max_length)
    return _warn_of_unknown(reader, reader.read(source, truncate))


def _two_stacks(lens: Lens) -> TwoStacks:
    if not isinstance(lens.adapter, TwoStacks):
        raise InputError(f"{lens.name} reads one sequence; pairs are for encoder–decoders")
    return lens.adapter


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


def _warn_of_unknown(reader: Reader, encoded: Encoded) -> Encoded:
    """The same text; a warning says which words of it became the token for unknown ones."""
    unknown = getattr(reader.tokenizer, "unk_token_id", None)
    if unknown is not None and unknown in encoded.ids:
        places = [k for k, token in enumerate(encoded.ids) if token == unknown]
        owners = [] if encoded.words is None else [encoded.words[k] for k in places]
        names = dict.fromkeys(encoded.word_labels[word] for word in owners if word is not None)
        words = f" (of {listed([repr(name) for name in [*names][:5]])})" if names else ""
        count = "1 token is" if len(places) == 1 else f"{len(places)} tokens are"
        warnings.warn(
            f"{count} {reader.tokenizer.unk_token}{words}: the tokenizer has nothing for what "
            "stands there, and the model does not see it",
            NormLensWarning,
            stacklevel=2,
        )
    return encoded


def _shifted(adapter: TwoStacks, labels: Encoded, tokenizer: Any) -> Encoded:
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
        tokens=[*tokens_of(before, tokenizer), *labels.tokens[kept]],
        special=[*[True] * len(before), *labels.special[kept]],
        words=None if words is None else [*[None] * len(before), *words[kept]],
        end=labels.ids[-1] if ends else None,
    )


# A target that the model generates itself.


def can_generate(lens: Lens) -> bool:
    """Whether a model has a head that makes a target of a source."""
    return bool(getattr(lens.adapter.whole, "can_generate", lambda: False)())


def _generate(lens: Lens, what: str, read: Encoded, options: Mapping[str, Any]) -> list[int]:
    """The tokens that a model generates behind what it reads, by default the likeliest ones."""
    adapter, whole = lens.adapter, lens.adapter.whole
    if not can_generate(lens):
        raise InputError(
            f"{type(whole).__name__} has no head that could generate {what}; give {what}, or load "
            "the model with its head"
        )
    inputs = model_inputs(adapter, [read], lens.device)
    inputs = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}

    def run() -> Any:
        with reading(whole, adapter), quiet_transformers():
            try:
                return whole.generate(**inputs, **{"num_beams": 1, "do_sample": False, **options})
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"the model does not generate with these options ({reason_of(error)})"
                ) from error

    found = exclusive(whole, run)
    rows = getattr(found, "sequences", found).tolist()
    require(len(rows) == 1, f"{what} is one sequence; leave num_return_sequences out")
    return rows[0]


def _as_set(ids: int | list[int] | None) -> set[int | None]:
    """A token, or several, that may end what is generated."""
    return {*ids} if isinstance(ids, list) else {ids}


@shortage_explained("generating a target", SMALLER)
def generated(lens: Lens, source: Encoded, max_length: int | None = None) -> Encoded:
    """A source with the target that the model makes of it, always taking the likeliest token.

    It is cut at `max_length` tokens, where the decoder's positions end, or at MOST_GENERATED.
    """
    adapter = _two_stacks(lens)
    limit = min(filter(None, (adapter.max_positions(), max_length, MOST_GENERATED)))
    # Some target as the tokenizer writes it, which shows the token of its language.
    labels = None if lens.tokenizer is None else Reader(lens.tokenizer, TARGET).read("a").ids
    options = {"max_new_tokens": limit - 1, **adapter.generation_options(labels)}
    # The source as its own target: only what belongs to the source is taken of these inputs.
    ids = _generate(lens, "a target", replace(source, source=source), options)
    finished = len(ids) > 1 and ids[-1] in _as_set(adapter.whole.generation_config.eos_token_id)
    said = GENERATED if finished else f"{GENERATED}, cut at {len(ids)} tokens"
    target = _from_ids(ids[:-1] if finished else ids, lens)
    return replace(target, source=source, end=ids[-1] if finished else None, generated=said)


@shortage_explained("generating an answer", SMALLER)
def answered(lens: Lens, prompt: Encoded, count: int, options: Mapping[str, Any]) -> Encoded:
    """A prompt with the answer of at most `count` tokens that the model gives to it.

    By default it always takes the likeliest token. The token that ends the answer is left out.
    """
    chosen = {"max_new_tokens": whole_number(count, "generate", 1), **options}
    limit = lens.max_tokens
    if limit is not None and len(prompt) >= limit:
        raise InputError(
            f"the prompt has {len(prompt)} tokens and the model takes at most {limit}, so there is "
            "no room for an answer; shorten it"
        )
    if limit is not None and "max_length" not in chosen:
        chosen["max_new_tokens"] = min(chosen["max_new_tokens"], limit - len(prompt))
    ids = _generate(lens, "an answer", prompt, chosen)[len(prompt) :]
    config = lens.adapter.whole.generation_config
    special = _as_set(chosen.get("eos_token_id", config.eos_token_id))
    special |= {getattr(lens.tokenizer, "eos_token_id", None), config.pad_token_id}
    while ids and ids[-1] in special:
        ids.pop()
    require(ids, "the model ends its answer before the first token; give an answer yourself")
    require(
        lens.tokenizer is not None,
        "an answer needs the model's tokenizer; pass it to load(model, tokenizer)",
    )
    return replace(reader_of(lens).followed_by(prompt, ids), generated=GENERATED)


def _from_ids(ids: list[int], lens: Lens) -> Encoded:
    """A generated target, with its words where the tokenizer gives the same ids to its text."""
    tokenizer: Any = lens.tokenizer
    if tokenizer is None:
        return Encoded(ids, tokens_of(ids, None), [False] * len(ids))
    text = tokenizer.decode(ids, skip_special_tokens=True)
    if text.strip():
        again = _shifted(_two_stacks(lens), Reader(tokenizer, TARGET).read(text), tokenizer)
        if again.ids == ids:
            return again
    specials = set(tokenizer.all_special_ids) - {getattr(tokenizer, "unk_token_id", None)}
    special = [token in specials for token in ids]
    return Encoded(ids, tokens_of(ids, tokenizer), special, text=text or None)
