"""The pairs of subwords that a run keeps: counted in a first pass, and kept in its folder."""

from __future__ import annotations

import hashlib
import json
import uuid
import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from normlens._version import __version__
from normlens.corpus.data.records import Data
from normlens.corpus.engines.batches import encode_for
from normlens.corpus.measures import Needs
from normlens.corpus.measures.amplification import Amplification
from normlens.corpus.measures.tokens import BYTES, KeptPairs, PairCounter
from normlens.corpus.runs.check import cache_folder
from normlens.corpus.runs.choice import Choice
from normlens.corpus.runs.data_index import IndexedData
from normlens.corpus.runs.folder import Folder
from normlens.corpus.runs.identity import tokenizer_hash
from normlens.corpus.runs.ledger import KEPT_PAIRS, sealed, unsealed
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
    indexed: IndexedData,
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
        name = _key(reader, options, indexed.index.fingerprint, measure)
        kept = _remembered(name)
        if kept is None:
            progress.say("counting pairs of subwords")
            counter = _counted(reader, options, indexed.data, chosen)
            kept = counter.kept(measure.min_count, measure.keep_pairs)
            _remember(name, kept)
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


# What was counted before is remembered: a run may be resumed often. ------------------------------


def _key(reader: Lens, options: RunOptions, fingerprint: str, measure: Amplification) -> str:
    """Everything that the counts depend on."""
    facts = {
        **{name: value for name, value in options.as_json().items() if name != "block_size"},
        "normlens": __version__,
        "fingerprint": fingerprint,
        "tokenizer": tokenizer_hash(reader.tokenizer),
        "causal": reader.causal,
        "max_tokens": reader.max_tokens,
        "min_count": measure.min_count,
        "keep_pairs": measure.keep_pairs,
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return f"pairs-{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz"


def _remembered(name: str) -> KeptPairs | None:
    try:
        with np.load(cache_folder() / name, allow_pickle=False) as file:
            return KeptPairs(file["often"], file["seen"], int(file["least"]))
    except (OSError, ValueError, KeyError, EOFError):
        return None


def _remember(name: str, kept: KeptPairs) -> None:
    path = cache_folder() / name
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{name}.{uuid.uuid4().hex[:12]}")
        with temporary.open("wb") as file:
            np.savez_compressed(file, often=kept.often, seen=kept.seen, least=kept.least)
        temporary.replace(path)
    except OSError:
        return  # a cache that cannot be written costs time, and nothing else


# The pairs in a run's folder, so that resuming need not count again. The file vouches for itself
# and names the run's manifest: without it, or if it does not fit, the pairs are counted once more.


FORMAT = "normlens-kept-pairs"
VERSION = 1


def save_kept_pairs(folder: Folder, manifest: Manifest, chosen: Choice) -> None:
    """Keep in a run's folder which pairs its measures were told to keep, if they were."""
    kept = next((one.kept for one in chosen.measures if isinstance(one, Amplification)), None)
    if kept is None:
        return
    body = zlib.compress(kept.often.tobytes() + kept.seen.tobytes(), 1)
    told = {
        "format": FORMAT,
        "version": VERSION,
        "manifest": manifest.digest,
        "least": kept.least,
        "body": hashlib.sha256(body).hexdigest(),
    }
    folder.write_note(KEPT_PAIRS, sealed(told) + body)


def load_kept_pairs(folder: Folder, manifest: Manifest) -> KeptPairs | None:
    """Read the pairs that a run keeps; None if the file is lost, damaged or of another run."""
    least = _least(manifest)
    contents = None if least is None else folder.read(KEPT_PAIRS)
    if contents is None:
        return None
    line, _, body = contents.partition(b"\n")
    try:
        told = unsealed(line)
        about = (told["format"], told["version"], told["manifest"], told["least"])
        if about != (FORMAT, VERSION, manifest.digest, least):
            return None
        if told["body"] != hashlib.sha256(body).hexdigest():
            return None
        # Whatever a file from someone else holds, it becomes no larger than the bits are.
        bits = zlib.decompressobj().decompress(body, 2 * BYTES + 1)
        often, seen = np.frombuffer(bits, np.uint8).reshape(2, 2, BYTES // 2)
    except (ValueError, KeyError, TypeError, zlib.error):
        return None
    return KeptPairs(often, seen, told["least"])


def _least(manifest: Manifest) -> Any:
    """How often a pair occurs at least that the run keeps; None if it keeps all of them."""
    return manifest.measures.get(Amplification.name, {}).get("options", {}).get("least")
