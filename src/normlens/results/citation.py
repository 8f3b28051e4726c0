"""Citations: what each source did for each part of an answer, and what everything else did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens import figures
from normlens.errors import require
from normlens.options import cost_in_words
from normlens.results.axes import CITATION, check_arrays
from normlens.results.store import TokenResult
from normlens.results.words import cut

if TYPE_CHECKING:
    import pandas as pd

    from normlens.viewer.notebook import Notebook

#: Owners of tokens that no source owns.
PROMPT, ANSWER = -1, -2
#: What the rest of a score belongs to.
REST = ("template and question", "answer so far", "no token")


@dataclass(frozen=True, eq=False)
class Citation(TokenResult):
    """Which sources made an answer, for the frozen network or sharpened by ablations.

    Of every part of the answer, ``matrix[part].sum() + rest[part].sum() == values[part]``, to
    `completeness`; of a log-probability, the value is Σ_t (z_{t,y_t} − Σ_v p_{t,v} z_{t,v}) with
    the probabilities p held. `scores` are these sums over all parts or, with `ablations`, what each
    source does to the answer's log-probability, with an `interval`. Made by `Lens.cite`.
    """

    question: str
    sources: list[str]
    documents: list[int]  # which of the given texts each source is of
    answer: str
    parts: list[str]  # of the answer
    score: str  # "log-probability" or "logit"
    values: NDArray[np.float64]  # [part], the scores that are explained
    log_probabilities: NDArray[np.float64]  # [part]
    token_scores: NDArray[np.float64]  # [part, token]
    biases: NDArray[np.float64]  # [part], what no token owns
    owners: NDArray[np.integer]  # [token]: a source, `PROMPT` or `ANSWER`
    spans: NDArray[np.integer]  # [token, 2], its characters in the text; of an answer none
    source_spans: NDArray[np.integer]  # [source, 2], alike
    ablations: int = 0
    ablated: NDArray[np.float64] | None = None  # [source]
    interval: NDArray[np.float64] | None = None  # [source, 2], 95 %

    def _check(self) -> None:
        """Raise unless the arrays fit together and sum to the values."""
        super()._check()
        part, source, token = len(self.parts), len(self.sources), len(self.raw_tokens)
        sizes = {"part": part, "source": source, "token": token, "two": 2}
        check_arrays(self, CITATION, sizes)
        for name in CITATION:
            array = getattr(self, name)
            finite = array is None or np.isfinite(array).all()
            require(finite, f"{name!r} holds numbers that are not finite")
        require(part and source, "there is no source, or no part of the answer")
        require(len(self.documents) == source, f"'documents' does not have {source} entries")
        inside = (self.owners >= ANSWER) & (self.owners < source)
        require(inside.all(), f"'owners' names more than {source} sources")
        text = self.text[0] if isinstance(self.text, tuple) else self.text or ""
        for spans in (self.spans, self.source_spans):
            fits = (spans[:, 0] >= 0) & (spans[:, 0] <= spans[:, 1]) & (spans[:, 1] <= len(text))
            require(fits.all(), "'spans' are not of the text")
        missed = np.abs(self.token_scores.sum(1) + self.biases - self.values).max()
        size = max(map(np.abs, map(_largest, (self.token_scores, self.biases, self.values))))
        require(
            missed <= 2 * (self.completeness + 1e-6) * max(float(size), 1.0) * max(token, 1) ** 0.5,
            "its parts do not sum to the values",
        )

    # What it says ---------------------------------------------------------------------------------

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """What each source did for each part of the answer, [part, source], by the exact pass."""
        matrix = np.zeros((len(self.parts), len(self.sources)))
        owned = self.owners >= 0
        np.add.at(matrix.T, self.owners[owned], self.token_scores.T[owned])
        return matrix

    @property
    def rest_names(self) -> tuple[str, ...]:
        """The names of the columns of `rest`."""
        return REST

    @property
    def rest(self) -> NDArray[np.float64]:
        """What else made each part, [part, 3]: by `rest_names`."""
        of_tokens = [self.token_scores[:, self.owners == who].sum(1) for who in (PROMPT, ANSWER)]
        return np.stack([*of_tokens, self.biases], axis=1)

    @property
    def contributions(self) -> NDArray[np.float64]:
        """What each source did for the whole answer, [source], by the exact pass."""
        total: NDArray[np.float64] = self.matrix.sum(0)
        return total

    @property
    def scores(self) -> NDArray[np.float64]:
        """The score of each source, [source]: sharpened where there were ablations."""
        return self.contributions if self.ablated is None else self.ablated

    @property
    def shares(self) -> NDArray[np.float64]:
        """Each source's score over the sum of their sizes, Σ|score|, [source]."""
        size = float(np.abs(self.scores).sum())
        return self.scores / size if size else np.zeros_like(self.scores)

    @property
    def value(self) -> float:
        """The score of the whole answer."""
        return float(self.values.sum())

    @property
    def log_probability(self) -> float:
        """The log-probability of the whole answer."""
        return float(self.log_probabilities.sum())

    def top(self, count: int = 5) -> pd.DataFrame:
        """The sources with the largest scores, the strongest first."""
        return self.to_pandas().sort_values("score", ascending=False, kind="stable").head(count)

    def to_pandas(self) -> pd.DataFrame:
        """One row per source: its document, text, score, share and, with ablations, interval."""
        import pandas as pd

        table = pd.DataFrame(
            {
                "source": range(len(self.sources)),
                "document": self.documents,
                "score": self.scores,
                "share": self.shares,
                "text": self.sources,
            }
        )
        if self.interval is not None:
            table.insert(4, "low", self.interval[:, 0])
            table.insert(5, "high", self.interval[:, 1])
        return table

    def table(self) -> pd.DataFrame:
        """One row per part of the answer: each source, the rest, and the value, their sum."""
        import pandas as pd

        numbers = np.column_stack([self.matrix, self.rest, self.values])
        names = [*range(len(self.sources)), *REST, "value"]
        return pd.DataFrame(numbers, index=pd.Index(self.parts, name="part"), columns=names)

    plot = figures.plot_citation

    def _notebook(self, state: Mapping[str, Any]) -> Notebook:
        from normlens.viewer.notebook import citation_notebook

        return citation_notebook(self)

    def __repr__(self) -> str:
        best = int(self.scores.argmax())
        how = f", {self.ablations} ablations" if self.ablations else ""
        return (
            f"Citation({cut(self.answer.strip())!r} from {len(self.sources)} sources, first "
            f"{best}: {cut(self.sources[best], 40)!r} {self.scores[best]:+.3g} "
            f"({self.shares[best]:.0%}){how}, log-probability {self.log_probability:.4g}, "
            f"completeness {self.completeness:.1e}"
            f"{cost_in_words(str(self.provenance.get('dtype')))})"
        )


def _largest(array: NDArray[Any]) -> float:
    return float(np.abs(array).max(initial=0.0))
