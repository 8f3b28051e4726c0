"""``normlens.align``: words of a source and its target, linked by a decoder's maps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from normlens.alignment.gold import read_gold
from normlens.alignment.link_files import write_links
from normlens.alignment.options import RUN_FIELDS, AlignOptions, align_options
from normlens.corpus.data.readers import open_data
from normlens.corpus.data.records import Data, Record
from normlens.corpus.data.text_files import SEPARATOR, split_pair
from normlens.corpus.runs.folder import open_folder
from normlens.corpus.runs.folder_base import Folder
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.one_measure import settings_again
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.corpus.runs.paths import fixed_path
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.results import Run
from normlens.corpus.runs.runs import resume, run
from normlens.errors import TABLES, InputError, check_installed
from normlens.lens import Lens
from normlens.options import check_keywords, names_of, shows_fields_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens._keywords import AlignKeywords

MEASURE = "alignment"
_READING = ("column", "pair_column", "paragraphs")
_NOT_TAKEN = tuple(name for name in names_of(RunOptions) if name not in RUN_FIELDS)


@shows_fields_of(AlignOptions, RunOptions, Execution, without=_NOT_TAKEN)
def align(
    model: str | os.PathLike[str] | Lens,
    data: str | os.PathLike[str] | Data,
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[AlignKeywords],
) -> Run:
    """Link the words of every pair of `data`; with gold links, count how well they agree.

    ``align("my-marian", "parallel:pairs.txt", "my-alignment", gold="pairs.gold")``. `out` is a new
    folder, or one that holds the same alignment, which is then finished. Its folder ``links`` has
    a file in Pharaoh's format for each layer, scope, way and head; `normlens.alignment.error_rates`
    gives the error rates. Without a target the model generates one. The options are those of
    `AlignOptions`, of `normlens.run` and of `Execution`.
    """
    check_installed(TABLES)  # the links are read from them
    check_keywords(align, options)
    own, of_run = align_options(options)
    folder = open_folder(out)
    if MANIFEST in folder.names():
        return _finish(folder, model, data, own, of_run, progress)
    chosen = AlignOptions(**own)
    settings = chosen.settings()
    if chosen.gold is not None:
        settings |= _gold(chosen, data, of_run)
    of_run.setdefault("max_length", None)
    done = run(
        model,
        data,
        out,
        progress=progress,
        measures=(MEASURE,),
        settings={MEASURE: settings},
        truncate=False,
        **of_run,
    )
    write_links(done)
    return done


@shows_fields_of(AlignOptions, RunOptions, Execution, without=_NOT_TAKEN)
def resume_alignment(
    out: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | Lens | None = None,
    data: str | os.PathLike[str] | Data | None = None,
    progress: Progress | None = None,
    **options: Unpack[AlignKeywords],
) -> Run:
    """Finish an alignment that was stopped; its options may be given again, but no others."""
    check_installed(TABLES)
    check_keywords(resume_alignment, options)
    own, of_run = align_options(options)
    return _finish(open_folder(out), model, data, own, of_run, progress)


def _finish(
    folder: Folder,
    model: str | os.PathLike[str] | Lens | None,
    data: str | os.PathLike[str] | Data | None,
    own: dict[str, Any],
    of_run: dict[str, Any],
    progress: Progress | None,
) -> Run:
    given = AlignOptions(**own)
    now = {name: value for name, value in given.settings().items() if name in own}
    if given.gold is not None:
        now["gold"] = fixed_path(given.gold)
    if given.gold_first is not None:
        now["gold_first"] = given.gold_first
    settings = settings_again(folder, MEASURE, "an alignment", now)
    done = resume(
        folder.url,
        model=model,
        data=data,
        progress=progress,
        measures=(MEASURE,),
        settings={MEASURE: settings},
        **of_run,
    )
    write_links(done)
    return done


def _gold(
    options: AlignOptions, data: str | os.PathLike[str] | Data, of_run: dict[str, Any]
) -> dict[str, Any]:
    """The settings of a gold file that has a fitting line for each pair of the data."""
    assert options.gold is not None
    gold = read_gold(options.gold)
    reading = {name: of_run[name] for name in _READING if name in of_run}
    # Of all pairs, however many are to be aligned: otherwise lines and pairs could be shifted.
    pairs = data if isinstance(data, Data) else open_data(fixed_path(data), **reading)
    lengths = [_lengths(record) for record in pairs]
    return {
        "gold": fixed_path(options.gold),
        "gold_first": gold.first_word(lengths, options.gold_first),
    }


def _lengths(record: Record) -> tuple[int, int]:
    """How many words a pair has on either side."""
    if record.words is not None and record.second_words is not None:
        return len(record.words), len(record.second_words)
    if isinstance(record.text, tuple):
        return len(record.text[0].split()), len(record.text[1].split())
    pair = None if record.text is None else split_pair(record.text)
    if pair is None:
        reason = record.unreadable or (
            f"it is no pair of a source and a target; write them with {SEPARATOR} between them, "
            "or choose two columns"
        )
        raise InputError(f"{record.id} cannot be compared with gold links: {reason}")
    return len(pair[0]), len(pair[1])
