"""``normlens explain``, ``cite``, ``cosine``, ``score``, ``rank``: which tokens made a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.text import Text

from normlens.cli import common
from normlens.cli.common import console_for, print_table, say
from normlens.cli.map import completeness_words
from normlens.cli.parameters import Fields
from normlens.errors import InputError, require, valid_choice
from normlens.options import CiteOptions, ExplainOptions, LoadOptions
from normlens.results import words as in_words
from normlens.results.words import PLACES, decimals, percent, signed_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from normlens.results.citation import Citation
    from normlens.results.explanation import Cosine, Explanation, Explanations
    from normlens.results.search import Above, Ranking, Score


# Explanations on a terminal: tokens on colours, numbers, and the strongest components.


_COMPONENTS = 8  # in the list of the strongest
_SOURCES = 3  # beside each next token
_BAR = 24  # characters
#: Red and blue that people with colour-blindness tell apart; both on white.
_POSITIVE, _NEGATIVE = ColorTriplet(178, 24, 43), ColorTriplet(33, 102, 172)
_PALE = ColorTriplet(247, 247, 247)
#: What stands behind a token of the prefix, beside one of the source.
_IN_PREFIX: dict[Any, str] = {in_words.PREFIX: f" ({in_words.PREFIX})"}
_OWN_SCORE = "biases against the model's own score"


def show_explanation(why: Explanation) -> None:
    """Print one explanation."""
    say(f"{why.provenance.get('model')} ({why.task}): {why.question}", style="bold")
    say(in_words.score_words(why), f"{in_words.place_words(why)}; {in_words.total_words(why)}")
    if why.has_two_sequences:
        say(_target_words(why), in_words.share_words(why))
    say(completeness_words(why, why.provenance, _OWN_SCORE))
    if why.provenance.get("note"):
        say(str(why.provenance["note"]))
    console = console_for()
    for part in why.sequences if console.is_terminal else ():
        if part.name:
            say(part.name, style="bold")
        console.print(token_strip(part.tokens, part.contributions))
    _print_contributions(why)
    _print_components(why)


def show_explanations(several: Explanations) -> None:
    """Print the explanation of each next token, a row for each."""
    first, two = several[0], several.has_two_sequences
    count = len(several) if two else len(several.tokens)
    about = f"{'token of a target' if two else 'next token'} of {count}"
    if first.answer_ids:
        about = "part of the answer"
    say(f"{first.provenance['model']}: why each {about}")
    if two:
        say(_target_words(first))
    say(completeness_words(several, first.provenance, _OWN_SCORE))
    places = decimals(max(abs(each.value) for each in several))
    rows = []
    for each in several:
        strongest = [
            f"{row['token']}{_IN_PREFIX.get(row.get('sequence'), '')} "
            f"{signed_number(row['contribution'], places)}"
            for row in each.top(_SOURCES).to_dict("records")
            if row["contribution"]
        ]
        probability = "–" if each.probability is None else percent(each.probability)
        numbers = each.value, probability, each.remainder
        rows.append([each.position, each.target, *numbers, "   ".join(strongest)])
    title = "Each next token, and the tokens that contribute most to its score"
    columns = ("position", "next token", "score", "probability", "no token", "from")
    print_table(title, columns, rows, (0, 1, -1), places)
    if two:
        _print_shares(several)


def _target_words(why: Explanation) -> str:
    """What the decoder read, and where it came from."""
    text = f": {why.text[1]}" if isinstance(why.text, tuple) and why.text[1] is not None else ""
    return f"target ({why.provenance.get('target')}){text}"


def _print_shares(several: Explanations) -> None:
    """What the source and the prefix supply of each token's score."""
    shares, names = several.shares(), ["source", "prefix", "bias"]
    places = decimals(float(shares[names].abs().to_numpy().max()))
    rows = []
    for row in shares.to_dict("records"):
        share, bar = row["source_share"], ""
        if share == share:  # NaN where both sequences give nothing
            bar = ("█" * round(_BAR * share)).ljust(_BAR, "░")
        numbers = (row[name] for name in names)
        percents = percent(share), percent(row["source_share_absolute"])
        rows.append([row["position"], row["token"], *numbers, *percents, bar])
    title = "What the source (█) and the prefix (░) supply of each score"
    columns = ("position", "token", "source", "prefix", "no token", "source's share", "of Σ|c|")
    print_table(title, (*columns, ""), rows, (0, 1, -1), places)


def token_strip(tokens: Sequence[str], values: NDArray[np.floating]) -> Text:
    """A text's tokens, each on the colour of its number, on the clipped scale of pictures."""
    from normlens.figures.colours import clipped_end

    strip, largest = Text(), clipped_end(abs(values))
    for token, value in zip(tokens, values, strict=True):
        share, end = abs(float(value)) / (largest or 1.0), _POSITIVE if value > 0 else _NEGATIVE
        colour = blend_rgb(_PALE, end, min(1.0, share) ** 0.5)
        light = 0.3 * colour.red + 0.59 * colour.green + 0.11 * colour.blue
        strip.append(token, f"{'white' if light < 128 else 'black'} on {colour.rgb}").append(" ")
    return strip


def _print_contributions(why: Explanation) -> None:
    rows = in_words.explained_rows(why)
    largest = max(abs(row.value) for row in rows) or 1.0
    places = decimals(largest)
    cells: list[list[object]] = []
    over = [row.value for row in in_words.explained_rows(why, len(why.tokens), in_words.LAYERS)]
    both = len(over) == len(rows)  # a long text shows its strongest tokens alone
    for place, row in enumerate(rows):
        if row.is_heading:
            cells.append([Text(row.label, style="bold"), "", "", ""])
            continue
        sign, colour = ("█", _POSITIVE) if row.value > 0 else ("▒", _NEGATIVE)
        bar = Text(sign * round(_BAR * abs(row.value) / largest), style=colour.rgb)
        cells.append([row.label, row.value, bar, *over[place : place + 1]])
    cells.append(["sum", why.value, "", why.value])
    title = "What each token contributes (█ adds, ▒ takes away)"
    columns = ["token", "contribution", "", *["over all layers"] * both]
    if both:
        title += "; over all layers: which position carries the score, on average"
    print_table(title, columns, (cell[: len(columns)] for cell in cells), (0, 2), places)


def _print_components(why: Explanation) -> None:
    """The strongest blocks over all positions, attentions by head."""
    import numpy as np

    by_head = {"ATTN": why.heads, "CROSS": why.cross_heads}
    passing = []
    for place, name in enumerate(why.component_names):
        if name != in_words.RES:
            heads = by_head.get(name)
            values = why.components[:, place] if heads is None else heads
            # (layer, position) or (layer, head, position)
            for (layer, *head), value in np.ndenumerate(np.nansum(values, -1, dtype=np.float64)):
                label = f"{name} head {head[0]}" if head else name
                passing.append((why.layer_names[layer], label, float(value)))
    strongest = sorted(passing, key=lambda part: -abs(part[2]))[:_COMPONENTS]
    places = decimals(max((abs(value) for *_, value in strongest), default=1.0))
    title = "Strongest components: what of the score passes them first in a layer"
    print_table(title, ("layer", "component", "passes"), strongest, (0, 1), places)


# ``normlens explain``: which tokens made the model say this.


#: The model that explains where none is named: an embedded one with a head.
DEFAULT = "smollm2"
_ALL = "all"


def explain_command(
    sentence: str | None = None,
    *,
    inputs: Annotated[common.Inputs, Fields(without=("target_text",))],
    model: str = DEFAULT,
    target: str | None = None,
    contrast: str | None = None,
    decoder: Annotated[common.Inputs, Fields(only=("target_text",))],
    position: str | None = None,
    score: str | None = None,
    by: str | None = None,
    generate: int | None = None,
    options: Annotated[ExplainOptions, Fields(only=("flow", "first_piece"))],
    words: bool = False,
    loading: Annotated[LoadOptions, Fields(without=("part",))],
    truncate: bool = False,
    output: common.Output,
    picture: str | None = None,
) -> None:
    """Which tokens made the model say this: its score, traced back to every token. The parts are
    exact for the frozen network (attention weights, deviations of norms and slopes of activations
    keep their values for this text). Without --out it prints the tokens with what each contributes,
    what no token owns, and the strongest components. A model that sees takes an --image; its tokens
    are patches.

    In the list: Which tokens made the model say this: printed here, or written to a file.

    Example: normlens explain "The keys to the cabinet" --target " are" --contrast " is"
    --out why.png

    Often: model target contrast position words file lines out as_json device

    Options:
        sentence TEXT: The text that the model reads; - is standard input.
        model NAME (--model, -m): Hub name, local folder, or embedded model, with its head.
        target WORD: The next token or an answer of several, the token at the mask, or a
            classifier's label; begin it with a space where a word does. Default: what the model
            says.
        contrast WORD: Why the target and not this.
        position PLACE: Where the score is read, from 0 (negative: from the end); all: each next
            token. Encoder–decoders: which token of the target is explained: its place, a word, or
            all. Default: the last.
        score KIND: Of an answer: log-probability or logit.
        by PART: Explain each sentence, paragraph or token of an answer.
        generate N: Let the model answer, with so many tokens at most.
        picture KIND: In pictures: tokens, flow or components; of all tokens: matrix or shares.
    """
    output.check(model, inputs, [] if picture is None else ["picture"], like="why.png")
    each_input = inputs.read(sentence)
    where = _place(position)

    from normlens.results.explanation import Explanations
    from normlens.results.exports import PICTURE_KINDS, SEVERAL_KINDS

    if picture is not None:
        several = where == _ALL or by is not None
        kinds = SEVERAL_KINDS if several else PICTURE_KINDS
        valid_choice(picture, kinds, f"--picture of {'all tokens' if several else 'one token'}")
    lens = common.load_lens(model, loading)
    common.check_stacks(lens, {"target-text": decoder.target_text}, {"target": target})
    if isinstance(where, str) and where != _ALL and not lens.two_stacks:
        raise InputError(f"--position is a number or {_ALL!r}, not {position!r}")

    for given in each_input:
        why = output.compute(
            "explaining",
            given,
            lens.explain,
            target=decoder.target_text if lens.two_stacks else target,
            contrast=contrast,
            score=score,
            by=by,
            generate=generate,
            **{"token" if lens.two_stacks else "position": where},
            truncate=truncate,
            **asdict(options),
        )
        show = show_explanations if isinstance(why, Explanations) else show_explanation
        output.deliver(why.words() if words else why, given[0], show, picture=picture)


def _place(typed: str | None) -> int | str | None:
    """A place as it was typed: a number, "all", or a word."""
    if typed is None or typed.strip().lower() == _ALL:
        return None if typed is None else _ALL
    try:
        return int(typed)
    except ValueError:
        return typed


# ``normlens cite``: which sources made an answer.


_SOURCES_LISTED, _LONGEST_SOURCE = 12, 72


def cite_command(
    files: list[str] | None = None,
    *,
    question: str | None = None,
    sources: list[str] | None = None,
    answer: str | None = None,
    model: str = DEFAULT,
    options: Annotated[CiteOptions, Fields(without=("score", "system", "nonlinearity", "seed"))],
    loading: Annotated[LoadOptions, Fields(only=("device", "dtype", "trust_remote_code"))],
    output: common.Output,
) -> None:
    """Which sources made a model's answer to a question: each file is a source, or its sentences
    are. Without --answer the model answers itself. Without --out it prints the sources with their
    scores, which sum to the score with what everything else did.

    In the list: Which sources made an answer: printed here, or written to a file.

    Example: normlens cite --question "What is the capital of Peru?" --sources docs/*.txt
    --ablations 8 --out cite.html

    Often: question sources answer ablations by model out as_json device

    Options:
        files FILE: The sources, as after --sources; - is standard input.
        question TEXT (--question, -q): The question.
        sources FILE: A text file; more files may follow, or the option again; - is standard input.
        answer TEXT: The answer. Default: what the model says.
        model NAME (--model, -m): Hub name, local folder, or embedded model, with its head.
    """
    if question is None or not question.strip():
        raise InputError('give a question: --question "…"')
    output.check(model, common.Inputs())
    names = [*(sources or []), *(files or [])] or [common.STDIN] * common.is_piped()
    require(names, "give sources: --sources FILE …, or a text through a pipe")
    require(names.count(common.STDIN) < 2, "standard input is one source; give - once")
    texts = [common.read_text(name) for name in names]
    for name, text in zip(names, texts, strict=True):
        require(text.strip(), f"{name!r} holds no text")
    lens = common.load_lens(model, loading)
    given: Any = texts[0] if len(texts) == 1 else texts
    call = partial(lens.cite, question, answer=answer, **_shallow(options))
    citation = output.compute("citing", (None, given), call)
    output.deliver(citation, None, partial(show_citation, names=names))


def _shallow(options: Any) -> dict[str, Any]:
    return {each.name: getattr(options, each.name) for each in fields(options)}


def show_citation(citation: Citation, names: Sequence[str] = ()) -> None:
    """Print a citation: the answer, the strongest sources, and what else made it."""
    say(f"{citation.provenance.get('model')}: {citation.question}", style="bold")
    said = citation.provenance.get("target", "given")
    say(f"answer ({said}): {' '.join(citation.answer.split())}")
    say(f"log-probability {citation.log_probability:.4g}")
    say(completeness_words(citation, citation.provenance, _OWN_SCORE))
    order = sorted(range(len(citation.scores)), key=lambda k: -citation.scores[k])
    places, sharp = decimals(float(abs(citation.scores).max())), citation.interval is not None
    rows = []
    for place in order[:_SOURCES_LISTED]:
        row = [place, citation.scores[place]]
        if citation.interval is not None:
            low, high = citation.interval[place]
            row.append(f"{signed_number(low, places)} to {signed_number(high, places)}")
        row += [
            f"{citation.shares[place]:.0%}".replace("-", "−"),
            names[citation.documents[place]] if names else "",
        ]
        rows.append([*row, in_words.cut(citation.sources[place], _LONGEST_SOURCE)])
    title = f"Sources, the strongest first ({len(rows)} of {len(order)})"
    columns = ("source", "score", *(["95 %"] if sharp else []), "share", "file", "text")
    print_table(title, columns, rows, (0, -1, -2), places)
    rest = zip(citation.rest_names, citation.rest.sum(0), strict=True)
    parts = [("sources", citation.contributions.sum()), *rest, ("score", citation.value)]
    print_table("The score of the exact pass", ("", "part"), parts, places=places)


# ``normlens cosine``: which tokens made the cosine of two texts.


_PAIRS = 10  # in the list of the strongest


def cosine_command(
    a: str,
    b: str | None = None,
    *,
    inputs: Annotated[common.Inputs, Fields(only=("file", "lines"))],
    model: str | None = None,
    words: bool = False,
    loading: Annotated[LoadOptions, Fields(only=("device",))],
    truncate: bool = False,
    output: common.Output,
) -> None:
    """Which tokens made the cosine of two texts' vectors. Without --out it prints what each token
    has of it, the strongest pairs, and what no pair of tokens owns. With --lines the first text is
    compared with each line of the file, or of standard input.

    In the list: Which tokens made the cosine of two texts: printed here, or written to a file.

    Example: normlens cosine "A man is playing a flute." "Someone plays an instrument."

    Options:
        a A: The first text.
        b B: The second text; - reads standard input.
    """
    output.check(model, inputs)
    require(
        b is not None or inputs.file is not None or common.is_piped(),
        'cosine compares two texts: normlens cosine "…" "…" (or the second with --file, or a pipe)',
    )
    each_input = inputs.read(b)
    lens = common.load_lens(model, loading)

    call = partial(lens.cosine, a, truncate=truncate)
    for given in each_input:
        pair = output.compute("comparing", given, call)
        output.deliver(pair.words() if words else pair, given[0], show_cosine)


def show_cosine(pair: Cosine) -> None:
    """Print a cosine: each text's tokens with their parts of it, and the strongest pairs."""
    _show_head(pair, "cosine")
    console, margins = console_for(), pair.margins
    texts = (("A", pair.tokens_a, margins.a), ("B", pair.tokens_b, margins.b))
    for name, tokens, own in texts if console.is_terminal else ():
        strip = token_strip(tokens, own)
        console.print(Text(f"{name} ").append_text(strip))
    for name, tokens, own in texts:
        title = f"What each token of {name} has of the cosine, with all of the other text"
        rest = in_words.no_token_row(pair.value - float(own.sum()))
        _print_parts(title, "token", tokens, own, {rest.label: rest.value}, pair.value)
    strongest = pair.top(_PAIRS)[["a_token", "b_token", "value"]].itertuples(index=False)
    print_table("Strongest pairs of tokens", ("A", "B", "part"), strongest, left=(0, 1))


def _show_head(pair: Cosine | Score, what: str) -> None:
    """Print the number of two texts, what it is made of, and how exactly."""
    say(f"{pair.provenance.get('model')}: {in_words.cosine_words(pair)}", style="bold")
    against = f"biases against the model's own {what}"
    say(in_words.parts_words(pair), completeness_words(pair, pair.provenance, against))
    if pair.note:
        say(pair.note)


def _print_parts(
    title: str,
    noun: str,
    tokens: Sequence[str],
    own: NDArray[np.floating],
    rest: Mapping[str, float],
    total: float,
) -> None:
    """Print what each token of one text has of a number, and what no token has."""
    rows = [(row.label, row.value) for row in in_words.token_rows(tokens, own)]
    print_table(title, (noun, "part"), [*rows, *rest.items(), ("sum", total)])


# ``normlens score`` and ``rank``: which words made the scores of a search model.


_DOCUMENT = 60  # characters of a document in a table


def score_command(
    query: str,
    document: str | None = None,
    *,
    model: str | None = None,
    output: Annotated[common.Output, Fields(only=("out", "as_json", "force"))],
) -> None:
    """Which words of a query and a document made a search model's score of them (dense, SPLADE,
    ColBERT or a cross-encoder): what each word of either text has of it, and what is matched.

    In the list: Which words made the score of a query and a document.

    Example: normlens score "flute music" "A man plays a flute." --out score.html

    Options:
        query QUERY: What is searched for.
        document DOCUMENT: The document; - reads standard input.
    """
    require(
        document is not None or common.is_piped(),
        'score compares a query with a document: normlens score "…" "…" (or the second by a pipe)',
    )
    output.check(model, common.Inputs())
    ((_, text),) = common.Inputs().read(document)
    lens = common.load_lens(model, LoadOptions())
    call = partial(lens.score, query)
    output.deliver(output.compute("comparing", (None, text), call), None, show_score)


def rank_command(
    query: str,
    documents: list[str] | None = None,
    *,
    model: str | None = None,
    output: Annotated[common.Output, Fields(only=("out", "as_json", "force"))],
) -> None:
    """Rank documents for a query by a search model (dense, SPLADE, ColBERT or a cross-encoder), and
    say why the first is above the second, word by word. Without documents each line of standard
    input is one.

    In the list: Rank documents for a query by a search model, and say why, word by word.

    Example: normlens rank "flute music" "A man plays a flute." "A man plays chess." --out rank.html

    Options:
        query QUERY: What is searched for.
        documents DOCUMENT…: The documents.
    """
    given = list(documents or [])
    if not given and common.is_piped():
        given = [text for _, text in common.Inputs(file=common.STDIN, lines=True).read(None)]
    require(given, "rank compares documents: give some behind the query, or one per line in a pipe")
    output.check(model, common.Inputs())
    lens = common.load_lens(model, LoadOptions())
    ranking = output.compute("comparing", (None, given), partial(lens.rank, query))
    output.deliver(ranking, None, show_ranking)


def _by_words(result: Any) -> Any:
    """A result by words, where they are known."""
    with suppress(InputError):
        return result.words()
    return result


def show_score(score: Score) -> None:
    """Print a score: what each word of either text has of it, and what is matched."""
    score = _by_words(score)
    _show_head(score, "score")
    for name, tokens, own, rest in (
        ("query", score.tokens_a, score.by_query, score.rest("query")),
        ("document", score.tokens_b, score.by_document, score.rest("document")),
    ):
        title = f"What each word of the {name} has of the score"
        _print_parts(title, "word", tokens, own, rest, score.value)
    if score.term_values is not None:
        terms = score.terms(_PAIRS)[["term", "value", "query", "document"]].to_numpy()
        columns = ("term", "adds", "in the query at", "in the document at")
        print_table("What is matched", columns, terms, left=(0, 2, 3))


def show_ranking(ranking: Ranking) -> None:
    """Print a ranking, and why its first document is above the second."""
    ranking = _by_words(ranking)
    first = ranking[0]
    say(f"{first.provenance.get('model')} ({first.kind}): {first.query}", style="bold")
    say(completeness_words(ranking, first.provenance, "biases against the model's own scores"))
    if first.note:
        say(first.note)
    rows = [
        (rank, score.value, str(score.document)[:_DOCUMENT])
        for rank, score in enumerate(ranking, start=1)
    ]
    print_table("", ("rank", "score", "document"), rows, left=(0, 2))
    if len(ranking) > 1:
        _print_above(ranking.why_above())


def _print_above(above: Above) -> None:
    """Print the strongest parts of the difference of two scores."""
    say(f"\n1 is above 2 by {signed_number(above.value, PLACES)} because", style="bold")
    sides = (("word of the query", above.by_query()), ("word of a document", above.by_document()))
    for name, table in sides:
        strongest = table.sort_values("difference", key=abs, ascending=False).head(_PAIRS)
        place = {"higher": "1: ", "lower": "2: "}
        rows = [
            [place.get(str(row.get("document")), "") + row["token"], row["difference"]]
            for row in strongest.to_dict("records")
        ]
        print_table("", (name, "adds"), rows)
