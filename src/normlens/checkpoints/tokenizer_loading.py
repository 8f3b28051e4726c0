"""Tokenizers: a model's, or another one by its name or folder."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from normlens.checkpoints.embedded_files import embedded_reader, is_embedded
from normlens.checkpoints.hub import Origin, file_of, known_cause, quiet_transformers
from normlens.errors import MissingDependencyError, ModelLoadError, reason_of
from normlens.model_names import is_local

#: Files of which every tokenizer has at least one.
_TOKENIZER_FILES = (
    "tokenizer_config.json",
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
)
#: Files that some tokenizers read with the package sentencepiece.
_SENTENCEPIECE_FILES = (
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "source.spm",
    "sentencepiece.bpe.model",
)


def tokenizer_of(origin: Origin) -> Any:
    """The tokenizer that comes with a model; None where none does: `input_ids` need none."""
    try:
        return _read_tokenizer(origin)
    except _UnusableTokenizerError:
        if _has_files(origin, (*_TOKENIZER_FILES, *_SENTENCEPIECE_FILES)):
            raise
        return None


class _UnusableTokenizerError(ModelLoadError):
    """Files that give no tokenizer, or none at all."""


def _has_files(origin: Origin, names: Sequence[str]) -> bool:
    return any(file_of(origin, name) is not None for name in names)


def _read_tokenizer(origin: Origin) -> Any:
    from transformers import AutoTokenizer

    advice = (
        "save one beside the model with tokenizer.save_pretrained(…), name another one "
        "(load(…, tokenizer=…) or --tokenizer), or load the model without any (tokenizer=False) "
        "and pass input_ids=…"
    )
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(origin.name, **origin.options)
    # Whatever the many tokenizer classes raise, the user's next step is the same.
    except Exception as error:
        if (explained := known_cause(origin, error)) is not None:
            raise explained from error
        if find_spec("sentencepiece") is None and _has_files(origin, _SENTENCEPIECE_FILES):
            raise MissingDependencyError(
                f"the tokenizer of {origin.name!r} needs the sentencepiece package; run: pip "
                "install sentencepiece"
            ) from error
        raise _UnusableTokenizerError(
            f"{origin.name!r} has no usable tokenizer ({reason_of(error)}); {advice}"
        ) from error
    # Where the files are missing, transformers makes a tokenizer that calls every word unknown.
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) <= 2:
        raise _UnusableTokenizerError(
            f"{origin.name!r} has no tokenizer (its vocabulary is empty); {advice}"
        )
    return tokenizer


def named_tokenizer(name: str, trust_remote_code: bool) -> Any:
    """The tokenizer of this name: a hub name, a folder or an embedded model's."""
    if is_embedded(name):
        from transformers import AutoTokenizer

        return embedded_reader(name)(AutoTokenizer)
    if is_local(name) and not Path(name).expanduser().is_dir():
        raise ModelLoadError(
            f"there is no tokenizer folder at {name!r}; give a folder that "
            "tokenizer.save_pretrained wrote, or a hub name"
        )
    return _read_tokenizer(Origin.find(name, None, trust_remote_code))
