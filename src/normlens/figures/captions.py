"""Words about maps: headings, notes and numbers as they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from normlens.precisions import cost_in_words
from normlens.results.rolled import rollout_words
from normlens.scopes import components_of, consecutive
from normlens.wording import quoted

if TYPE_CHECKING:
    from normlens.results.maps import Maps
    from normlens.text import Text


class Result(Protocol):
    """What every result says of itself."""

    @property
    def provenance(self) -> dict[str, Any]: ...


class TextResult(Protocol):
    """What a result says of the one text that it is about."""

    @property
    def text(self) -> Text | None: ...


def additions(names: Sequence[str]) -> dict[str, str]:
    """Say what each panel adds to the one that its scope extends."""
    words = {"ATTN-W": "weights", "ATTNRES-W": "½ + ½ identity", "CROSS-W": "weights"}
    before = {step.after: step.before for step in consecutive(names)}
    added: dict[str, str] = {}
    for scope in names:
        parts, below = components_of(scope), before.get(scope, "")
        if parts[-1] in ("ATTN", "CROSS") and scope not in words:
            words[scope] = "weights × values"
        new = parts[len(components_of(below)) :] if below else parts[-1:]
        added[scope] = words.get(scope) or "+ " + " ".join(new)
    return added


def unit(maps: Maps, scope: str, normalise: str) -> str:
    """Say what a scope's colours measure."""
    if normalise != "none":
        return {
            "source": "share of each source's column",
            "target": "share of each target's row",
        }[normalise]
    if (how := rollout_words(maps)) is not None:
        return how
    return "norm of the part ‖F_i(x_j)‖" if scope.endswith("-N") else "attention weight"


def measured(maps: Maps, names: Sequence[str], normalise: str) -> str:
    """Say what the colours measure, and in which panels."""
    kinds = {unit(maps, scope, normalise): scope[-1] for scope in names}
    if len(kinds) == 1:
        return next(iter(kinds))
    return ", ".join(f"{unit} (-{letter})" for unit, letter in kinds.items())


def model_name(result: Result) -> str:
    return str(result.provenance.get("model") or "model")


def model_and(maps: Maps, what: str) -> str:
    """A heading: the model, what is shown of it, and whose contributions, if not the layer's."""
    return ", ".join(filter(None, [model_name(maps), what, maps.origin_in_words]))


def stack_words(maps: Maps, words: str) -> str:
    """Words about layers, after the name of an encoder–decoder's stack."""
    return f"{maps.stack} {words}" if maps.stack else words


def text_lines(result: TextResult) -> list[str]:
    """Quote the text in one line; no line without a text."""
    return [" ".join(quoted(result.text))] if result.text is not None else []


def provenance(maps: Maps) -> str:
    """Say in one line how the numbers of maps were made."""
    measured = any(scope.endswith("-N") for scope in maps.scopes)  # weights have no parts
    return made(maps.provenance, maps.completeness if measured else None, "maps")


def generated_note(maps: Maps) -> list[str]:
    """A note where the target was not given."""
    target = str(maps.provenance.get("target", ""))
    return [f"The target is the model's own ({target})."] if target.startswith("generated") else []


def made(facts: Mapping[str, Any], completeness: float | None, what: str = "contributions") -> str:
    """Say in one line how the numbers were made, and how exactly."""
    cost = cost_in_words(str(facts.get("dtype")))
    words = [
        "completeness not measured"
        if completeness is None
        else f"completeness {completeness:.1e}{cost}"
    ]
    if "dtype" in facts:
        model_dtype, own_dtype = facts["dtype"], facts.get("compute_dtype", facts["dtype"])
        words.append(
            str(model_dtype)
            if model_dtype == own_dtype
            else f"{model_dtype} ({what} in {own_dtype})"
        )
    if "nonlinearity" in facts:
        words.append(f"rule {facts['nonlinearity']}")
    if "normlens" in facts.get("versions", {}):
        words.append(f"normlens {facts['versions']['normlens']}")
    if facts.get("note"):
        words.append(str(facts["note"]))
    return " · ".join(words)


def number(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def tick(value: float, _position: int) -> str:
    short = f"{value:.5g}" if abs(value) < 1e5 else f"{value:.2g}".replace("e+0", "e")
    return short.replace("-", "−")


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def cut_label(token: str, longest: int) -> str:
    return token if len(token) <= longest else token[: max(1, longest - 1)] + "…"
