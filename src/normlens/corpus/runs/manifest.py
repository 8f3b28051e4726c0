"""The manifest of a run: everything needed to repeat it, and what may not change meanwhile."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from normlens.corpus.runs.folder import Folder, RunError
from normlens.corpus.runs.options import RunOptions
from normlens.errors import parse_json

NAME = "manifest.json"
FORMAT = "normlens-run"
VERSION = 5

#: Fields that must be the same when a run is resumed, by the words that an error uses for them.
FIXED = {
    "model.name": "the model",
    "model.revision": "the model's revision",
    "model.weights": "the model's weights",
    "model.head": "the weights of the model's head",
    "model.config": "the model's configuration",
    "model.tokenizer": "the tokenizer",
    "model.dtype": "the dtype",
    "model.device": "the device",
    "data.name": "the data",
    "data.fingerprint": "the contents of the data",
    "data.sequences": "the number of sequences",
    "measures": "the code of the measures",
    "tables": "the tables",
    "versions.normlens": "the version of normlens",
}


@dataclass(frozen=True)
class Manifest:
    """What a run is: written once, before anything else."""

    options: RunOptions
    model: dict[str, Any]
    data: dict[str, Any]  # name, fingerprint, sequences
    tables: dict[str, dict[str, Any]]  # table → measure, columns, order, merged
    measures: dict[str, dict[str, Any]]  # measure → its options, and the sources of a user's own
    execution: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    created: str
    token: str = field(default_factory=lambda: uuid.uuid4().hex)  # two runs are never the same

    def __post_init__(self) -> None:
        for name in self.tables:
            if not name.isidentifier():  # nor a path or SQL, if the run is a stranger's
                raise ValueError(f"{name!r} cannot name a table")

    @property
    def sequences(self) -> int:
        return int(self.data["sequences"])

    @property
    def blocks(self) -> int:
        return -(-self.sequences // self.options.block_size)

    def size(self, block: int) -> int:
        """Sequences of one block; the last may be smaller."""
        first = block * self.options.block_size
        return min(self.options.block_size, self.sequences - first)

    @property
    def digest(self) -> str:
        """SHA-256 of all of it; every record names the one that it was computed under."""
        return _digest(self._as_json())

    def _as_json(self) -> dict[str, Any]:
        return {**asdict(self), "options": self.options.as_json()}

    def create(self, folder: Folder) -> None:
        """Begin a run with this manifest; of two that begin one in a folder the first goes on."""
        contents = {
            "format": FORMAT,
            "version": VERSION,
            "digest": self.digest,
            **self._as_json(),
        }
        if not folder.create(NAME, json.dumps(contents, indent=1, ensure_ascii=False).encode()):
            raise RunError(
                f"another process has begun a run in {str(folder)!r}; wait for it, or choose "
                "another --out"
            )

    @classmethod
    def load(cls, folder: Folder) -> Manifest:
        contents = folder.read(NAME)
        if contents is None:
            raise RunError(
                f"there is no run in {str(folder)!r} (no {NAME}); start one with "
                f"normlens run --model … --data … --out {folder}"
            )
        try:
            fields = parse_json(contents)
            if fields.pop("format") != FORMAT:
                raise ValueError("it is of another kind")
            version = fields.pop("version")
            if version != VERSION:
                newer = "a newer NormLens; upgrade it"
                older = "an older NormLens, in another format; start the run again"
                said = newer if version > VERSION else older
                raise RunError(f"{str(folder)!r} was written by {said}")
            digest = fields.pop("digest")
            if digest != _digest(fields):
                raise RunError(
                    f"{NAME} in {str(folder)!r} was edited or is damaged: it does not match its "
                    "digest; put the original back, or start the run again in another folder"
                )
            return cls(**{**fields, "options": RunOptions.from_json(fields["options"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{NAME} in {str(folder)!r} is damaged or not a run's ({error}); start the run "
                "again in another folder"
            ) from error


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def has_two_stacks(model: Mapping[str, Any]) -> bool:
    """Whether the model that a manifest describes is an encoder–decoder."""
    return "stacks" in model


@dataclass(frozen=True)
class Difference:
    """Something that is not as it was when the run began."""

    what: str
    then: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.what}: then {_shown(self.then)}, now {_shown(self.now)}"


def changed_options(manifest: Manifest, given: dict[str, Any]) -> list[Difference]:
    """List the options that were given again and differ from the run's."""
    recorded = {**asdict(manifest.options), **manifest.options.as_json()}
    return [
        Difference(f"--{name.replace('_', '-')}", recorded[name], value)
        for name, value in given.items()
        if value != recorded[name]
    ]


def changes(manifest: Manifest, now: dict[str, Any]) -> list[Difference]:
    """List which fields of `now` (parts of a manifest, by their names) differ from the run's."""
    then = asdict(manifest)
    differences: list[Difference] = []
    for path, what in FIXED.items():
        part, _, field = path.partition(".")
        if part not in now or (field and field not in now[part]):
            continue
        old, new = (then[part].get(field), now[part][field]) if field else (then[part], now[part])
        differences += _differences(what, old, new)
    return differences


def _differences(what: str, old: Any, new: Any) -> list[Difference]:
    """List where two values differ; of two dicts, which of their fields do."""
    if old == new:
        return []
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [Difference(what, old, new)]
    nested = [
        difference
        for key in sorted({*old, *new})
        for difference in _differences(f"{what}, {key}", old.get(key), new.get(key))
    ]
    return nested or [Difference(what, old, new)]  # a field that is none, and one that is not there


def refuse(folder: Folder, differences: list[Difference]) -> None:
    """Raise an error that names every difference, if there is one."""
    if differences:
        raise RunError(
            f"cannot resume {str(folder)!r}, it would mix two runs: "
            f"{'; '.join(map(str, differences))}. Start a new run with another --out instead"
        )


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else text[:19] + "…" if text.startswith("sha256:") else text


def settings_again(
    folder: Folder, measure: str, what: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings that a run of this measure was begun with.

    A run of other measures is refused (the folder holds no `what`), and so is a setting that is
    given again with another value.
    """
    options = Manifest.load(folder).options
    settings = options.settings.get(measure)
    if options.measures != (measure,) or settings is None:
        raise RunError(f"{str(folder)!r} holds another run, not {what}; choose another --out")
    refuse(
        folder,
        [
            Difference(f"--{name.replace('_', '-')}", settings.get(name), value)
            for name, value in given.items()
            if value != settings.get(name)
        ],
    )
    return settings
