"""Runs of other versions of the format are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from normlens.corpus import Run, resume, run
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.manifest import VERSION

N = 2


@pytest.mark.parametrize(("version", "said"), [(VERSION - 1, "start"), (VERSION + 1, "upgrade")])
def test_another_format_is_refused(tmp_path: Path, lens: Any, version: int, said: str) -> None:
    out = tmp_path / "run"
    run(lens, ["a b", "c d e"], out, measures="mixing")
    written = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**written, "version": version}))
    for use in (Run.open, resume):
        with pytest.raises(RunError, match=said) as caught:
            use(out)
        assert "\n" not in str(caught.value)
