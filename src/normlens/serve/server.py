"""A page at an address: bound, started, run until Ctrl-C, closed."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from normlens.errors import PAGE_SERVER, InputError, check_installed, system_reason
from normlens.serve.jobs import AnalysisThread, Jobs
from normlens.serve.limits import Hosts, Limits, is_everywhere
from normlens.serve.models import ServedModels, example_of

#: Seconds that an analysis has to come to its next layer when the server ends.
PATIENCE = 5.0
_UVICORN: dict[str, Any] = {
    "log_level": "error",  # uvicorn warns of every broken request, which anybody can send
    "backlog": 256,  # connections that wait to be accepted
    "access_log": False,
    "lifespan": "off",
    "ws": "none",
    "proxy_headers": False,
    "server_header": False,
    "timeout_graceful_shutdown": 3,
    "timeout_keep_alive": 75,  # longer than clients keep a connection: theirs is the first move
}


class PageServer:
    """The socket, the queue and the analysis thread of one page."""

    def __init__(
        self,
        models: ServedModels,
        limits: Limits,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allow_hosts: Sequence[str] = (),
        example: bool = False,
    ):
        check_installed(PAGE_SERVER)
        self._limits, self._host = limits, host
        self._hosts = Hosts.of(host, allow_hosts)
        self._server: Any = None
        # An address that cannot be had is known before anything slow begins.
        self._listener = bind(host, port)
        self.models, self.jobs, self._example = models, Jobs(limits), example
        self._thread = AnalysisThread(self.jobs, models)

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the page."""
        shown = "127.0.0.1" if is_everywhere(self._host) else self._host
        port = self._listener.getsockname()[1]
        return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"

    def start(self) -> None:
        """Read the models' configurations and begin to listen; `run` answers.

        An example is analysed meanwhile, so that the first page has something to show.
        """
        import uvicorn

        from normlens.serve.app import QuietServer, create_app, protocol_class

        self._thread.start()
        described = self.models.descriptions
        example = example_of(described.values()) if self._example else None
        if example is not None:
            self.jobs.submit(example, described[example.model].layers)
        app = create_app(self.models, self.jobs, self._limits, self._hosts, example)
        protocol = protocol_class(self._limits)
        self._server = QuietServer(uvicorn.Config(app, http=protocol, **_UVICORN))
        self._listener.listen(_UVICORN["backlog"])

    def run(self) -> None:
        """Answer until Ctrl-C or `stop`."""
        # When uvicorn has closed its connections it passes the signal on.
        with suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        """Have `run` return, from another thread."""
        self._server.should_exit = True

    def close(self) -> bool:
        """Let go of the address, cancel every analysis; return whether its thread has ended."""
        self._listener.close()
        return self._thread.stop(PATIENCE)


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to the address; it does not listen yet."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"there is no address {host!r}; use --host 127.0.0.1") from error
    family, kind, protocol, _, place = addresses[0]
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
    return f"cannot listen at {host!r}: {system_reason(error)}; use --host 127.0.0.1"
