"""The comparison of related pairs with others, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from normlens.errors import listed
from normlens.papers.kobayashi2024.related_pairs.findings import Finding, strongest, verdicts
from normlens.reports import words
from normlens.scopes import layers_in_words

_DIRECTIONS = {1: "higher", -1: "lower", 0: "no difference"}
_ROBUST = "all occurrences, bootstrap over sequences"


def capital(text: str) -> str:
    """Write the text with a capital letter at its beginning."""
    return text[0].upper() + text[1:]


def sentence(finding: Finding, amp: str) -> str:
    """Say where the pairs differ from others, and where the paper's procedure disagrees."""
    tested = verdicts(finding.robust)
    if not tested:
        return (
            f"Whether {amp} of {finding.label} differs from that of {finding.compared} cannot be "
            "told: fewer than two sequences hold pairs that can be compared. "
            f"{_by_the_paper(finding)}"
        )
    where = _where(tested)
    criterion = f"({_ROBUST}; p {'<' if where else '≥'} {finding.threshold})"
    if where:
        told = (
            f"{capital(amp)} of {finding.label}, compared with that of {finding.compared}, is "
            f"significantly {where} {criterion}"
        )
    else:
        told = (
            f"In no layer does {amp} of {finding.label} differ significantly from that of "
            f"{finding.compared} {criterion}"
        )
    best = strongest(finding.robust)
    if best is not None:
        row = finding.robust.iloc[best]
        told += (
            f"; the effect is largest in layer {int(row['layer'])} (mean "
            f"{words.fixed(row['mean'], 4)} against {words.fixed(row['others'], 4)}, g = "
            f"{words.fixed(row['g'])})"
        )
    return f"{told}. {_by_the_paper(finding)}"


def short_sentence(findings: Sequence[Finding], amp: str) -> str:
    """Say the same for several kinds of pairs in one sentence."""
    parts = []
    for finding in findings:
        tested = verdicts(finding.robust)
        where = _where(tested)
        told = f"it is {where}" if where else "no layer differs" if tested else "nothing is known"
        differing = _differing(finding)
        if differing:
            told += f" ({finding.procedure}: {differing})"
        parts.append(f"of {finding.label} {told}")
    return (
        f"{capital(amp)}, compared in the same way (p < {findings[0].threshold}): "
        f"{'; '.join(parts)}."
    )


def _where(tested: dict[int, int]) -> str:
    """Say where: ``higher in layers 2–3 and lower in layer 4``, or nothing."""
    parts = [
        f"{_DIRECTIONS[sign]} in {layers_in_words(layers)}"
        for sign in (1, -1)
        if (layers := [layer for layer, direction in tested.items() if direction == sign])
    ]
    return " and ".join(parts)


def _by_the_paper(finding: Finding) -> str:
    if finding.paper is None:
        return (
            f"{capital(finding.procedure)} (subword pairs, one draw of others) cannot be applied: "
            "too few subword pairs occur often enough."
        )
    number = finding.paper["pairs"].max()
    procedure = capital(finding.procedure)
    procedure += f" ({number} subword pairs, one draw of as many others)"
    differing = _differing(finding)
    return (
        f"{procedure} {f'differs: {differing}' if differing else 'finds the same in every layer'}."
    )


def _differing(finding: Finding) -> str:
    """Say what the paper's procedure finds in the layers where it differs."""
    if finding.paper is None:
        return ""
    robust, paper = verdicts(finding.robust), verdicts(finding.paper)
    parts = [
        f"{word} in {layers_in_words(layers)}"
        for sign, word in _DIRECTIONS.items()
        if (
            layers := [
                n for n, direction in paper.items() if direction == sign and robust.get(n) != sign
            ]
        )
    ]
    unanswered = sorted(set(robust) - set(paper))
    if unanswered:
        parts.append(f"no answer in {layers_in_words(unanswered)}")
    return listed(parts) if parts else ""
