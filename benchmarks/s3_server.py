"""An S3 server on this machine that fails when it is told to: moto behind a few lines of WSGI.

    python benchmarks/s3_server.py 5000       # needs: pip install 'moto[server]' s3fs

`POST /_faults` with JSON such as {"refuse": 0.1, "hang": 0.05, "lose": 0.1, "seconds": 3} sets the
share of requests that get a 503, that wait so many seconds before they are done, and that are done
but get no response. Writes are done one at a time, so that conditional ones are atomic as in S3.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any


class FaultyStore:
    """A WSGI application that passes requests on, unless one of its faults comes up."""

    def __init__(self, application: Callable[..., Iterable[bytes]], seed: int = 0):
        self._application, self._chance = application, random.Random(seed)
        self._writing = threading.Lock()
        self.faults = {"refuse": 0.0, "hang": 0.0, "lose": 0.0, "seconds": 3.0}

    def __call__(self, request: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if request["PATH_INFO"] == "/_faults":
            length = int(request["CONTENT_LENGTH"])
            self.faults |= json.loads(request["wsgi.input"].read(length))
            start_response("200 OK", [])
            return []
        drawn = self._chance.random()
        for fault in ("refuse", "hang", "lose"):
            drawn -= self.faults[fault]
            if drawn < 0:
                break
        else:
            fault = ""
        if fault == "refuse":
            request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
            start_response("503 Slow Down", [("Retry-After", "0")])
            return []
        if fault == "hang":
            time.sleep(self.faults["seconds"])
        if request["REQUEST_METHOD"] in ("GET", "HEAD"):
            answer = self._application(request, start_response)
        else:
            with self._writing:
                answer = list(self._application(request, start_response))
        if fault == "lose":
            request["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer


def main() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = FaultyStore(DomainDispatcherApplication(create_backend_app))
    make_server("127.0.0.1", int(sys.argv[1]), application, threaded=True).serve_forever()


if __name__ == "__main__":
    main()
