"""Analyses: what can be asked for, the queue, the models that answer, and results for a while."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from normlens.errors import InputError, UnsupportedModelError, counted
from normlens.loading.embedded import EMBEDDED
from normlens.loading.hub import is_embedded, shown_name
from normlens.options import (
    IG,
    LINEAR_RULES,
    RULES,
    AnalysisOptions,
    ExplainOptions,
    LoadOptions,
    options_of,
)
from normlens.viewer.pages import LARGEST, fitted
from normlens.viewer.payload import encode, encode_cosines, encode_explanations

if TYPE_CHECKING:
    from normlens.inputs.text import Encoded, Text
    from normlens.lens import Lens
    from normlens.results.explanation import Explanation

# How much a visitor may ask for, and how much is kept.


# A character outside the basic plane takes two escapes of six bytes in JSON.
_BYTES_PER_CHARACTER = 12
_BYTES_AROUND = 4096


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, the queue and the memory may hold."""

    text_characters: int = 10_000  # of a text, of its pair, and of a target text
    tokens: int = 512
    connections: int = 256  # open at once; fewer where the system allows fewer
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
        return 3 * _BYTES_PER_CHARACTER * self.text_characters + _BYTES_AROUND


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
_TARGET_TEXT = "What an encoder–decoder's decoder reads; without it the model generates it."


class Question(BaseModel):
    """What every request has; equal questions of a kind have equal answers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    address: ClassVar[str]  # where it is asked, below /api
    operation: ClassVar[str]
    asks_for: ClassVar[str]
    answer: ClassVar[str]  # what the answer is
    rules: ClassVar[tuple[str, ...]] = LINEAR_RULES  # that may be chosen

    model: str
    text: _Text
    pair: _Text | None = None
    rule: str = Field(default=IG, description=_LINEAR_RULE.help)

    @property
    def texts(self) -> list[str]:
        """Every text that was sent."""
        given = (self.text, self.pair, getattr(self, "target_text", None))
        return [text for text in given if text is not None]


class AnalysisRequest(Question):
    """A text, or a pair of texts, for one of the models."""

    address, operation, answer = "analyses", "submit", "maps"
    asks_for = "Ask for the maps of a text."
    rules = RULES

    target_text: _Text | None = Field(default=None, description=_TARGET_TEXT)
    rule: str = Field(default=AnalysisOptions.nonlinearity, description=_RULE.help)
    heads: bool = Field(default=False, description=_HEADS.help)


class ExplanationRequest(Question):
    """A text, or a pair of texts, and what to explain: by default what the model says."""

    address, operation, answer = "explanations", "explain", "an explanation"
    asks_for = "Ask why the model says what it says."

    target_text: _Text | None = Field(default=None, description=_TARGET_TEXT)
    target: _Target | None = Field(
        default=None,
        description="A word, a label, or the number of one; of an encoder–decoder, a token of "
        "the target text: a word, or its place from 0.",
    )
    contrast: _Target | None = Field(default=None, description="Why the target and not this.")
    position: _Place | None = Field(
        default=None, description="Where the score is read, from 0, or from the end if negative."
    )


class CosineRequest(Question):
    """Two texts for one of the models."""

    address, operation, answer = "cosines", "compare", "a cosine"
    asks_for = "Ask which tokens made the cosine of two texts."

    pair: _Text


# Analyses from the moment they are asked for until their results are dropped.
#
# Every method may be called from any thread: requests arrive in one, analyses run in another.


State = Literal["queued", "running", "done", "failed", "cancelled"]
QUEUED, RUNNING, DONE, FAILED, CANCELLED = get_args(State)


class Job(BaseModel):
    """Where an analysis stands."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    id: str
    state: State = QUEUED
    position: int = Field(default=0, ge=0, description="Analyses ahead of this one.")
    layers_done: int = Field(default=0, ge=0)
    layers: int = Field(ge=1)
    error: str | None = Field(default=None, description="Why it failed, in one line.")
    question: Question = Field(exclude=True)
    result: bytes | None = Field(default=None, exclude=True)
    started: float = Field(default=0.0, exclude=True)
    finished: float = Field(default=0.0, exclude=True)


class QueueFullError(Exception):
    """No more analyses can wait; `seconds` is when it is worth asking again."""

    def __init__(self, waiting: int, seconds: int):
        super().__init__(
            f"{waiting} analyses are waiting already; try again in {counted(seconds, 'second')}"
        )
        self.seconds = seconds


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
            waiting = len(self._queue())
            if not self._answer_from_memory(job) and (
                self._closed or waiting >= self._limits.queue
            ):
                raise QueueFullError(waiting, min(60, max(1, math.ceil(self._seconds))))
            self._jobs[job.id] = job
            self._drop_old()
            self._lock.notify()
            return job.model_copy()

    def find(self, id: str) -> Job | None:
        """Find an analysis as it stands now; None if there is none, or none any more."""
        with self._lock:
            self._drop_old()
            if (job := self._jobs.get(id)) is None:
                return None
            queue = [waiting.id for waiting in self._queue()]
            ahead = queue.index(id) + (self._in_work is not None) if id in queue else 0
            return job.model_copy(update={"position": ahead})

    def cancel(self, id: str) -> Job | None:
        """Take an analysis out of the queue, or have it stopped; a finished one stays as it is."""
        with self._lock:
            job = self._jobs.get(id)
            if job is not None and job.state in (QUEUED, RUNNING):
                self._end(job, CANCELLED)
            return self.find(id)

    def close(self) -> None:
        """Cancel everything and end the analysis thread's wait."""
        with self._lock:
            self._closed = True
            for job in list(self._jobs.values()):
                if job.state in (QUEUED, RUNNING):
                    self._end(job, CANCELLED)
            self._lock.notify_all()

    # For the analysis thread --------------------------------------------------------------------

    def take(self) -> Job | None:
        """Wait for the next analysis; None when the queue is closed."""
        with self._lock:
            while not self._closed:
                job = next(iter(self._queue()), None)
                if job is None:
                    self._lock.wait()
                elif self._answer_from_memory(job):
                    self._drop_old()
                else:
                    job.state, job.started = RUNNING, self._clock()
                    self._in_work = job
                    return job
            return None

    def progress(self, job: Job, done: int) -> None:
        """Note that layers are done; raises `Stopped` in an analysis that was cancelled."""
        with self._lock:
            if job.state != RUNNING:
                raise Stopped
            job.layers_done = done

    def finish(self, job: Job, result: bytes | None = None, error: str | None = None) -> None:
        """Note that the thread is done with an analysis; one that was cancelled stays cancelled."""
        with self._lock:
            self._in_work = None
            if job.state != RUNNING:
                return
            if error is None:
                job.layers_done, self._seconds = job.layers, self._clock() - job.started
            job.result, job.error = result, error
            self._end(job, DONE if error is None else FAILED)

    # With the lock held -------------------------------------------------------------------------

    def _queue(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.state == QUEUED]

    def _answer_from_memory(self, job: Job) -> bool:
        """Answer an analysis as the same question was answered before, if it was."""
        for other in self._jobs.values():
            if other.state == DONE and other.question == job.question:
                job.result, job.layers_done = other.result, job.layers
                job.state, job.finished = DONE, self._clock()
                return True
        return False

    def _end(self, job: Job, state: State) -> None:
        job.state, job.finished = state, self._clock()
        self._drop_old()

    def _drop_old(self) -> None:
        """Drop old results until the limits are kept; whoever asked for something large gets it."""
        ended = [job for job in self._jobs.values() if job.state not in (QUEUED, RUNNING)]
        ended.sort(key=lambda job: job.finished)
        oldest = self._clock() - self._limits.kept_seconds
        while ended and (
            ended[0].finished < oldest or (len(ended) > 1 and self._are_too_many(ended))
        ):
            del self._jobs[ended.pop(0).id]

    def _are_too_many(self, ended: list[Job]) -> bool:
        # One result may be the answer of several.
        results = {id(job.result): len(job.result) for job in ended if job.result}
        return len(ended) > self._limits.kept or sum(results.values()) > self._limits.kept_bytes


# The models that the server was started with, and their answers.
#
# torch takes seconds to import, and a port that is taken should be known before that: what needs it
# is imported by the functions that use it.


_ALL = "all"  # what `Lens.explain` calls each token in turn


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
    loaded: bool = Field(
        default=False, description="Whether it is in memory; the first analysis loads it."
    )


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

    def is_loaded(self, name: str) -> bool:
        return name in self._lenses

    def answer(self, question: Question, progress: Callable[[int, int], None]) -> bytes:
        """Compute what a question asks for, encoded as the page reads it."""
        lens = self._lens(question.model)
        progress(0, lens.n_layers)  # loading may have taken long enough to be cancelled
        _check_kind(lens, question)
        if isinstance(question, ExplanationRequest):
            return encode_explanations(self._explain(lens, question, progress))
        if isinstance(question, CosineRequest):
            for text in question.texts:
                self._encode(lens, text)
            pair = lens.cosine(
                *(question.text, question.pair),
                nonlinearity=question.rule,
                memory_limit=self._analysis.memory_limit,
                progress=progress,
            )
            return encode_cosines(pair)
        assert isinstance(question, AnalysisRequest)
        options = replace(self._analysis, nonlinearity=question.rule, heads=question.heads)
        (maps,) = lens.analyse([self._read(lens, question)], options, progress=progress)
        # Single heads are many maps: as many as fit into a file are sent.
        return fitted([maps], None, LARGEST) if question.heads else encode([maps])

    def _explain(
        self, lens: Lens, question: ExplanationRequest, progress: Callable[[int, int], None]
    ) -> Explanation:
        from normlens.explain.explainer import ask
        from normlens.models.base import NoHead, read_head

        two, options = (
            lens.two_stacks,
            ExplainOptions(nonlinearity=question.rule, memory_limit=self._analysis.memory_limit),
        )
        try:
            if two:  # before the model generates, which it could not without a head
                read_head(lens.adapter)
            why: Explanation = ask(
                lens,
                [self._read(lens, question)],
                False,
                options,
                progress,
                target=None if two else question.target,
                contrast=question.contrast,
                position=question.target if two else question.position,
            )
            return why
        except NoHead as error:
            instead = "Maps and give a target text" if two else "Cosine to compare two texts"
            raise InputError(
                f"{question.model} has no head, so it says nothing that could be explained; choose "
                f"{instead}, or a model with a head"
            ) from error

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

    def _read(self, lens: Lens, question: AnalysisRequest | ExplanationRequest) -> Encoded:
        """The text or texts of a question, tokenised; without a target the model generates one."""
        from normlens.inputs.encode import can_generate, encode_pair

        if not lens.two_stacks:
            pair = question.pair
            return self._encode(lens, question.text if pair is None else (question.text, pair))
        if question.target_text is None and not can_generate(lens):
            raise InputError(f"{lens.name} has no head that could generate a target text; type one")
        encoded = encode_pair(lens, (question.text, question.target_text), truncate=False)
        for side, sequence in zip(("text", "target text"), encoded.sequences, strict=True):
            _check_length(len(sequence), self._limits.tokens, side, lens.name)
        return encoded

    def _encode(self, lens: Lens, text: Text) -> Encoded:
        """Read a text that is not too long for the model or for this server."""
        from normlens.inputs.encode import check_separated, reader_of

        check_separated(lens, text)
        reader = reader_of(lens)
        encoded = (reader if reader.padded else replace(reader, limit=None)).read(text)
        most = min(self._limits.tokens, lens.max_tokens or self._limits.tokens)
        _check_length(len(encoded), most, "text", lens.name)
        return encoded


def _check_length(tokens: int, most: int, side: str, model: str) -> None:
    if tokens > most:
        raise InputError(
            f"the {side} has {tokens} tokens and {model} takes at most {most} here; shorten it"
        )


def _check_page_shows(lens: Lens, name: str) -> None:
    """Raise for a model whose maps the page cannot show."""
    from normlens.models.parts import SignalEncoder, TwoStacks
    from normlens.pipeline.call import layers_by_stack

    stacks = [lens.layers]
    if isinstance(lens.adapter, TwoStacks):
        stacks = list(layers_by_stack(lens.adapter, lens.layers).values())
    if isinstance(lens.adapter, SignalEncoder):
        raise UnsupportedModelError(
            f"{name} reads pictures or sound, and the page of a server takes texts; "
            "`normlens map --image … --out maps.html` writes a page of one picture"
        )
    if getattr(lens.adapter, "hears", False):
        raise UnsupportedModelError(
            f"{name} hears its source, and the page takes texts; in Python, "
            "lens.maps(input_features=…, target=…) analyses sound"
        )
    if any(len({layer.scopes for layer in stack}) > 1 for stack in stacks):
        raise UnsupportedModelError(
            f"the layers of {name} differ, and the page of a server shows layers that are alike; "
            "`normlens map --out maps.html` writes a page with all of them"
        )


def _check_kind(lens: Lens, question: Question) -> None:
    """Raise for a question that this kind of model has no answer to."""
    name, position = lens.name, getattr(question, "position", None)
    if not lens.two_stacks:
        if getattr(question, "target_text", None) is not None:
            raise InputError(
                f"a target text is for encoder–decoders, and {name} reads one sequence; leave it "
                "out"
            )
        return
    if isinstance(question, CosineRequest):
        raise InputError(
            f"a cosine is of models of one stack, and {name} is an encoder–decoder; choose Maps or "
            "Explain"
        )
    if question.pair is not None:
        raise InputError(
            f"{name} is an encoder–decoder: it takes a text and a target text, and no second text"
        )
    if position is not None:
        raise InputError(
            f"{name} is an encoder–decoder: say with the target which token of the target text is "
            "explained, a word or its place, and leave the position out"
        )
    if getattr(question, "target", None) == _ALL:
        raise InputError(
            "the page explains one token at a time; in Python, lens.explain(source, token='all') "
            "explains each in turn"
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
    able = (model for model in models if not model.two_stacks or model.head is not None)
    return next((AnalysisRequest(model=model.name, text=TEXT) for model in able), None)
