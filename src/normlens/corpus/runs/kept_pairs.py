"""The pairs of subwords that a run keeps: counted in a first pass, and kept in its folder."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np

from normlens.corpus.data.records import Data
from normlens.corpus.engines.batches import encode_for
from normlens.corpus.measures import Needs
from normlens.corpus.measures.amplification import Amplification
from normlens.corpus.measures.tokens import BYTES, KeptPairs, PairCounter
from normlens.corpus.runs.choice import Choice
from normlens.corpus.runs.folder import Folder
from normlens.corpus.runs.ledger import KEPT_PAIRS
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.options import RunOptions
from normlens.corpus.runs.progress import Progress
from normlens.errors import InputError, NormLensError
from normlens.lens import Lens
from normlens.loading.load import load_config, load_tokenizer
from normlens.models.parts import SignalEncoder
from normlens.plan.estimate import skeleton


def with_kept_pairs(
    chosen: Choice,
    options: RunOptions,
    data: Data,
    lens: Lens | None,
    progress: Progress,
    *,
    trust_remote_code: bool = False,
    stored: KeptPairs | None = None,
) -> Choice:
    """The measures of a run, told which pairs of subwords are common enough to be kept.

    What is kept depends on the data, the tokenizer and the measure's options alone. `stored` is
    what lies in the folder of a run that is resumed. A run whose tokens only its model knows (of an
    encoder–decoder) keeps all pairs.
    """
    measure = next((one for one in chosen.measures if isinstance(one, Amplification)), None)
    if measure is None or not measure.subwords:
        return chosen
    if measure.min_count == 1 and measure.keep_pairs is None:
        return chosen
    kept = stored
    if kept is None:
        reader = _reader(options, trust_remote_code) if lens is None else lens
        if reader is None or reader.two_stacks or reader.tokenizer is None:
            return chosen
        progress.say("counting pairs of subwords")
        counter = _counted(reader, options, data, chosen)
        kept = counter.kept(measure.min_count, measure.keep_pairs)
    told = replace(measure, least=kept.least, kept=kept)
    place = chosen.measures.index(measure)
    return replace(
        chosen,
        measures=(*chosen.measures[:place], told, *chosen.measures[place + 1 :]),
        portable=(*chosen.portable[:place], told, *chosen.portable[place + 1 :]),
    )


def _reader(options: RunOptions, trust: bool) -> Lens | None:
    """A lens that tokenises as the run's workers will; None where that cannot be known here."""
    try:
        config = load_config(options.model, revision=options.revision, trust_remote_code=trust)
        reader = skeleton(config, options.model)
        tokenizer = load_tokenizer(
            options.model, revision=options.revision, trust_remote_code=trust
        )
    except NormLensError:
        return None  # what is wrong is said when the model is loaded
    reader.tokenizer = None if isinstance(reader.adapter, SignalEncoder) else tokenizer
    return reader


def _counted(reader: Lens, options: RunOptions, data: Data, chosen: Choice) -> PairCounter:
    needs = Needs(scopes=(), arrays=False)
    for measure in chosen.measures:
        needs |= measure.needs
    counter = PairCounter(reader.causal)
    for record in data:
        try:
            counter.add(encode_for(reader, record, options, needs).ids)
        except InputError:
            continue  # a row of the table `failures`
    return counter


# The pairs in a run's folder, so that resuming need not count again. The file names the run's
# manifest: without it, or if it does not fit, the pairs are counted once more.


def save_kept_pairs(folder: Folder, manifest: Manifest, chosen: Choice) -> None:
    """Keep in a run's folder which pairs its measures were told to keep, if they were."""
    kept = next((one.kept for one in chosen.measures if isinstance(one, Amplification)), None)
    if kept is not None:
        contents = io.BytesIO()
        np.savez_compressed(contents, manifest=manifest.digest, **vars(kept))
        folder.write(KEPT_PAIRS, contents.getvalue())


def load_kept_pairs(folder: Folder, manifest: Manifest) -> KeptPairs | None:
    """Read the pairs that a run keeps; None if the file is lost, damaged or of another run."""
    least = manifest.measures.get(Amplification.name, {}).get("options", {}).get("least")
    contents = None if least is None else folder.read(KEPT_PAIRS)
    if contents is None:
        return None
    try:
        with np.load(io.BytesIO(contents), allow_pickle=False) as file:
            told = (str(file["manifest"]), int(file["least"]))
            often, seen = np.array([file["often"], file["seen"]], np.uint8).reshape(2, 2, -1)
    except Exception:  # whatever a damaged archive makes NumPy and zipfile raise
        return None
    fits = told == (manifest.digest, least) and often.shape[1] == BYTES // 2
    return KeptPairs(often, seen, least) if fits else None
