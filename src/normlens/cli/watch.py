"""Watching a run: a live view on a terminal, lines in a pipe."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from normlens.cli.printing import add_row, console_for, new_table
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.progress import clock

if TYPE_CHECKING:
    from rich.console import RenderableType

    from normlens.corpus.runs.results import Run
    from normlens.corpus.runs.watched import Watched

#: Seconds between two looks, at a folder on a disk and at one in an object store.
EVERY_LOCAL, EVERY_REMOTE = 2.0, 30.0
#: Seconds between two lines in a pipe.
LINE_EVERY = 10.0
#: Workers that a terminal shows; the last to finish a shard come first.
SHOWN = 20


def watch_run(run: Run, as_json: bool = False) -> None:
    """Show how far a run is until nobody works on it any more."""
    every = EVERY_LOCAL if isinstance(run.folder, LocalFolder) else EVERY_REMOTE
    console = console_for()
    watched = run.watched()
    if as_json or not console.is_terminal:
        while True:
            print(json.dumps(watched.as_json()) if as_json else watched.line(), flush=True)
            if not watched.running:
                return
            time.sleep(max(every, LINE_EVERY))
            watched = run.watched()
    with Live(_view(watched), console=console, auto_refresh=False) as live:
        while watched.running:
            time.sleep(every)
            watched = run.watched()
            live.update(_view(watched), refresh=True)
        live.update(_view(watched), refresh=True)


def _view(watched: Watched) -> RenderableType:
    status, activity = watched.status, watched.activity
    parts: list[RenderableType] = [Text(line) for line in str(status).splitlines()[:1]]
    parts += [
        Text(f"state      {watched.state}" + (f" ({watched.running})" if watched.running else "")),
        ProgressBar(total=max(1, status.sequences), completed=status.done, width=60),
        Text(watched.line()),
    ]
    if activity is None:
        return Group(*parts, *(Text(line) for line in watched.activity_lines()))
    table = new_table("worker", "device", "shards", "sequences/s", "failed", "last", left=2)
    for worker in activity.workers[:SHOWN]:
        ago = f"{clock(max(0.0, time.time() - worker.last))} ago"
        numbers = (str(worker.shards), f"{worker.rate:.1f}", str(worker.failures), ago)
        add_row(table, worker.name, worker.device, *numbers)
    hidden = len(activity.workers) - SHOWN
    more = [Text(f"and {hidden} more workers")] if hidden > 0 else []
    return Group(*parts, Text(watched.activity_lines()[1]), table, *more)
