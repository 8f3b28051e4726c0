"""The widget in a real JupyterLab page."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from viewer_examples import hostile_maps

pytest.importorskip("anywidget", reason="the widget needs anywidget")
pytest.importorskip("jupyterlab", reason="needs jupyterlab")
pytest.importorskip("ipykernel", reason="needs ipykernel")


@pytest.fixture
def lab(tmp_path, browser):
    """The address of a JupyterLab with one notebook whose last expressions are maps."""
    hostile_maps(5, 2).save(tmp_path / "maps.safetensors")
    cells = [
        "import normlens\nmaps = normlens.open('maps.safetensors')\nmaps",
        "shown = maps.show(layer=1, scope='FF')\nshown",
        "print('state', shown.state)",
    ]
    notebook = {
        "cells": [
            {
                "cell_type": "code",
                "id": f"cell{k}",
                "metadata": {},
                "source": source,
                "outputs": [],
                "execution_count": None,
            }
            for k, source in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (tmp_path / "maps.ipynb").write_text(json.dumps(notebook))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = tmp_path / "home"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"),
        *("--ip=127.0.0.1", "--IdentityProvider.token=", f"--ServerApp.root_dir={tmp_path}"),
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    with (tmp_path / "lab.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=tmp_path)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            if process.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"{address}/api", timeout=2).read()
                break
            except OSError:
                time.sleep(0.5)
        else:
            pytest.fail(f"JupyterLab did not start: {(tmp_path / 'lab.log').read_text()[-2000:]}")
        assert process.poll() is None, (tmp_path / "lab.log").read_text()[-2000:]
        yield f"{address}/lab/tree/maps.ipynb?reset"
    finally:
        process.terminate()
        process.wait(30)


def run_all_cells(page: Any) -> None:
    """Choose it from the menu until a cell says that it runs: a page in the making loses clicks."""
    from playwright.sync_api import TimeoutError as NotYet

    started = page.locator(".jp-InputPrompt", has_text=re.compile(r"\[[*\d]+\]")).first
    for _ in range(5):
        page.click(".jp-Cell >> nth=0")
        page.click('.lm-MenuBar-item:has-text("Run")')
        page.click('.lm-Menu-item:has-text("Run All Cells")')
        try:
            return started.wait_for(timeout=20_000)
        except NotYet:
            page.keyboard.press("Escape")
    pytest.fail("no cell began to run")


def test_maps_are_a_widget_in_jupyterlab(browser, lab):
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(lab)
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', state="attached")
    run_all_cells(page)
    widgets = page.locator(".jp-OutputArea .normlens")
    widgets.nth(1).wait_for()
    second = page.locator(".jp-Cell >> nth=1").locator(".normlens")
    for drawn in (page.locator(".jp-Cell >> nth=0").locator(".normlens"), second):
        drawn.locator(".row-labels text >> nth=0").wait_for()
    page.locator('.normlens[data-busy="false"][data-layer="1"]').wait_for()
    assert second.get_attribute("data-scope") == "ATTNRESLNFF-N"
    assert second.get_attribute("data-layer") == "1"
    labels = second.locator(".row-labels text").all_text_contents()
    assert labels[0].startswith("<script>alert(1)")
    second.locator('[data-layer="0"]').click()
    second.locator('[data-action="ff-amp"]').click()
    page.locator('.normlens[data-view="compare"][data-layer="0"]').wait_for()
    # The arrow keys are the viewer's, and what it shows reaches Python.
    second.locator('[data-action="forward"]').focus()
    page.keyboard.press("ArrowDown")
    page.locator('.normlens[data-view="compare"][data-layer="1"]').wait_for()
    page.click(".jp-Cell >> nth=2 >> .jp-InputArea-editor")
    page.keyboard.press("Shift+Enter")
    page.locator(".jp-OutputArea-output pre", has_text="'view': 'compare'").wait_for()
    shots = Path(__file__).resolve().parents[2] / "build" / "screenshots"
    shots.mkdir(parents=True, exist_ok=True)
    second.scroll_into_view_if_needed()
    page.screenshot(path=shots / "jupyterlab.png")
    context.close()
