"""Texts and token ids as encoded sequences, and the words that their tokens belong to."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from normlens.errors import InputError, check_choice, reason_of
from normlens.gpu.transfer import sent
from normlens.results.axes import PatchGrid, TokenAxis
from normlens.trace.locking import exclusive

Text: TypeAlias = str | tuple[str, str]
#: Several texts or pairs of texts: a list, a column of a table, an array, a generator.
Texts: TypeAlias = Iterable[str] | Iterable[tuple[str, str]] | Iterable[str | tuple[str, str]]
#: A dialogue: messages with a role and content, or {"messages": …} with more for the template, such
#: as tools.
Chat: TypeAlias = Sequence[Mapping[str, object]] | Mapping[str, object]
#: A source or a target of an encoder–decoder: a text, or the words of one.
Side: TypeAlias = str | Sequence[str]
#: Token ids of one sequence or of a batch: lists, a tensor or an array.
Ids: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | torch.Tensor | NDArray[np.integer]
#: A Hugging Face tokenizer, or anything that is called like one.
Tokenizer: TypeAlias = Callable[..., object]

#: What a reader reads, as errors call it.
TEXT, SOURCE, TARGET = "text", "source", "target"


#: Characters of a text, from the first to before the last.
Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Answer:
    """The tokens behind a prompt that answer it, with the characters that each of them writes."""

    first: int  # the place of its first token in the sequence
    text: str
    spans: list[Span]  # of each token, in its text

    def parts(self, by: str) -> list[tuple[str, range]]:
        """Its sentences, paragraphs or tokens, each with the places of its tokens in the answer."""
        count = len(self.spans)
        if by == TOKEN:
            return [(self.text[a:b], range(k, k + 1)) for k, (a, b) in enumerate(self.spans)]
        parts, places = parts_of(self.text, by), list[int]()
        for span in self.spans:
            owner = owner_of(self.text, span, parts)
            places.append(owner if owner is not None else places[-1] if places else 0)
        firsts = [k for k in range(count) if k == 0 or places[k] != places[k - 1]]
        named = zip(firsts, [*firsts[1:], count], strict=True)
        return [(self.text[slice(*parts[places[k]])], range(k, stop)) for k, stop in named]


@dataclass(frozen=True)
class Encoded:
    """A tokenised sequence without padding; with its `source`, the two of an encoder–decoder."""

    ids: list[int]
    tokens: list[str]
    special: list[bool]
    type_ids: list[int] | None = None
    #: index of the word that each token belongs to; None for a special token
    words: list[int | None] | None = None
    word_labels: list[str] = field(default_factory=list)
    text: Text | None = None
    end: int | None = None  # the token behind the last, where a model is only asked to predict it
    #: what a model that sees or hears takes instead of ids: (channels, height, width), (samples,),
    #: (mel bins, time steps)
    signal: torch.Tensor | None = field(default=None, compare=False)
    grid: PatchGrid | None = None  # where a picture's patches are
    #: ids of the padding that was given before and behind it, and left out
    padding: tuple[list[int], list[int]] = field(default=([], []), compare=False)
    #: what an encoder reads, where these are the tokens that its decoder reads, start token first
    source: Encoded | None = None
    generated: str | None = None  # how the model generated these tokens itself; None: given
    #: of a dialogue, the characters of its text that each message's content takes
    contents: list[Span | None] | None = field(default=None, compare=False)
    answer: Answer | None = field(default=None, compare=False)  # the last tokens, which answer
    #: the last tokens that no token attends to, as multi-vector models expand their queries
    unattended: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sequences(self) -> tuple[Encoded, ...]:
        """The sequence that each stack of the model reads, the encoder's first."""
        return (self,) if self.source is None else (self.source, self)

    @property
    def axis(self) -> TokenAxis:
        """The tokens as labels of an axis."""
        return TokenAxis(self.tokens, self.ids, self.special, self.words, self.word_labels)

    @property
    def longest(self) -> int:
        """Tokens of the longer sequence, which decides how much memory they may take."""
        return max(map(len, self.sequences))

    @property
    def whole_text(self) -> Text | None:
        """The text; of an encoder–decoder both texts, if both are known."""
        if self.source is None:
            return self.text
        source, target = self.source.text, self.text
        return (source, target) if isinstance(source, str) and isinstance(target, str) else None


def tokens_of(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """Token ids as tokens; as numbers without a tokenizer."""
    return list(map(str, ids if tokenizer is None else tokenizer.convert_ids_to_tokens(ids)))


def tokenise(tokenizer: Any, *texts: str, **options: Any) -> Any:
    """Call the tokenizer on a text or a pair of texts, one thread at a time.

    A fast tokenizer stores the truncation of its last call.
    """
    try:
        "".join((*texts, options.get("text_target", ""))).encode()
    except UnicodeEncodeError as error:  # half a character, which JSON and shells can give
        raise InputError("the text is not valid Unicode; encode it as UTF-8") from error
    # With `verbose` the tokenizer prints a warning about a long text.
    return exclusive([tokenizer], partial(tokenizer, *texts, verbose=False, **options))


@dataclass(frozen=True)
class Reader:
    """Reads what a model takes: texts or pairs of them, or an encoder–decoder's sources or targets.

    A source or a target may be given as words. A fast tokenizer says which characters a token
    covers. With another one each word is tokenised on its own: words are known where that gives the
    tokens of the whole text, and words that are given as such keep their own tokens in any case.
    """

    tokenizer: Any
    name: str = TEXT
    limit: int | None = None  # tokens
    vocabulary: int | None = None
    padded: bool = False  # whether padding up to the limit is a part of the text

    def read(self, given: Any, truncate: bool = False) -> Encoded:
        """Tokenise one text, or one side of a pair, with its special tokens."""
        if self.tokenizer is None:
            ids = "decoder_input_ids" if self.name == TARGET else "input_ids"
            raise InputError(
                f"this lens has no tokenizer; pass one to load(model, tokenizer), or pass {ids}=…"
            )
        is_text = self.name == TEXT
        if is_text and is_chat(given):
            return self._read_chat(given)
        words = None if is_text or isinstance(given, str) else self._words(given)
        parts = _parts(given) if words is None else (" ".join(words),)
        if not all(map(str.strip, parts)):
            raise InputError(f"the {self.name} is empty; give at least one word")
        if is_text or getattr(self.tokenizer, "is_fast", False):
            encoded = self._at_once(parts, words, truncate and is_text)
        else:
            encoded = self._word_by_word(parts[0], words)
        if not encoded.ids:
            shown = parts if len(parts) > 1 else parts[0]
            raise InputError(f"the tokenizer makes no token of {shown!r}; give at least one word")
        if truncate and not is_text and self.limit is not None:
            encoded = _cut(encoded, self.limit)
        self.check(
            encoded.ids,
            f"the {self.name}",
            "; shorten it, or accept its beginning with truncate=True (--truncate)",
        )
        return encoded

    def _read_chat(self, chat: Chat) -> Encoded:
        """Tokenise a dialogue as its template writes it; the template's own tokens are special."""
        text, contents = rendered(self.tokenizer, chat)
        encoded = self._at_once((text,), None, False, special=False)
        if getattr(self.tokenizer, "is_fast", False):
            inside = [span for span in contents if span is not None]
            owned = [owner_of(text, span, inside) for span in self.spans(text, special=False)]
            special = [
                own or place is None for own, place in zip(encoded.special, owned, strict=True)
            ]
            words = [
                None if flag else word
                for flag, word in zip(special, encoded.words or (), strict=True)
            ]
            encoded = replace(encoded, special=special, words=words)
        self.check(encoded.ids, "the dialogue", "; shorten it")
        return replace(encoded, contents=contents)

    def spans(self, text: str, special: bool = True) -> list[Span]:
        """The characters of a text that each of its tokens covers, by a fast tokenizer."""
        batch = self._tokenise(text, return_offsets_mapping=True, add_special_tokens=special)
        return [(start, stop) for start, stop in batch["offset_mapping"]]

    def answered(self, prompt: Encoded, answer: str) -> Encoded:
        """A prompt followed by the text of its answer, whose tokens leave those of the prompt."""
        before, special = prompt.text, prompt.contents is None
        if not answer.strip():
            raise InputError("the answer is empty; give at least one word")
        ids, spans, fast = list[int](), list[Span](), getattr(self.tokenizer, "is_fast", False)
        if isinstance(before, str):
            text = before + answer
            ids = list(self._tokenise(text, add_special_tokens=special)["input_ids"])
            if fast:
                shifted = self.spans(text, special)[len(prompt) :]
                spans = [(max(0, a - len(before)), b - len(before)) for a, b in shifted]
        if len(ids) <= len(prompt) or ids[: len(prompt)] != prompt.ids:
            ids = [*prompt.ids, *self.plain_ids(answer)]
            spans = self.spans(answer, special=False) if fast else []
        return self.followed_by(prompt, ids[len(prompt) :], answer, spans)

    def followed_by(
        self, prompt: Encoded, ids: list[int], text: str | None = None, spans: Sequence[Span] = ()
    ) -> Encoded:
        """A prompt followed by the tokens of its answer, whose text is that of the tokens."""
        written: list[Span] = list(spans)
        if text is None or not written:
            # Behind the prompt's last token, because some tokenizers drop a leading space.
            behind, decode = [*prompt.ids[-1:], *ids], self.tokenizer.decode
            texts = [
                decode(behind[:count], clean_up_tokenization_spaces=False)
                for count in range(len(behind) - len(ids), len(behind) + 1)
            ]
            ends = list(map(len, texts))
            text = texts[-1][ends[0] :]
            written = [(max(0, a - ends[0]), max(a, b) - ends[0]) for a, b in pairwise(ends)]
        words, labels = prompt.words, prompt.word_labels
        if words is not None:
            begins = [match.start() for match in re.finditer(r"\S+", text)]
            starts = (_first_letter(text, span) for span in written)
            found = [max(0, bisect_right(begins, start) - 1) for start in starts]
            labels = [*labels, *(text.split() or [text])]
            words = [*words, *(len(prompt.word_labels) + word for word in found)]
        encoded = replace(
            prompt,
            ids=[*prompt.ids, *ids],
            tokens=[*prompt.tokens, *tokens_of(ids, self.tokenizer)],
            special=[*prompt.special, *[False] * len(ids)],
            type_ids=None if prompt.type_ids is None else [*prompt.type_ids, *[0] * len(ids)],
            words=words,
            word_labels=labels,
            text=prompt.text + text if isinstance(prompt.text, str) else None,
            answer=Answer(len(prompt), text, written),
        )
        self.check(encoded.ids, "the text with its answer", "; shorten one of them")
        return encoded

    def read_ids(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None
    ) -> tuple[list[Encoded], bool]:
        """Sequences of given token ids without their padding, and whether the ids were a batch."""
        rows, is_batch = _rows(input_ids, "input_ids")
        masks, kinds = [[1] * len(row) for row in rows], [[0] * len(row) for row in rows]
        if attention_mask is not None:
            masks, _ = _rows(attention_mask, "attention_mask")
        if token_type_ids is not None:
            kinds, _ = _rows(token_type_ids, "token_type_ids")
        sizes = [list(map(len, each)) for each in (rows, masks, kinds)]
        if not rows or sizes[0] != sizes[1] or sizes[0] != sizes[2]:
            raise InputError(
                "input_ids, attention_mask and token_type_ids must have the same shape"
            )
        special_ids = set(getattr(self.tokenizer, "all_special_ids", ()))
        encoded = []
        for row, mask, kind in zip(rows, masks, kinds, strict=True):
            kept = _tokens_in(mask)
            ids = row[kept]
            if not ids:
                raise InputError("input_ids has an empty sequence; give at least one token")
            self.check(ids, "input_ids")
            types = None if token_type_ids is None else kind[kept]
            special = [token in special_ids for token in ids]
            padding = row[: kept.start], row[kept.stop :]
            tokens = tokens_of(ids, self.tokenizer)
            encoded.append(Encoded(ids, tokens, special, types, padding=padding))
        return encoded, is_batch

    def plain_ids(self, text: str) -> list[int]:
        """The tokens of a text without special ones."""
        return list(self._tokenise(text, add_special_tokens=False)["input_ids"])

    def _tokenise(self, *texts: str, **options: Any) -> Any:
        if self.name == TARGET:
            return tokenise(self.tokenizer, text_target=texts[0], **options)
        return tokenise(self.tokenizer, *texts, **options)

    def _words(self, given: Any) -> list[str]:
        words = list(given)
        for word in words:
            if not isinstance(word, str) or not word or word != word.strip() or " " in word:
                raise InputError(
                    f"{word!r} is no word of the {self.name}, which is a text or a list of words; "
                    "several pairs are given as [(source, target), …]"
                )
        return words

    def _at_once(
        self, parts: tuple[str, ...], words: list[str] | None, truncate: bool, special: bool = True
    ) -> Encoded:
        """Tokenise a text or a pair with one call; a fast tokenizer says where the words are."""
        fast = self.tokenizer.is_fast
        options: dict[str, Any] = {"return_special_tokens_mask": True}
        options |= {} if special else {"add_special_tokens": False}
        options |= {"return_offsets_mapping": True} if fast else {}
        if self.limit is not None and (truncate or self.padded):
            options |= {"max_length": self.limit}
            options |= {"truncation": True} if truncate else {}
            options |= {"padding": "max_length"} if self.padded else {}
        batch = self._tokenise(*parts, **options)
        ids, types = list(batch["input_ids"]), batch.get("token_type_ids")
        of_tokens, labels = words_of(batch, parts, words) if fast else (None, [])
        return Encoded(
            ids,
            tokens_of(ids, self.tokenizer),
            list(map(bool, batch["special_tokens_mask"])),
            list(types) if types is not None and self.name == TEXT else None,
            of_tokens,
            labels,
            parts if len(parts) == 2 else parts[0],
        )

    def _word_by_word(self, text: str, words: list[str] | None) -> Encoded:
        whole, plain = list(self._tokenise(text)["input_ids"]), self.plain_ids(text)
        labels = re.findall(r"\S+", text) if words is None else words
        pieces = [self.plain_ids(word) for word in labels]
        joined = [token for piece in pieces for token in piece]
        places = range(len(whole) - len(plain) + 1)
        start = next((k for k in places if whole[k : k + len(plain)] == plain), None)
        of_tokens: list[int | None] | None = None
        if start is None or (words is None and joined != plain):
            specials = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
            ids, special, labels = whole, [token in specials for token in whole], []
        else:
            before, behind = whole[:start], whole[start + len(plain) :]
            ids = [*before, *joined, *behind]
            inside = [index for index, piece in enumerate(pieces) for _ in piece]
            of_tokens = [*[None] * len(before), *inside, *[None] * len(behind)]
            special = [word is None for word in of_tokens]
        return Encoded(
            ids, tokens_of(ids, self.tokenizer), special, None, of_tokens, list(labels), text
        )

    def check(self, ids: Sequence[int], what: str, instead: str = "") -> None:
        """Raise for token ids that the model does not have, or for more of them than it takes."""
        if self.limit is not None and len(ids) > self.limit:
            raise InputError(
                f"{what} has {len(ids)} tokens and the model takes at most {self.limit}{instead}"
            )
        if self.vocabulary is not None and not 0 <= min(ids) <= max(ids) < self.vocabulary:
            wrong = next(i for i in ids if not 0 <= i < self.vocabulary)
            raise InputError(
                f"token id {wrong} is out of vocabulary; this model's ids are 0 to "
                f"{self.vocabulary - 1} (a tokenizer must be the model's own)"
            )


def _parts(text: Any) -> tuple[str, ...]:
    """A text alone, or a pair of texts."""
    match text:
        case str() | [str()] | [str(), str()]:
            return (text,) if isinstance(text, str) else tuple(text)
    shown = " ".join(repr(text).split())  # arrays and tables are written in several lines
    raise InputError(f"expected a text or a pair of texts, got {shown[:120]}")


def _cut(encoded: Encoded, limit: int) -> Encoded:
    """The beginning of a sequence that is too long, with the special tokens of its end."""
    n = len(encoded)
    if n <= limit:
        return encoded
    behind = next((k for k, flag in enumerate(reversed(encoded.special)) if not flag), n)
    kept = [*range(max(0, limit - behind)), *range(n - behind, n)][:limit]
    chosen: dict[str, Any] = {}
    for name in ("ids", "tokens", "special", "words"):
        if (each := getattr(encoded, name)) is not None:
            chosen[name] = [each[k] for k in kept]
    return replace(encoded, **chosen)


# Dialogues: messages as the tokenizer's chat template writes them.


def is_chat(value: Any) -> bool:
    """Whether a value is a dialogue: messages with a role, alone or with more for the template."""
    if isinstance(value, Mapping):
        return is_chat(value.get("messages"))
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    return is_list and all(isinstance(each, Mapping) and "role" in each for each in value)


def rendered(tokenizer: Any, chat: Chat) -> tuple[str, list[Span | None]]:
    """The text that a chat template makes of messages, and where in it each content stands.

    Unless the last message is the assistant's, the template writes the beginning of its answer.
    """
    given = dict(chat) if isinstance(chat, Mapping) else {"messages": chat}
    messages: Any = given.pop("messages")
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise InputError(
            "messages need a tokenizer with a chat template, and this one has none; give a text"
        )
    given.setdefault("add_generation_prompt", messages[-1]["role"] != "assistant")

    def render(listed: Any) -> str:
        try:
            said = exclusive(
                [tokenizer],
                partial(tokenizer.apply_chat_template, listed, tokenize=False, **given),
            )
        except Exception as error:  # a template may raise anything
            raise InputError(
                f"the chat template does not take these messages ({reason_of(error)})"
            ) from error
        return str(said)

    text = render(messages)
    contents = [str(message.get("content") or "") for message in messages]
    # Where marks stand that no template changes, contents do; some templates strip them.
    marks = [f"\ue000{place}\ue001" for place in range(len(messages))]
    marked = [{**message, "content": mark} for message, mark in zip(messages, marks, strict=True)]
    try:
        between = re.split("\ue000\\d+\ue001", render(marked))
    except InputError:
        between = []
    spans: list[Span | None] = []
    end = 0
    for place, content in enumerate(contents):
        start = end + len(between[place]) if len(between) == len(contents) + 1 else end
        ways = content, content.strip()
        said = next((way for way in ways if way and text.startswith(way, start)), None)
        if said is None:  # the template depends on what is said
            said = content.strip()
            start = text.find(said, end) if said else -1
        spans.append((start, start + len(said)) if start >= 0 and said else None)
        end = start + len(said) if start >= 0 else end
    return text, spans


# Parts of a text: its sentences or paragraphs, and the one that a token belongs to.


DOCUMENT, PARAGRAPH, SENTENCE, TOKEN = "document", "paragraph", "sentence", "token"
#: Words whose full stop ends no sentence before a name or a number, and those that may end one.
_TITLES = (  # noqa: SIM905, which would write a line for each
    "mr mrs ms dr prof st sr jr gen col capt lt sgt rev hon gov sen rep pres mt ft vs no nos fig "
    "figs eq vol pp p ch sec cf al dept univ approx e.g i.e bzw z.b d.h nr"
).split()
_STARTERS = (  # noqa: SIM905
    "a an the this that these those it its he she they we you i in on at as if when while but "
    "and however his her their there for after before since"
).split()
_END = re.compile(
    r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*|\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)])\s)"
)


def parts_of(text: str, by: str) -> list[Span]:
    """The sentences, paragraphs or the whole of a text, without the white space between them."""
    check_choice(by, (SENTENCE, PARAGRAPH, DOCUMENT), "by")
    cuts = [0]
    if by == PARAGRAPH:
        cuts += [match.end() for match in re.finditer(r"\n\s*\n", text)]
    elif by == SENTENCE:
        cased = text.upper() != text and any(map(str.isupper, text))
        for match in _END.finditer(text):
            if not _goes_on(text, cuts[-1], match, cased):
                cuts.append(match.end())
    spans = []
    for start, stop in pairwise([*cuts, len(text)]):
        if inside := text[start:stop].strip():
            first = _first_letter(text, (start, stop))
            spans.append((first, first + len(inside)))
    return spans


def _goes_on(text: str, start: int, end: re.Match[str], cased: bool) -> bool:
    """Whether a sentence that began at `start` goes on behind what looks like its end."""
    if not end[0].strip() or end[0][0] in "。！？":
        return False
    behind = text[end.end() :].split(maxsplit=1)
    following = behind[0].lstrip("\"'“‘«([") if behind else ""
    if cased and following[:1].islower():
        return True
    before = text[start : end.start()].split()
    word = before[-1].lstrip("\"'“‘«([") if before else ""
    if end[0] != ".":
        return False
    if len(before) == 1 and word.isdecimal():
        return True  # the number of an entry of a list
    if word.casefold() in _TITLES:
        return word.casefold() not in ("no", "nos", "p", "al") or following[:1].isdigit()
    initials = re.fullmatch(r"(?:[^\W\d_]\.)*[^\W\d_]", word) is not None
    return initials and word not in ("I", "a") and following.casefold() not in _STARTERS


def owner_of(text: str, token: Span, parts: Sequence[Span]) -> int | None:
    """The place of the part that holds a token's first character that is no white space."""
    start = _first_letter(text, token)
    start = token[0] if start == token[1] else start
    place = bisect_right([first for first, _ in parts], start) - 1
    return place if place >= 0 and start < parts[place][1] and token[0] < token[1] else None


def _first_letter(text: str, span: Span) -> int:
    """Where the first character of a span is that is no white space; its end if all is."""
    inside = text[slice(*span)]
    return span[0] + len(inside) - len(inside.lstrip())


# Words: which word of the text each token belongs to.


def words_of(
    batch: Any, parts: Sequence[str], words: list[str] | None = None
) -> tuple[list[int | None], list[str]]:
    """The index of each token's word (None for a special token), and the words as text.

    The tokenizer's pre-tokenisation says what a word is. Some tokenizers (SentencePiece without
    one) call the whole text one word; there white space separates words. `words` that are given
    are joined by single spaces.
    """
    word_ids, offsets, segments = batch.word_ids(), batch["offset_mapping"], batch.sequence_ids()
    starts: list[list[int]] = []  # of each text's words, where the tokenizer does not tell them
    separated = r"\S+" if words is None else "[^ ]+"  # a given word may hold other white space
    known = defaultdict[int | None, set[int | None]](set)  # words of each text
    for segment, word in zip(segments, word_ids, strict=True):
        known[segment].add(word)
    for segment, part in enumerate(parts):
        begins = list(map(re.Match.start, re.finditer(separated, part)))
        unsplit = len(known[segment]) == 1 and len(begins) > 1
        starts.append(begins if unsplit or words is not None else [])
    of_tokens: list[int | None] = []
    spans: dict[tuple[int, int], tuple[int, int, int]] = {}  # each word's index and characters
    for segment, word, (start, stop) in zip(segments, word_ids, offsets, strict=True):
        if segment is None or (words is None and word is None):
            of_tokens.append(None)
            continue
        if starts[segment]:
            first = _first_letter(parts[segment], (start, stop))
            word = bisect_right(starts[segment], first) - 1
        index, low, high = spans.get((segment, word), (len(spans), start, stop))
        spans[segment, word] = index, min(low, start), max(high, stop)
        of_tokens.append(index if words is None else word)
    if words is None:
        words = []
        for (segment, _), (_, low, high) in spans.items():
            words.append(parts[segment][low:high].strip())
    return of_tokens, words


# Rows of token ids: as users give them, and as a model takes them.


def _tokens_in(mask: list[int]) -> slice:
    """The positions of the tokens: one run of ones, with padding before or behind it."""
    first, last = (mask.index(1), mask[::-1].index(1)) if 1 in mask else (0, len(mask))
    tokens = slice(first, len(mask) - last)
    for position, value in enumerate(mask):
        if value != (tokens.start <= position < tokens.stop):
            where = "between tokens" if value == 0 else "which is neither 0 nor 1"
            raise InputError(
                f"attention_mask has {value} at position {position}, {where}; it is 1 for tokens "
                "and 0 for padding, at the ends only: leave tokens out of input_ids to analyse the "
                "text without them"
            )
    return tokens


def _rows(values: Any, what: str) -> tuple[list[list[int]], bool]:
    """Rows of integers from a tensor, an array or lists, and whether there is a batch axis."""
    rows = _plain(values)
    batched = isinstance(rows, list) and bool(rows) and isinstance(rows[0], list)
    rows = rows if batched else [rows]
    if not all(
        isinstance(row, list) and all(isinstance(value, int) for value in row) for row in rows
    ):
        raise InputError(f"{what} must be integers, one row per sequence, got {values!r}")
    return rows, batched


def _plain(values: Any) -> Any:
    """Lists and numbers from tensors, arrays and tuples."""
    if hasattr(values, "tolist"):
        return values.tolist()
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes)):
        return [_plain(value) for value in values]
    return values


def pad(batch: Sequence[Encoded], pad_id: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Model inputs for several sequences, padded on the right.

    Padding goes to the right, whatever the tokenizer prefers: there it changes neither positions
    nor causal attention. Token types are given for all sequences or for none, because GPT-2 does
    not treat missing types as zeros.
    """
    width = max(map(len, batch))
    tables = defaultdict[str, list[list[int]]](list)
    for sequence in batch:
        n, behind = len(sequence), width - len(sequence)
        tables["input_ids"].append(sequence.ids + [pad_id] * behind)
        unseen = sequence.unattended
        tables["attention_mask"].append([1] * (n - unseen) + [0] * (unseen + behind))
        if sequence.type_ids is not None:
            tables["token_type_ids"].append(sequence.type_ids + [0] * behind)
    if 0 < len(tables.get("token_type_ids", ())) < len(batch):
        raise InputError("some sequences have token types and others none; give them to all")
    inputs = {}
    for name, table in tables.items():
        inputs[name] = sent(torch.tensor(table), device)
    return inputs
