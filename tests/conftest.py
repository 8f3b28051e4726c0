"""Settings and models that all tests share. Nothing here needs the network."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# What tests keep is not put into the user's own cache.
os.environ.setdefault("NORMLENS_CACHE", str(Path(__file__).parents[1] / "build" / "test-cache"))

import pytest
import torch

torch.set_num_threads(1)

if not torch.cuda.is_available():
    # Triton reads it when it is first imported: its interpreter then runs kernels on the CPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest_plugins = ["layer_problems"]
pytest.register_assert_rewrite("reference")

from normlens.errors import NormLensError  # noqa: E402


def _made_of_one_line(self: NormLensError, *args: object) -> None:
    """Every error that the package makes in a test is one line: asserted here alone."""
    made_in = sys._getframe(1).f_globals.get("__name__", "")
    for given in args if made_in.startswith("normlens.") else ():
        assert not isinstance(given, str) or (given and "\n" not in given), given
    super(NormLensError, self).__init__(*args)


NormLensError.__init__ = _made_of_one_line  # type: ignore[method-assign]


try:
    from hypothesis import settings
except ModuleNotFoundError:  # the files that need it say so
    pass
else:
    settings.register_profile(
        "normlens", deadline=None, max_examples=30, derandomize=True, database=None
    )
    settings.load_profile("normlens")


def pytest_configure(config: pytest.Config) -> None:
    # DeBERTa's modules are scripted on import, whatever torch thinks of it.
    config.addinivalue_line(
        "filterwarnings", "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
    )


#: Fixtures that take seconds to set up: what needs them is of the slow tier.
SLOW_FIXTURES = {"browser", "cluster"}


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What could not be tried in a browser is said last, with how to get it."""
    reasons = {
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and "browser tests: " in str(report.longrepr[2])
    }
    for reason in sorted(reasons):
        terminalreporter.write_line(f"skipped {reason}", yellow=True)


@cache  # each is some kilobytes; tests that go through all families come back to the first one
def _tiny(model_type: str, dtype: torch.dtype, overrides: tuple[tuple[str, Any], ...]) -> Any:
    from normlens.models.tiny import tiny_model

    return tiny_model(model_type, **dict(overrides)).to(dtype)


@pytest.fixture
def tiny() -> Any:
    """A tiny model of a family, made once: ``tiny("bert", torch.float64, hidden_act="relu")``."""

    def make(model_type: str, dtype: torch.dtype = torch.float64, **overrides: Any) -> Any:
        return _tiny(model_type, dtype, tuple(sorted(overrides.items())))

    return make


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are forked from one that has imported what they need."""
    from forking import MULTIPROCESSING

    from normlens.corpus.engines import local

    monkeypatch.setattr(local, "multiprocessing", MULTIPROCESSING)


@pytest.fixture
def sketched() -> Iterator[None]:
    """Every figure of a report is drawn but not rendered: the files of pictures are empty ones.

    For tests of what is computed, kept or refused; rendering takes most of a report's time.
    """
    from quick_reports import rendering_nothing

    with rendering_nothing():
        yield


@pytest.fixture
def undrawn() -> Iterator[None]:
    """Figures are not even drawn, for reports like others whose figures are."""
    from quick_reports import drawing_nothing

    with drawing_nothing():
        yield


@pytest.fixture
def quick_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of Ray import less, and the package from where this process has it."""
    import normlens

    source, quick = Path(normlens.__file__).parents[1], Path(__file__).with_name("quick_ray")
    monkeypatch.setenv("PYTHONPATH", f"{quick}{os.pathsep}{source}")


@pytest.fixture(scope="session")
def minilm() -> Any:
    """A lens on the embedded MiniLM, which has a real tokenizer."""
    import normlens
    from normlens.loading.embedded import EMBEDDED

    if not EMBEDDED["minilm"].installed:
        pytest.skip("the embedded model is not installed (normlens models --install minilm)")
    return normlens.load("minilm", device="cpu")


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """A lens on the embedded SmolLM2 with its head."""
    import normlens
    from normlens.loading.embedded import EMBEDDED

    if not EMBEDDED["smollm2"].installed:
        pytest.skip("the embedded model is not installed (normlens models --install smollm2)")
    return normlens.load("smollm2", device="cpu")


# One browser for all tests of a process: Playwright starts once.


HOW = "apt-get install chromium && pip install playwright (CHROMIUM names another binary)"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
]


def chromium() -> str | None:
    return (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )


def missing() -> str | None:
    """Why there is no browser to test with, or None."""
    try:
        import playwright.sync_api  # noqa: F401
    except ModuleNotFoundError:
        return f"playwright is not installed: {HOW}"
    return None if chromium() else f"Chromium is not installed: {HOW}"


@pytest.fixture(scope="session")
def browser():
    reason = missing()
    if reason is not None:
        pytest.skip(f"browser tests: {reason}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield running
        running.close()
