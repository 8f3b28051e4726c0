"""Citations put to the test: scores of sources, held to what the model says without some of them.

The protocol is that of ContextCite (Cohen-Wang et al. 2024). A source's score predicts what it adds
to the answer's log-probability, so the scores of the sources in a subset, summed, should rank the
log-probabilities of random subsets: Spearman's ρ of the two is the linear datamodelling score, LDS.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

from normlens.corpus.data.spans import EncodedRecord
from normlens.corpus.measures.base import BoundMeasure, Item
from normlens.errors import InputError, MissingDependencyError, NormLensError
from normlens.explain.citations import (
    Prompt,
    ablation_masks,
    check_answers,
    cite,
    prepared,
    random_masks,
    sharpened,
    subset_scores,
)
from normlens.inputs.text import DOCUMENT, owner_of
from normlens.options import CiteOptions
from normlens.studies.faithfulness.options import (
    ANSWER_COLUMN,
    CITATIONS,
    GOLD_COLUMN,
    MOST,
    SOURCES_COLUMN,
    ablations_of,
)
from normlens.studies.faithfulness.protocols import tables_of
from normlens.studies.model_calls import alone
from normlens.trace.locking import Hooks
from normlens.trace.run import model_inputs, plain_options

if TYPE_CHECKING:
    from normlens.corpus.engines.block_rows import Clock
    from normlens.lens import Lens

Scores = NDArray[np.float64]

#: What the protocol measures, behind its name: "citations-lds".
LDS, DROP, GOLD, FIRST = "lds", "drop", "gold", "first"
#: Subsets that scores are held to.
SUBSETS = 64
#: How many of the best sources are left out together.
BEST = (1, 3, 5)


# ContextCite: a linear model of the answer's log-odds, by LASSO.


def lasso(masks: NDArray[np.bool_], log_p: Scores, tokens: int, alpha: float = 0.01) -> Scores:
    """Scores (source,) by ContextCite's solver: a LASSO on the log-odds of the answer per token.

    Masks (subset, source) are standardised; ``min_w |y − X w|² / 2n + α |w|₁`` by coordinate
    descent.
    """
    odds = log_p - np.log1p(-np.exp(np.minimum(log_p, -1e-12)))
    y = odds / tokens
    y = y - y.mean()
    scale = masks.std(0)
    scale[scale == 0] = 1
    x = (masks - masks.mean(0)) / scale
    n, size = len(x), (x * x).mean(0)
    w, left = np.zeros(x.shape[1]), y.copy()
    for _ in range(10_000):
        before = w.copy()
        for k in np.flatnonzero(size):
            rho = x[:, k] @ left / n + size[k] * w[k]
            new = np.sign(rho) * max(abs(rho) - alpha, 0) / size[k]
            left += x[:, k] * (w[k] - new)
            w[k] = new
        if np.abs(w - before).max(initial=0) <= 1e-9 * max(1.0, np.abs(w).max(initial=0)):
            break
    return w / scale * tokens


# Scores of tokens, summed over the sources that own them.


def by_source(prompt: Prompt, scores: Scores) -> Scores:
    """Sums (source,) of scores of the prompt's tokens."""
    encoded, places = prompt.read()
    totals = np.zeros(len(places))
    text = encoded.text
    assert isinstance(text, str)
    for span, score in zip(prompt.spans_of(encoded), scores, strict=False):
        owner = owner_of(text, span, places)
        if owner is not None:
            totals[owner] += score
    return totals


def _run(prompt: Prompt, work: Callable[[Any], Tensor], **options: Any) -> Tensor:
    """Call `work` on the model's eager forward pass over the prompt and its answer."""
    lens, whole = prompt.lens, prompt.lens.adapter.whole
    inputs = model_inputs(lens.adapter, [prompt.followed(prompt.read()[0])], lens.device)
    model = partial(whole, **inputs, **plain_options(whole), **options)
    return alone(lens, partial(work, model), gradients=True).detach().double().cpu()


def attention(prompt: Prompt) -> Scores:
    """Attention weights from the answer's positions, their mean over layers and heads."""
    count = len(prompt.ids)

    def mean(model: Callable[[], Any]) -> Tensor:
        with torch.no_grad():
            weights = model().attentions
        return torch.stack([one[0, :, -count - 1 : -1].mean((0, 1)) for one in weights]).mean(0)

    return by_source(prompt, _run(prompt, mean, output_attentions=True).numpy())


def gradient_x_input(prompt: Prompt) -> Scores:
    """|∂ log p / ∂e_k · e_k|, summed over a source's tokens."""

    def products(model: Callable[[], Any]) -> Tensor:
        entered: list[Tensor] = []

        def leaf(_: Any, __: Any, ___: Any, output: Tensor) -> Tensor:
            entered.append(output.detach().requires_grad_())
            return entered[0]

        with Hooks() as hooks:
            hooks.behind(prompt.lens.model.get_input_embeddings(), leaf)  # type: ignore[operator]
            rows = model().logits[0, -len(prompt.ids) - 1 : -1].double()
        ids = torch.tensor(prompt.ids, device=rows.device)
        log_p = rows.log_softmax(-1).gather(1, ids[:, None]).sum()
        (gradient,) = torch.autograd.grad(log_p, entered[0])
        return (gradient * entered[0]).sum(-1)[0].abs()

    return by_source(prompt, _run(prompt, products).numpy())


def flashtrace(prompt: Prompt) -> Scores:
    """FlashTrace's scores of the prompt's tokens, by its own package, as it comes."""
    traced = _package().FlashTrace(prompt.lens.adapter.whole, prompt.lens.tokenizer)
    encoded, answer = prompt.read()[0], prompt.answer
    assert answer is not None

    result = alone(prompt.lens, partial(traced.trace, prompt=encoded.text, target=answer.text))
    if len(result.scores) != len(encoded):
        raise InputError(
            f"flashtrace reads the prompt as {len(result.scores)} tokens and the model as "
            f"{len(encoded)}; leave it out for {prompt.lens.name}"
        )
    return by_source(prompt, np.array(result.scores, np.float64))


def _package() -> Any:
    """The package FlashTrace; it needs others, of which one may be missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("flashtrace")
    except ImportError as error:
        raise MissingDependencyError(
            f"the method flashtrace needs its package ({error}); run: pip install flashtrace"
        ) from error


# One question, its answer, and what the model says of the answer with some of the sources.


class Trial:
    """A prompt with its answer: log-probabilities under subsets, computed once."""

    def __init__(self, prompt: Prompt, seed: Sequence[int], ablations: int):
        self.prompt, self.count = prompt, len(prompt.sources)
        self._known: dict[bytes, float] = {}
        self._seed = seed
        #: subsets that scores are held to, and those that ContextCite uses
        self.held, self.masks = (
            random_masks(self.count, rows, (*seed, purpose))
            for purpose, rows in enumerate((SUBSETS, ablations))
        )

    def log_p(self, masks: NDArray[np.bool_]) -> Scores:
        """The answer's log-probability with each subset of the sources."""
        new = {mask.tobytes(): mask for mask in masks if mask.tobytes() not in self._known}
        if new:
            found = subset_scores(self.prompt, np.array(list(new.values())))
            self._known |= zip(new, found.tolist(), strict=True)
        return np.array([self._known[mask.tobytes()] for mask in masks])

    @property
    def whole(self) -> float:
        return float(self.log_p(np.ones((1, self.count), bool))[0])

    @cached_property
    def exact(self) -> Scores:
        """Scores of the exact pass alone."""
        return cite(self.prompt).contributions

    def scores(self, method: str) -> Scores:
        """A method's score of each source."""
        count = ablations_of(method)
        if method.startswith("normlens+"):
            masks = ablation_masks(self.exact, count, (*self._seed, 1))
            return sharpened(self.exact, masks, self.log_p(masks), self.whole)[0]
        if method.startswith("contextcite-"):
            masks = self.masks[:count]
            return lasso(masks, self.log_p(masks), len(self.prompt.ids))
        return _PLAIN[method](self)

    def values(self, scores: Scores, gold: Sequence[int]) -> dict[str, float | None]:
        """Return the protocol's values of scores; None where a value is undefined."""
        real, said = self.log_p(self.held), self.held @ scores
        varies = np.ptp(real) > 0 and np.ptp(said) > 0
        values: dict[str, float | None] = {
            LDS: float(spearmanr(said, real).statistic) if varies else 0.0
        }
        ties = np.random.default_rng([*self._seed, 2]).permutation(self.count)
        order = np.lexsort((ties, -scores))
        for best in BEST:
            kept = np.ones((1, self.count), bool)
            kept[0, order[:best]] = False
            few = best >= self.count
            values[f"{DROP}-{best}"] = None if few else self.whole - float(self.log_p(kept)[0])
        places = np.flatnonzero(np.isin(order, list(gold)))
        values[GOLD] = 1 / (1 + int(places[0])) if len(places) else None
        values[FIRST] = float(places[0] == 0) if len(places) else None
        return values


_PLAIN: Mapping[str, Callable[[Trial], Scores]] = {
    "normlens": lambda trial: trial.exact,
    "leave-one-out": lambda trial: trial.whole - trial.log_p(~np.eye(trial.count, dtype=bool)),
    "attention": lambda trial: attention(trial.prompt),
    "gradient-x-input": lambda trial: gradient_x_input(trial.prompt),
    "flashtrace": lambda trial: flashtrace(trial.prompt),
    "random": lambda trial: np.random.default_rng([*trial._seed, 3]).random(trial.count),
}


def passes(method: str, sources: int) -> tuple[int, int]:
    """Forward and backward passes of the model that a method takes, beside the answer's own."""
    if method == "random":
        return 0, 0
    if method == "leave-one-out":
        return 1 + sources, 0
    if method.startswith("contextcite-"):
        return ablations_of(method), 0
    return 1 + ablations_of(method), int(method not in ("attention", "flashtrace"))


# The protocol over the rows of a corpus.


def check_citations(lens: Lens, methods: Sequence[str] = ()) -> None:
    """Refuse models that do not answer, and methods whose package is missing."""
    if "flashtrace" in methods:
        _package()
    check_answers(lens, two_stacks=False)


@dataclass(frozen=True)
class Citations(BoundMeasure):
    """Measure how well the scores of `methods` identify the sources of an answer.

    A row's text is a question; its `sources` are a list of texts, `gold` the places of those that
    hold the right answer, and `answer` the answer, which the model gives where there is none. In
    the tables a source stands where a token stands in those of other protocols.
    """

    lens: Lens
    methods: Sequence[str]
    batch_size: int | str

    def __post_init__(self) -> None:
        check_citations(self.lens, self.methods)

    def batch_rows(self, items: Sequence[Item], clock: Clock) -> list[dict[str, pa.Table] | str]:
        return [self._tables(item, clock) for item in items]

    def _tables(self, item: Item, clock: Clock) -> dict[str, pa.Table] | str:
        assert isinstance(item.encoded, EncodedRecord)
        row = item.encoded.extra
        # As ContextCite set it up: whole sources, answers of at most 40 tokens.
        options = CiteOptions(
            by=DOCUMENT, parts=DOCUMENT, generate=40, separator=" ", batch_size=self.batch_size
        )
        try:
            sources, gold = (
                json.loads(row.get(name, "[]")) for name in (SOURCES_COLUMN, GOLD_COLUMN)
            )
            if not isinstance(sources, list) or len(sources) < 2:
                return "it has fewer than two sources, so that there is nothing to choose"
            with clock.on("questions"):
                question, answer = str(item.encoded.text), row.get(ANSWER_COLUMN)
                prompt = prepared(self.lens, question, sources, answer, options)
        except (NormLensError, ValueError) as error:
            return str(error)
        trial = Trial(prompt, (item.seed, item.index), max(map(ablations_of, self.methods)))
        with clock.on("intact"):
            whole = trial.whole
        with clock.on("subsets"):
            trial.log_p(np.concatenate([trial.held, trial.masks]))
        scores: dict[str, Scores] = {}
        for name in self.methods:
            with clock.on(f"method {name}"):
                scores[name] = trial.scores(name)
        with clock.on("protocols"):
            values = {name: trial.values(scores[name], gold) for name in self.methods}
        assert prompt.answer is not None
        example = {
            "tokens": len(prompt.followed(prompt.read()[0])),
            "ordinary": trial.count,
            "target": prompt.answer.text,
            "score": whole,
            "probability": float(np.exp(whole)),
        }
        return tables_of(
            item,
            examples=[example],
            method_passes=[
                {"method": name, "forward": forward, "backward": backward}
                for name in self.methods
                for forward, backward in [passes(name, trial.count)]
            ],
            attributions=[
                {"method": name, "position": k, "token": prompt.sources[k], "ordinary": True}
                | {"evidence": k in gold if gold else None, "score": score}
                for name, given in scores.items()
                for k, score in enumerate(given.tolist())
            ],
            faithfulness=[
                {"protocol": f"{CITATIONS}-{what}", "method": name, "first": MOST, "value": value}
                for name, of in values.items()
                for what, value in of.items()
            ],
        )
