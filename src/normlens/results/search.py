"""Scores of search models, shared out among words of a query and a document, and rankings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, require
from normlens.measures import maps as measures
from normlens.options import cost_in_words
from normlens.results.axes import TERMS, TokenAxis, check_arrays
from normlens.results.explanation import Cosine
from normlens.results.store import Results

if TYPE_CHECKING:
    import pandas as pd

    from normlens.viewer.notebook import Notebook

#: What a score is: of pooled vectors, of a sparse or a multi-vector model, or of a cross-encoder.
COSINE, DOT, SPARSE, LATE, CROSS = (
    "cosine",
    "dot product",
    "sparse",
    "late interaction",
    "cross-encoder",
)
#: What tables call what no token of a text owns.
NO_TOKEN = "(no token)"


@dataclass(frozen=True, eq=False, repr=False)
class Score(Cosine):
    """The score of a query and a document, shared out among their tokens.

    With u = Σ_k u_k + b_u of the query and v = Σ_l v_l + b_v of the document, a dense model's score
    is s · u·v; a sparse model's and a multi-vector model's is a sum of such products, of vocabulary
    terms or of the query's tokens with those that match them best (`terms`). A cross-encoder's is a
    sum over the tokens of both texts, without pairs:

        pairs.sum() + sum(remainder.values()) == value

    to `completeness`, relative to the largest value that the vectors' lengths allow. Made by
    `Lens.score` and `Lens.rank`.
    """

    kind: str = COSINE
    term_names: list[str] = field(default_factory=list)  # what is matched, if there are terms
    term_values: NDArray[np.float64] | None = None  # [term], what each adds to the score
    term_query: NDArray[np.float64] | None = None  # [term, token of the query], of that
    term_document: NDArray[np.float64] | None = None  # [term, token of the document], of that
    #: [term, (query, document)], the tokens whose vectors are compared; −1: none of them alone
    term_places: NDArray[np.int64] | None = None
    others: TokenAxis | None = None  # a cross-encoder's tokens of neither text
    others_values: NDArray[np.float64] | None = None  # what they contribute

    def _check(self) -> None:
        """Raise unless the arrays are of the texts' tokens."""
        super()._check()
        sizes = {"a": len(self.a), "b": len(self.b), "term": len(self.term_names), "text": 2}
        sizes["other"] = len(self.others or ())
        check_arrays(self, TERMS, sizes)
        require((self.term_values is None) == (not self.term_names), "'term_names' lacks values")
        if self.term_places is not None:
            fits = (self.term_places < [len(self.a), len(self.b)]) & (self.term_places >= -1)
            require(fits.all(), "'term_places' names no tokens of the texts")
        if self.others is not None:
            self.others._check()

    # What it says --------------------------------------------------------------------------------

    @property
    def query(self) -> str | None:
        """The query, with its prompt."""
        return self.text_a

    @property
    def document(self) -> str | None:
        """The document, with its prompt."""
        return self.text_b

    @property
    def has_pairs(self) -> bool:
        """Whether pairs of tokens own parts of the score, as they do not in a cross-encoder."""
        return self.kind != CROSS

    @property
    def pairs(self) -> NDArray[np.float64]:
        """What each pair has of the score, [token of the query, token of the document]."""
        if not self.has_pairs:
            raise InputError(
                "a cross-encoder reads both texts at once, so its score has parts of tokens and "
                "not of pairs; see by_query and by_document"
            )
        return self.matrix

    @property
    def by_query(self) -> NDArray[np.float64]:
        """What each of the query's tokens has of the score, with all of the document."""
        return self.margins.a

    @property
    def by_document(self) -> NDArray[np.float64]:
        """What each of the document's tokens has of the score, with all of the query."""
        return self.margins.b

    @property
    def remainder(self) -> dict[str, float]:
        """What no pair of tokens owns, by its parts."""
        of_a, of_b, bias = super().remainder.values()
        if self.kind == CROSS:
            others = 0.0 if self.others_values is None else float(self.others_values.sum())
            parts = {"query": of_a, "document": of_b, "tokens of neither": others}
            return parts | {"no token": bias - others}
        query, document = "query × bias of document", "bias of query × document"
        return {query: of_a, document: of_b, "bias × bias": bias}

    def rest(self, side: Literal["query", "document"]) -> dict[str, float]:
        """What of the score is not in ``by_query`` or ``by_document``, by its parts."""
        own, other = (self.by_query, self.by_document)[:: 1 if side == "query" else -1]
        if self.has_pairs:
            return {NO_TOKEN: self.value - float(own.sum())}
        name = "(document)" if side == "query" else "(query)"
        others = self.remainder["tokens of neither"]
        rest = {name: float(other.sum()), "(neither text)": others}
        return rest | {NO_TOKEN: self.value - float(own.sum()) - sum(rest.values())}

    def terms(self, count: int | None = None) -> pd.DataFrame:
        """What a sparse or multi-vector model matched: what it adds, and the tokens that did it.

        `query` and `document` are the tokens whose vectors are compared (arg max); the strongest
        source tokens of either side are in `from_query` and `from_document`.
        """
        import pandas as pd

        if self.term_values is None or self.term_places is None:
            raise InputError(f"a score of this kind ({self.kind}) has no terms; see top()")
        assert self.term_query is not None
        assert self.term_document is not None
        sides = (("query", self.a, self.term_query), ("document", self.b, self.term_document))
        table = pd.DataFrame({"term": self.term_names, "value": self.term_values})
        for side, (name, axis, parts) in enumerate(sides):
            places = self.term_places[:, side]
            table[name] = [axis.tokens[place] if place >= 0 else "" for place in places]
            table[f"{name}_place"] = places
            table[f"from_{name}"] = [axis.tokens[k] for k in parts.argmax(1)]
        ordered = table.sort_values("value", ascending=False, kind="stable", ignore_index=True)
        return ordered if count is None else ordered.head(count)

    def words(self) -> Score:
        """The same by words: the parts of a word's tokens are summed."""
        merged: Any = super().words()
        if self.term_query is None or self.term_document is None or self.term_places is None:
            return merged
        places = self.term_places.copy()
        for side, axis in enumerate((self.a, self.b)):
            of_token = {k: place for place, word in enumerate(axis.word_groups()) for k in word}
            places[:, side] = [of_token.get(k, -1) for k in places[:, side].tolist()]
        return replace(
            merged,
            term_query=measures.sum_words(self.term_query, self.a.word_groups()),
            term_document=measures.sum_words(self.term_document, self.b.word_groups()),
            term_places=places,
        )

    def to_pandas(self) -> pd.DataFrame:
        """One row per pair of tokens; of a cross-encoder one row per token."""
        if self.has_pairs:
            return super().to_pandas()
        import pandas as pd

        sides = (("query", self.a, self.a_with_bias), ("document", self.b, self.b_with_bias))
        frames = [
            pd.DataFrame(
                {"text": name, "position": range(len(axis)), "token": axis.tokens, "value": own}
            )
            for name, axis, own in (*sides, ("neither", self.others, self.others_values))
            if axis is not None
        ]
        return pd.concat(frames, ignore_index=True)

    def _notebook(self, state: Mapping[str, Any]) -> Notebook:
        return Ranking([self], [0])._notebook(state)

    def __repr__(self) -> str:
        cost = cost_in_words(str(self.provenance.get("dtype")))
        parts = ", ".join(f"{value:.4f} {name}" for name, value in self.remainder.items())
        pairs = f"{float(self.matrix.sum()):.4f} from {len(self.a)} × {len(self.b)} pairs + "
        note = f", {self.note}" if self.note else ""
        return (
            f"Score({self.provenance.get('model', '?')}, {self.kind}: {self.value:.4f} = "
            f"{pairs if self.has_pairs else ''}{parts}, completeness "
            f"{self.completeness:.1e}{cost}{note})"
        )


# A ranking: the scores of several documents for one query, and why one is above another.


@dataclass(frozen=True, eq=False, repr=False)
class Ranking(Results[Score]):
    """The scores of several documents for one query, the best first. Made by `Lens.rank`."""

    scores: list[Score]
    places: list[int]  # of each score's document among those that were given

    def _check(self) -> None:
        """Raise unless there is a place for each score, and all are of one query."""
        kept = len(self.scores) == len(self.places) == len(set(self.places))
        require(kept, "'places' are not of the scores")
        require(len({score.text_a for score in self.scores}) == 1, "'scores' have several queries")

    @property
    def _each(self) -> list[Score]:
        return self.scores

    def to_pandas(self) -> pd.DataFrame:
        """One row per document, the best first, with both sides' strongest tokens."""
        import pandas as pd

        rows = [
            {
                "rank": rank,
                "given": place,
                "score": score.value,
                "query_word": score.tokens_a[int(score.by_query.argmax())],
                "document_word": score.tokens_b[int(score.by_document.argmax())],
                "no_pair": sum(score.remainder.values()),
                "document": score.document,
            }
            for rank, (score, place) in enumerate(zip(self.scores, self.places, strict=True))
        ]
        return pd.DataFrame(rows)

    def why_above(self, a: int = 0, b: int = 1) -> Above:
        """Why the document at rank `a` (from 0) is above the one at rank `b`."""
        for rank in (a, b):
            if not -len(self) <= rank < len(self):
                raise InputError(f"there is no rank {rank}; ranks are 0 to {len(self) - 1}")
        return Above(self.scores[a], self.scores[b])

    def words(self) -> Ranking:
        """The same by words: the parts of a word's tokens are summed."""
        return replace(self, scores=[score.words() for score in self.scores])

    def _notebook(self, state: Mapping[str, Any]) -> Notebook:
        from normlens.viewer.notebook import ranking_notebook

        return ranking_notebook(self)

    def __repr__(self) -> str:
        values = ", ".join(f"{score.value:.4f}" for score in self.scores[:5])
        return (
            f"Ranking({len(self)} documents, {self.scores[0].kind}: {values}"
            f"{', …' if len(self) > 5 else ''}, completeness {self.completeness:.1e})"
        )


@dataclass(frozen=True, eq=False)
class Above:
    """The difference of two scores of one query, by the query's tokens and by the documents'.

    Either table sums to `value`, with what no token of its own owns as its last row.
    """

    higher: Score
    lower: Score

    @property
    def value(self) -> float:
        """How much higher the first score is."""
        return self.higher.value - self.lower.value

    def by_query(self) -> pd.DataFrame:
        """What each of the query's tokens adds to the difference, and to both scores."""
        import pandas as pd

        sides = {"higher": self.higher, "lower": self.lower}
        columns = {
            name: [*score.by_query, *score.rest("query").values()] for name, score in sides.items()
        }
        table = pd.DataFrame(
            {"token": [*self.higher.tokens_a, *self.higher.rest("query")], **columns}
        )
        return table.assign(difference=table["higher"] - table["lower"])

    def by_document(self) -> pd.DataFrame:
        """What each token of both documents adds to the difference; the lower one's against it."""
        import pandas as pd

        frames = []
        for name, score, sign in (("higher", self.higher, 1), ("lower", self.lower, -1)):
            rest = score.rest("document")
            own = [*score.by_document, *rest.values()]
            values = {"token": [*score.tokens_b, *rest], "difference": sign * np.array(own)}
            frames.append(pd.DataFrame({"document": name, **values}))
        return pd.concat(frames, ignore_index=True)

    def words(self) -> Above:
        """The same by words: the parts of a word's tokens are summed."""
        return Above(self.higher.words(), self.lower.words())

    def __repr__(self) -> str:
        table = self.by_query()
        strongest = table.iloc[table["difference"].abs().to_numpy().argsort()[::-1][:3]]
        rows = zip(strongest["token"], strongest["difference"], strict=True)
        parts = ", ".join(f"{token} {value:+.4f}" for token, value in rows)
        return (
            f"Above({self.higher.value:.4f} − {self.lower.value:.4f} = {self.value:.4f}: {parts}, "
            f"completeness {max(self.higher.completeness, self.lower.completeness):.1e})"
        )
