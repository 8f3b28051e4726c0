"""The pairs of subwords that a run keeps, in its folder, so that resuming need not count again.

The file vouches for itself (it has a checksum) and names the run's manifest: without it, or if it
does not fit, the pairs are counted once more.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import numpy as np

from normlens.corpus.measures.amplification import Amplification
from normlens.corpus.measures.tokens import BYTES, KeptPairs
from normlens.corpus.runs.choice import Choice
from normlens.corpus.runs.entries import sealed, unsealed
from normlens.corpus.runs.folder import Folder
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.side_files import KEPT_PAIRS, write_side_file

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
    write_side_file(folder, KEPT_PAIRS, sealed(told) + body)


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
