"""The options of every operation, declared once for Python, command line, server and manifest."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from normlens.errors import InputError, OptionError, check_choice, listed, valid_choice

if TYPE_CHECKING:
    from torch import Tensor

# Names of the rules for the feed-forward nonlinearity; nothing here needs torch.


IG = "ig"
SHAPLEY = "shapley"
#: `normlens.frozen.activations` and `normlens.frozen.norm_maps` compute them.
RULES = (IG, "ig-bias", "gradient", SHAPLEY)
#: Rules that users registered, by name: slopes of (value, *arguments) (`register_rule`).
OWN_RULES: dict[str, Callable[..., Any]] = {}


def register_rule(name: str, slopes: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
    """Add a rule for activations, to be named as `nonlinearity` wherever one may be.

    ``slopes(value, z)`` gives the slope r of each neuron, a tensor like its argument z (…, m), one
    neuron apart from the other. A gated block has ``value(a, u) = g(a) u``, and
    ``slopes(value, a, u)`` gives one for each of the two.
    What ``value(z)`` has beyond ``z ⊙ r`` belongs to no token, so parts and remainder sum to the
    model's own vectors whatever the slopes are, and `completeness` says so. A name that NormLens
    has itself is refused; the same name again replaces the rule.
    """
    if not name or name in RULES or not callable(slopes):
        raise InputError(
            f"register_rule takes a new name and a function of (value, z), not {name!r} and "
            f"{slopes!r}; NormLens itself has {listed(RULES)}"
        )
    OWN_RULES[name] = slopes


#: Why no layers can be composed under that rule.
NOT_LINEAR = (
    "Shapley values are not linear in the parts and cannot be composed; use the rule 'ig', "
    "'ig-bias' or 'gradient'"
)
#: Why a layer with several feed-forward blocks has no maps under that rule.
NOT_BY_SOURCE = (
    "Shapley values are not sampled for layers with several feed-forward blocks or a bottleneck; "
    "use the rule 'ig', 'ig-bias' or 'gradient', or scopes before the first feed-forward block"
)
#: Why a layer of experts has no maps under that rule.
NOT_FOR_EXPERTS = (
    "Shapley values are not sampled for mixtures of experts; use the rule 'ig', 'ig-bias' or "
    "'gradient', or scopes before the feed-forward block"
)


# Names of precisions that a user can choose; this module does not need torch.


AUTO = "auto"
#: The memory limit of the feed-forward stage, in bytes: larger tiles are not faster. It is the same
#: on every machine, because the sizes of tiles decide the last digits.
DEFAULT_LIMIT = 1 << 28
#: The precision in which a checkpoint was saved.
CHECKPOINT = "checkpoint"
#: Precisions of a model's weights, by torch's names.
DTYPES = ("float64", "float32", "float16", "bfloat16")
#: Precisions of feed-forward products, for the fused kernels; tiles are as exact as the weights.
PRECISIONS = (AUTO, "float32", "tf32", "bfloat16")
#: Precisions of the maps that a call returns; "auto" is the algebra's, float32 for most models.
MAP_DTYPES = (AUTO, "float32", "float16")
#: What completeness is about in half precision; in float32 it is about 1e-06.
HALF = {"float16": 1e-3, "bfloat16": 1e-2}


def cost_in_words(dtype: str) -> str:
    """What half precision costs in completeness, to stand behind it; "" for others."""
    return f" in {dtype}, about 1e-06 in float32" if dtype in HALF else ""


# Whose contributions a map shows: those of a layer's input vectors, or of the model's tokens.


LAYER, INPUT = "layer", "input"
ORIGINS = (LAYER, INPUT)

#: What titles say of maps whose sources are not the layer's own.
IN_WORDS = {INPUT: "sources: input tokens"}


# What is typed for an option, as its value; nothing here needs torch.


FROM_ZERO = "layers are counted from 0"
_LAYER_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


#: More layers than any model has; a range that ends behind them is a slip.
MOST_LAYERS = 1 << 16


def parse_layers(text: str) -> list[int] | None:
    """``"0,2-4"`` as layers; None is all of them.

    The last of a range comes first, so that one beyond the model's end is refused by the number
    that was typed.
    """
    if text.strip().lower() == "all":
        return None
    layers = list[int]()
    for part in text.split(","):
        match = _LAYER_RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < MOST_LAYERS:
            raise InputError(
                f"cannot read --layers {text!r}; write for example 2, 0,2-4 or all ({FROM_ZERO})"
            )
        layers += range(last, first - 1, -1)
    return layers


def parse_scopes(typed: Iterable[str]) -> str | list[str]:
    """Names that were repeated or separated by commas, as one list, or "all"."""
    names = [name.strip() for given in typed for name in given.split(",") if name.strip()]
    if not names:
        raise OptionError("scope", "{option} names nothing; leave it out to take all")
    return "all" if names == ["all"] else names


def parse_batch_size(value: int | str) -> int | str:
    """A number of sequences, or "auto"."""
    try:
        size = AUTO if value == AUTO else int(str(value))  # no truth value, no 2.5
    except ValueError:
        size = 0
    if size != AUTO and int(size) < 1:
        raise OptionError("batch_size", f"{{option}} is a number from 1 or 'auto', not {value!r}")
    return size


def parse_bytes(value: int | float | str | None) -> int | None:
    """A memory limit as bytes: a number, or a string such as "512MB" or "1.5 GiB"."""
    if value is None:
        return None
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)i?b?\s*", str(value).lower())
    try:
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise InputError(f"memory limit {value!r} is not a size; write for example '512MB' or 2e9")
    return size


# Fields of option dataclasses, with what the command line and signatures show of them.
#
# An operation's options are one frozen dataclass. Each field that can be typed carries an
# `Option`: `normlens.cli.parameters` builds the command line from them. Nothing here needs torch.


_KEY = "option"
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """What the command line needs to know of a field beside its name, type and default."""

    help: str
    metavar: str | None = None
    #: where ``--name-of-the-field`` alone will not do: ("--scope", "-s")
    flags: tuple[str, ...] = ()
    #: the type of what is typed, where it is not the field's, and what makes the value of it
    typed: Any = None
    parse: Callable[[Any], Any] | None = None
    #: the annotation of what Python's keyword takes, where that is more than the field keeps
    takes: str = ""

    @property
    def metadata(self) -> dict[str, Option]:
        """What `dataclasses.field` takes as metadata."""
        return {_KEY: self}

    def field(self, default: Any) -> Any:
        """A dataclass field with this option."""
        return field(default=default, metadata=self.metadata)


def option_of(item: Field[Any]) -> Option | None:
    """What a field carries for the command line; None where it cannot be typed."""
    return item.metadata.get(_KEY)


def options_of(kind: Any) -> dict[str, Option]:
    """The options that can be typed, by the names of their fields."""
    return {item.name: option for item in fields(kind) if (option := option_of(item)) is not None}


def names_of(kind: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(item.name for item in fields(kind))


def shows_fields_of(
    *kinds: Any, without: tuple[str, ...] = (), before: str | None = None
) -> Callable[[F], F]:
    """Decorator: the signature of a function shows fields where it takes ``**options`` of them.

    They stand at the end, or before one of the parameters.

    Notebooks and `help` then list the options with their defaults, `check_keywords` reads them, and
    ``tools/write_keywords.py`` writes their types; the call is left as it is.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shown = [
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(kind, item.name, None),
                annotation=getattr(option_of(item), "takes", "") or item.type,
            )
            for kind in kinds
            for item in fields(kind)
            if item.name not in (*without, *signature.parameters)
        ]
        names = [each.name for each in parameters]
        place = len(names) if before is None else names.index(before)
        parameters[place:place] = shown
        vars(function)["__signature__"] = signature.replace(parameters=parameters)
        return function

    return decorate


def check_keywords(call: Callable[..., Any], given: Iterable[str]) -> None:
    """Raise for a keyword that a signature does not show, and name the nearest one."""
    taken = inspect.signature(call).parameters
    for name in given:
        if name not in taken:
            nearest = get_close_matches(name, taken, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise InputError(f"{call.__name__} takes no option {name!r}{hint}")


def split_keywords(given: Mapping[str, Any], kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keywords that are fields of a dataclass, and the others."""
    own, others = dict[str, Any](), dict[str, Any]()
    for name, value in given.items():
        (own if name in names_of(kind) else others)[name] = value
    return own, others


def from_json(kind: type[T], written: dict[str, Any]) -> T:
    """A dataclass of options as a JSON file has it: lists are tuples, other names are left out."""
    given = {name: value for name, value in written.items() if name in names_of(kind)}
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return kind(**given | lists)


def check_same(then: object, now: object, names: Iterable[str]) -> None:
    """Refuse other options than those that the results in a folder were begun with."""
    for name in names:
        before, given = getattr(then, name), getattr(now, name)
        if before != given:
            raise InputError(
                f"the folder holds results with {name.replace('_', ' ')} {before!r}, not "
                f"{given!r}; choose another --out"
            )


def keep_iterators(options: Any) -> None:
    """Replace generators by lists, because each stack of a model reads the options again."""
    for name, value in vars(options).items():
        if isinstance(value, Iterator):
            object.__setattr__(options, name, list(value))


# What an analysis and a model may be asked for: one set of options for Python, runs, server and
# shell.
#
# Fields that can be typed carry an `Option`. Nothing here needs torch until an analysis begins.


# Options that analyses and runs have in common.
DEVICE = Option("auto, cpu, cuda, mps, …", metavar="DEVICE")
DTYPE = Option(f"{listed((AUTO, CHECKPOINT, *DTYPES), 'or')}.", metavar="TYPE")
REVISION = Option("Branch, tag or commit on the hub.", metavar="REV")
TRUST = Option("Run Python code that the model brings along.")
PART = Option(
    "Of a model made of several: which one, by its path, for example vision_model.", metavar="PATH"
)
PRECISION = Option(f"Of FF products on a GPU: {listed(PRECISIONS, 'or')}.", metavar="KIND")


@dataclass(frozen=True)
class LoadOptions:
    """The keywords of `normlens.load`, which explains them."""

    device: str = DEVICE.field(AUTO)
    dtype: str = DTYPE.field(AUTO)
    revision: str | None = REVISION.field(None)
    trust_remote_code: bool = TRUST.field(False)
    part: str | None = PART.field(None)
    device_map: str | None = None


@dataclass(frozen=True)
class AnalysisOptions:
    """The options of `Lens.maps`; wrong ones are refused when it is made.

    - `scopes` and `layers` (from 0; negative from the end) choose; None is all of them.
    - `heads` adds head-level ATTN maps.
    - `statistics` adds what the papers measure of the feed-forward block's vectors.
    - `nonlinearity` is the rule for the feed-forward activation: "ig", "ig-bias", "gradient" or
      "shapley" (`samples` permutations, `seed`; the maps' `standard_error` is that of each norm).
    - `batch_size` is how many sequences go through the model at a time; "auto" asks the memory.
    - `memory_limit` ("512MB") bounds what the feed-forward stage takes beside inputs and outputs.
    - `precision` is that of the feed-forward products on a GPU: "float32" (the default), "tf32" or
      "bfloat16"; the maps' provenance says which it was.
    - `map_dtype` is the type of the maps that are returned, of whole scopes and of heads: "float16"
      takes half the memory and leaves a GPU in half the time, with three digits instead of seven;
      maps that float16 cannot hold are refused. All other results keep the algebra's type.
    - `origin` says whose contributions maps show: "layer", those of each layer's input vectors, or
      "input", those of the model's input tokens, through all layers before. Biases then belong to
      no token, and weights, `heads`, `statistics` and "shapley" have no such origin.
    """

    scopes: str | Iterable[str] | None = Option(
        "Scope such as ATTNRESLN-N, or its last component (ATTN, RES1, LN1, FF, …); repeat it or "
        "separate names by commas. Default: all.",
        metavar="NAME",
        flags=("--scope", "-s"),
        typed=list[str],
        parse=parse_scopes,
    ).field(None)
    layers: int | Iterable[int] | None = Option(
        f"For example 2 or 0,2-4; {FROM_ZERO}. Default: all.",
        metavar="LIST",
        typed=str,
        parse=parse_layers,
    ).field(None)
    heads: bool = Option("Head-level ATTN maps too.").field(False)
    statistics: bool = False
    nonlinearity: str = Option(
        f"How the feed-forward activation is passed on: {listed(RULES, 'or')}.", metavar="RULE"
    ).field(IG)
    samples: int = 64
    seed: int = 0
    batch_size: int | str = AUTO
    memory_limit: int | float | str | None = Option(
        "Memory for the feed-forward stage, for example 512MB.", metavar="SIZE", typed=str
    ).field(None)
    precision: str = AUTO
    map_dtype: str = AUTO
    origin: str = Option(
        "Sources: each layer's input vectors (layer) or the model's input tokens (input).",
        metavar="ORIGIN",
    ).field(LAYER)

    def __post_init__(self) -> None:
        keep_iterators(self)
        valid_choice(self.nonlinearity, (*RULES, *OWN_RULES), "rule for the nonlinearity")
        check_choice(self.precision, PRECISIONS, "precision")
        check_choice(self.map_dtype, MAP_DTYPES, "map_dtype")
        whole_number(self.samples, "samples", 1)
        whole_number(self.seed, "seed")
        parse_bytes(self.memory_limit)
        parse_batch_size(self.batch_size)
        check_choice(self.origin, ORIGINS, "origin")
        if self.origin == LAYER:
            return
        # What only a layer's own sources have.
        if self.nonlinearity == SHAPLEY:
            raise InputError(NOT_LINEAR)
        exact = self.precision in (AUTO, "float32")
        for asked, what in (
            (self.heads, "heads"),
            (self.statistics, "statistics"),
            (not exact, "precision"),
        ):
            if asked:
                raise InputError(
                    f"`{what}` is for one layer and its own sources, not the way from the input "
                    f"tokens; leave it out, or take origin={LAYER!r}"
                )

    @property
    def limit(self) -> int:
        """The memory limit in bytes."""
        return parse_bytes(self.memory_limit) or DEFAULT_LIMIT

    def layers_of(self, count: int, name: str, longest: int = 0) -> list[int]:
        """The chosen ones of a stack's layers, in order; negative ones count from the end.

        One that is not even in the longest of the model's stacks is an error, which says `name`.
        """
        given: Any = self.layers
        most = max(count, longest)
        if given is None or (isinstance(given, str) and given == "all"):
            return list(range(count))
        several = isinstance(given, Iterable) and not isinstance(given, str)
        indices = set()
        for layer in given if several else [given]:
            if not is_whole(layer) or not -most <= int(layer) < most:
                raise InputError(
                    f"layer {layer!r} is out of range; {name} has layers 0 to {most - 1} "
                    f"({FROM_ZERO})"
                )
            if -count <= int(layer) < count:
                indices.add(int(layer) % count)
        if not indices and count == most:
            raise InputError("no layer is chosen; leave `layers` out to take all")
        return sorted(indices)


def whole_number(value: int, option: str, least: int | None = None) -> int:
    """A whole number as such, or an error that names the option."""
    if not is_whole(value):
        raise OptionError(option, f"{{option}} must be a whole number, not {value!r}")
    if least is not None and value < least:
        raise OptionError(option, f"{{option}} must be at least {least}, not {value}")
    return operator.index(value)


def is_whole(value: object) -> bool:
    """Python's and NumPy's whole numbers, without truth values."""
    return not isinstance(value, bool) and hasattr(value, "__index__")


# What an explanation may be asked for: one set of options for Python, runs, server and shell.
#
# Nothing here needs torch, so that the command line can be built of it.


#: Rules that make of an activation something linear, which layers can be composed of.
LINEAR_RULES = tuple(rule for rule in RULES if rule != SHAPLEY)
LINEAR_RULE = Option(
    f"How activations are passed on: {listed(LINEAR_RULES, 'or')}.", metavar="RULE"
)


@dataclass(frozen=True)
class ExplainOptions:
    """The options of `Lens.explain`; wrong ones are refused when it is made.

    - `nonlinearity` is the rule for activations: "ig", "ig-bias" or "gradient".
    - `flow` keeps how much of the score goes where in each layer, by default unless a text is so
      long that these maps would take more than 128 MB; a number keeps so many of the strongest
      edges of each layer (`why.edges`), for long texts. `heads` keeps the same by head, `scopes`
      the same behind each of these scopes.
    - `first_piece` accepts the first token of a target that is several.
    - `batch_size` is how many texts go through the model at a time; "auto" asks the memory.
    - `memory_limit` ("512MB") bounds what an explanation takes beside the model and each layer's
      input: beyond it layers run twice, and fewer scores are carried back together.
    """

    nonlinearity: str = LINEAR_RULE.field(IG)
    flow: bool | int | None = Option(
        "Keep so many of each layer's strongest edges: the flow of a long text.",
        metavar="EDGES",
        typed=int,
    ).field(None)
    heads: bool = Option("How much of the score goes where, by head, too.").field(False)
    scopes: str | Iterable[str] | None = None
    first_piece: bool = Option("Accept the first token of a target that is several.").field(False)
    batch_size: int | str = AUTO
    memory_limit: int | float | str | None = None

    def __post_init__(self) -> None:
        keep_iterators(self)
        if self.nonlinearity == SHAPLEY:
            raise InputError(NOT_LINEAR)
        valid_choice(self.nonlinearity, (*LINEAR_RULES, *OWN_RULES), "rule for the nonlinearity")
        if self.flow is not None and (not isinstance(self.flow, int) or self.flow < 0):
            raise InputError(f"flow is True, False, or a number of edges, not {self.flow!r}")
        parse_bytes(self.memory_limit)
        parse_batch_size(self.batch_size)


# What a citation may be asked for: one set of options for Python and shell.


#: What is explained of an answer.
LOGIT, LOG_PROBABILITY = ANSWER_SCORES = "logit", "log-probability"
#: What a text is split into.
PARTS = ("sentence", "paragraph", "document", "token")


@dataclass(frozen=True)
class CiteOptions:
    """The options of `Lens.cite`; wrong ones are refused when it is made.

    - `by` splits sources into "sentence", "paragraph", "document" or "token": one text into its
      sentences and several into documents, unless told otherwise.
    - `parts` splits the answer alike; "document" takes it as a whole, in one backward pass.
    - `ablations` is how many subsets of the sources sharpen the scores, by `seed`; 0 is the
      exact pass alone.
    - `generate` is how many tokens the model answers with at most where no answer is given, always
      with the likeliest; `generation` are other options of its method ``generate``.
    - `score` is "log-probability" or "logit".
    - `prompt` is the message with {context} and {question}, `system` a message before it, and
      `separator` what stands between sources: the white space of the text, or a blank line between
      documents.
    - `nonlinearity`, `batch_size` (of ablations) and `memory_limit` are those of `explain`.
    """

    by: str | None = Option(
        f"Split sources by {listed(PARTS, 'or')}. Default: one text by sentence, several not at "
        "all.",
        metavar="PART",
    ).field(None)
    parts: str = Option(f"Split the answer by {listed(PARTS, 'or')}.", metavar="PART").field(
        "sentence"
    )
    ablations: int = Option("Random subsets that sharpen the scores: 8 or 32.", metavar="N").field(
        0
    )
    seed: int = Option("Seed of the subsets.", metavar="N").field(0)
    generate: int = Option("Tokens that the model answers with at most.", metavar="N").field(128)
    generation: Mapping[str, object] | None = None
    score: str = Option(f"What is explained: {listed(ANSWER_SCORES, 'or')}.", metavar="KIND").field(
        LOG_PROBABILITY
    )
    prompt: str = "Context: {context}\n\nQuery: {question}"
    system: str | None = Option("A message of the system before the prompt.", metavar="TEXT").field(
        None
    )
    separator: str | None = None
    nonlinearity: str = LINEAR_RULE.field(IG)
    batch_size: int | str = AUTO
    memory_limit: int | float | str | None = None

    def __post_init__(self) -> None:
        ExplainOptions(
            self.nonlinearity, batch_size=self.batch_size, memory_limit=self.memory_limit
        )
        if self.by is not None:
            check_choice(self.by, PARTS, "by")
        check_choice(self.parts, PARTS, "parts")
        check_choice(self.score, ANSWER_SCORES, "score")
        whole_number(self.generate, "generate", 1)
        whole_number(self.seed, "seed")
        if whole_number(self.ablations, "ablations") and self.ablations < 3:
            raise OptionError("ablations", f"{{option}} is 0 or at least 3, not {self.ablations}")
        if [self.prompt.count(name) for name in ("{context}", "{question}")] != [1, 1]:
            raise OptionError("prompt", "{option} holds {{context}} and {{question}}, once each")


# What a cosine may be asked for: one set of options for Python and shell.


@dataclass(frozen=True)
class CosineOptions:
    """The options of `Lens.cosine`; wrong ones are refused when it is made.

    - `nonlinearity` is the rule for activations: "ig", "ig-bias" or "gradient".
    - `batch_size` is how many texts go through the model at a time; "auto" asks the memory.
    - `memory_limit` ("512MB") bounds what the tokens' vectors take beside the model's own memory.
    """

    nonlinearity: str = LINEAR_RULE.field(IG)
    batch_size: int | str = AUTO
    memory_limit: int | float | str | None = None

    def __post_init__(self) -> None:
        ExplainOptions(**vars(self))  # the same rules hold


# What a search model's score may be asked for.


SIMILARITIES = ("cosine", "dot")


@dataclass(frozen=True)
class ScoreOptions(CosineOptions):
    """The options of `Lens.score` and `Lens.rank`, beside those of `CosineOptions`.

    - `similarity` is "cosine" or "dot" (of pooled vectors), by default the model's own.
    - `truncate_dim` keeps the first numbers of the vectors, as Matryoshka models are used.
    - `query_prompt` and `document_prompt` stand before the texts; by default the model's own, ""
      for none.
    - `label` is the class whose logit a cross-encoder's score is, where there are several.
    - `template` is how a model reads both texts as one: "… {query} … {document} …". Of a model that
      predicts next tokens the score is then the logit of `yes` less that of `no` ("": that alone).
    """

    similarity: str | None = Option(
        "Of pooled vectors: cosine or dot. Default: the model's own.", metavar="KIND"
    ).field(None)
    truncate_dim: int | None = Option(
        "Keep the first N numbers of the vectors.", metavar="N"
    ).field(None)
    query_prompt: str | None = Option(
        "Before the query. Default: the model's own.", metavar="TEXT"
    ).field(None)
    document_prompt: str | None = Option(
        "Before the documents. Default: the model's own.", metavar="TEXT"
    ).field(None)

    label: str | int | None = Option(
        "Cross-encoders: the class whose logit is the score.", metavar="LABEL", typed=str
    ).field(None)
    template: str | None = Option(
        "How a model reads both as one text: … {query} … {document} …", metavar="TEXT"
    ).field(None)
    yes: str = Option("With a template: the next token that is scored.", metavar="WORD").field(
        "yes"
    )
    no: str = Option("With a template: the next token against it.", metavar="WORD").field("no")

    def __post_init__(self) -> None:
        shared = {item.name: getattr(self, item.name) for item in fields(CosineOptions)}
        CosineOptions(**shared)  # the same rules hold
        if self.similarity is not None:
            check_choice(self.similarity, SIMILARITIES, "similarity")
        if self.truncate_dim is not None:
            whole_number(self.truncate_dim, "truncate_dim", 1)
