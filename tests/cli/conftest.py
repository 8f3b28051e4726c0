"""The command line, run in the process of the test."""

from __future__ import annotations

import pytest
from shell import Shell


@pytest.fixture
def shell(capsys):
    return Shell(capsys)
