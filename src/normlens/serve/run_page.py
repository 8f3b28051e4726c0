"""The page of a run: how far it is, as HTML that needs no script and nothing from elsewhere."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from datetime import datetime

from normlens.corpus.runs.progress import clock
from normlens.corpus.runs.watched import Watched

#: Seconds after which a browser asks again: while the run goes on, and when nobody works on it.
REFRESH_RUNNING, REFRESH_ENDED = 5, 30
#: Workers and shards that the page shows.
SHOWN = 100

STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --soft: #5b6475; --paper: #fff; --line: #d9dee8;
  --tile: #f5f7fa; --accent: #2f6fb4; --good: #1b7f4b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9f0; --soft: #9aa5b8; --paper: #14181f; --line: #2d3542; --tile: #1c222c;
    --accent: #7db4ec; --good: #6cce9c; --bad: #ff9d94; } }
body { margin: 0 auto; padding: 1.5rem; max-width: 60rem; background: var(--paper);
  color: var(--ink); font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.8rem 0 .4rem; }
p { margin: .3rem 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); font-size: .9rem; }
.running, .complete { color: var(--good); } .stopped, .error { color: var(--bad); }
progress { width: 100%; height: 1.1rem; margin: 1rem 0 .3rem; accent-color: var(--accent); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .7rem;
  margin: 1rem 0; }
dl div { background: var(--tile); border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .8rem; }
dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
dd small { display: block; font-size: .8rem; color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 600; font-size: .85rem; }
a { color: var(--accent); }
"""


def run_page(url: str, watched: Watched) -> str:
    """The page of a run in this state; `url` is the run's folder."""
    status = watched.status
    refresh = REFRESH_RUNNING if watched.running else REFRESH_ENDED
    share = status.done / status.sequences if status.sequences else 1.0
    who = f" ({watched.running})" if watched.running else ""
    body = [
        f"<h1>{_text(status.model)} on {_text(status.data)}</h1>",
        f'<p class="soft">{_text(url)}</p>',
        f'<p><strong class="{watched.state}">{watched.state}</strong>{_text(who)}</p>',
        f'<progress max="{status.sequences}" value="{status.done}" aria-label="sequences done">'
        f"{share:.0%}</progress>",
        f'<p class="soft">{share:.1%} of the sequences, {status.shards_done:,} of '
        f"{status.shards:,} shards</p>",
        _tiles(watched),
        f'<p class="stopped">{_text(watched.note)}</p>' if watched.note else "",
        _in_flight(watched),
        _workers(watched),
        _stages(watched),
        f'<p class="soft">As of {_now()}; the page asks again every {refresh} s. '
        'The same as <a href="api/run">JSON</a>.</p>',
    ]
    title = f"{share:.0%} {status.model} on {status.data}"
    return _document(title, "\n".join(filter(None, body)), refresh)


def error_page(url: str, problem: str) -> str:
    """The page of a run that cannot be read now."""
    body = (
        f'<h1>A run that cannot be read</h1><p class="soft">{_text(url)}</p>'
        f'<p class="error">{_text(problem)}</p>'
    )
    return _document("NormLens run", body, REFRESH_ENDED)


def _document(title: str, body: str, refresh: int) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="{refresh}">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="static/run.css">
<title>{_text(title)}</title>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _tiles(watched: Watched) -> str:
    status, activity = watched.status, watched.activity
    late = "of late" if activity is not None and activity.rate else "on average"
    left = watched.seconds_left
    attempts = sum(status.attempts.values())
    tiles = [
        ("Done", f"{status.done:,}", f"of {status.sequences:,} sequences"),
        ("Rate", f"{watched.rate:,.1f}/s", f"sequences, {late}"),
        ("Time left", _time_left(watched, left), f"{status.left:,} sequences"),
        ("Failures", f"{status.failures:,}", "sequences"),
        ("Attempts that failed", f"{attempts:,}", f"of {len(status.attempts):,} shards"),
    ]
    if activity is not None:
        tiles.append(("In flight", f"{activity.in_flight:,}", "shards with workers"))
    rows = (
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}<small>{_text(more)}</small></dd></div>"
        for name, value, more in tiles
    )
    return f"<dl>{''.join(rows)}</dl>"


def _time_left(watched: Watched, left: float | None) -> str:
    if not watched.status.left:
        return "none"
    return "not known" if left is None or not watched.running else clock(left)


def _in_flight(watched: Watched) -> str:
    activity = watched.activity
    if activity is None or not activity.oldest:
        return ""
    oldest = sorted(activity.oldest.items(), key=lambda each: each[1])[:SHOWN]
    rows = []
    for number, since in oldest:
        tries = watched.status.attempts.get(int(number), 0)
        rows.append((f"shard {number}", _ago(since), str(tries)))
    return _table("In flight", ("shard", "handed out", "attempts that failed"), rows)


def _workers(watched: Watched) -> str:
    if watched.activity is None:
        return ""
    rows = [
        (
            worker.name,
            worker.device,
            f"{worker.shards:,}",
            f"{worker.rate:.1f}",
            f"{worker.failures:,}",
            _ago(worker.last),
        )
        for worker in watched.activity.workers[:SHOWN]
    ]
    names = ("worker", "device", "shards", "sequences/s", "failures", "last shard")
    return _table(f"Workers ({len(watched.activity.workers)})", names, rows)


def _stages(watched: Watched) -> str:
    total = sum(watched.status.stages.values())
    rows = [
        (stage, clock(seconds), f"{seconds / total:.0%}")
        for stage, seconds in watched.status.stages.items()
        if total
    ]
    return _table("Where the time goes", ("stage", "summed over workers", "share"), rows)


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
    lines = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return (
        f'<h2>{_text(title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _ago(moment: float) -> str:
    return f"{clock(max(0.0, time.time() - moment))} ago"


def _now() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _text(text: str) -> str:
    return html.escape(text)
