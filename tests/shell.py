"""The command line, run in this process."""

from __future__ import annotations

from typing import Any

import pytest

from normlens import cli


class Shell:
    """Runs the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self.capsys = capsys

    def __call__(self, *words: Any) -> str:
        """What a command that must succeed prints."""
        status, out, err = self.run(*words)
        assert (status, err) == (0, "")
        return out

    def run(self, *words: Any) -> tuple[int, str, str]:
        self.capsys.readouterr()
        status = cli.main([str(word) for word in words])
        return status, *self.capsys.readouterr()

    def error(self, *words: Any) -> str:
        """The one line of a command that must fail."""
        status, out, err = self.run(*words)
        assert status == 2
        assert out == ""
        assert err.startswith("error: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        return err
