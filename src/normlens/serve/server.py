"""From options to a listening server, and back to the terminal."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from typing import Any

from normlens.errors import InputError, MissingDependencyError
from normlens.serve.limits import Limits

#: How long a layer in work may take to end after Ctrl-C.
PATIENCE = 5.0


def serve(
    names: Sequence[str],
    *,
    host: str,
    port: int,
    allow_hosts: Sequence[str] = (),
    limits: Limits | None = None,
    open_browser: bool = False,
    quiet: bool = False,
    **loading: Any,
) -> None:
    """Serve the page until Ctrl-C. `loading` is for `ServedModels`."""
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MissingDependencyError(
            "the page needs FastAPI and uvicorn; run: pip install 'normlens[serve]'"
        ) from error
    from normlens.serve.app import create_app
    from normlens.serve.jobs import Jobs
    from normlens.serve.models import ServedModels
    from normlens.serve.security import Hosts, is_loopback
    from normlens.serve.worker import Worker

    limits = limits or Limits()
    with bind(host, port) as listener:
        models, jobs = ServedModels(names, limits, **loading), Jobs(limits)
        worker = Worker(jobs, models)
        worker.start()
        app = create_app(models, jobs, limits, Hosts.of(host, allow_hosts))
        listener.listen(2048)
        url = address(listener, host)
        print(url if quiet else f"NormLens serves {', '.join(models.names)} at {url}", flush=True)
        if not quiet:
            _advise(is_loopback(host))
        if open_browser:
            # A browser in the terminal would keep the server from starting.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        try:
            uvicorn.Server(uvicorn.Config(app, **_settings())).run(sockets=[listener])
        except KeyboardInterrupt:
            pass  # the way to end it
        finally:
            ended = worker.stop(PATIENCE)
    if not ended:
        # A thread inside torch does not survive the interpreter's own end in good order.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _settings() -> dict[str, Any]:
    return {
        "log_level": "warning",
        "access_log": False,
        "lifespan": "off",
        "ws": "none",
        "proxy_headers": False,
        "server_header": False,
        "timeout_graceful_shutdown": 3,
    }


def _advise(loopback: bool) -> None:
    print("Ctrl-C stops it.", file=sys.stderr)
    if not loopback:
        print(
            "warning: whoever can reach this address can use it; there is no password",
            file=sys.stderr,
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket at the address, not listening yet."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"there is no address {host!r}; use --host 127.0.0.1") from error
    family, kind, protocol, _, place = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        listener.close()
        raise InputError(_bind_problem(error, host, port)) from error
    return listener


def _bind_problem(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use; choose another with --port (0 takes any free one)"
    if error.errno == errno.EACCES:
        return f"port {port} may not be used by this user; choose one above 1023 with --port"
    return f"cannot listen at {host!r}: {error.strerror or error}; use --host 127.0.0.1"


def address(listener: socket.socket, host: str) -> str:
    """Where a browser on this machine finds the page."""
    from normlens.serve.security import is_everywhere

    shown = "127.0.0.1" if is_everywhere(host) else host
    port = listener.getsockname()[1]
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"
