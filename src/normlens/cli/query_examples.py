"""Questions to begin with, by the table of a run that answers them."""

from __future__ import annotations

from collections.abc import Iterable

#: A question in words, and the SQL that asks it.
EXAMPLES: dict[str, tuple[str, str]] = {
    "similarity": (
        "How much does each step change the map of a layer?",
        "SELECT layer, scope_a, scope_b, avg(rho) AS rho FROM similarity GROUP BY ALL ORDER BY ALL",
    ),
    "mixing": (
        "How much of a vector do other tokens supply, by layer and kind of token?",
        "SELECT layer, category, avg(ratio) AS ratio FROM mixing GROUP BY ALL ORDER BY ALL",
    ),
    "amplification_pairs": (
        "Which pairs of subwords are amplified most?",
        "SELECT layer, source_token, target_token, sum(sum) / sum(count) AS amp, "
        "sum(count) AS count FROM amplification_pairs GROUP BY ALL ORDER BY amp DESC LIMIT 20",
    ),
    "norms": (
        "How large is what the feed-forward block adds beside what passes it by?",
        "SELECT layer, avg(ff_output_norm / bypassed_norm) AS share FROM norms GROUP BY layer "
        "ORDER BY layer",
    ),
    "explanations": (
        "Of which sequences does no token own most of the score?",
        "SELECT sequence, target, value, remainder FROM explanations "
        "ORDER BY abs(remainder) DESC LIMIT 20",
    ),
    "sequences": (
        "How many sequences and tokens are there, and how exact are they?",
        "SELECT count(*) AS sequences, sum(tokens) AS tokens, max(completeness) AS completeness "
        "FROM sequences",
    ),
}


def examples_for(tables: Iterable[str]) -> list[tuple[str, str]]:
    """The questions that a run with these tables can answer."""
    there = set(tables)
    return [example for table, example in EXAMPLES.items() if table in there]
