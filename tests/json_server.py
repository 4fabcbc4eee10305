"""A server of JSON on a real socket: it keeps what it is asked and answers what the test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    method: str
    path: str
    body: Any
    headers: dict[str, str]
    """Their names in lower case."""


@dataclass
class JsonServer:
    url: str = ""
    asked: list[Asked] = field(default_factory=list)

    def bodies(self, path: str) -> list[Any]:
        return [one.body for one in self.asked if one.path.partition("?")[0] == path]


Answer = Callable[[Asked], tuple[int, Any]]


@contextmanager
def json_server(answer: Answer = lambda asked: (200, {})) -> Iterator[JsonServer]:
    found = JsonServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            # What is no JSON is none of the test's: spans, as protobuf.
            told = json.loads(body) if body and "json" in headers.get("content-type", "") else None
            asked = Asked(self.command, self.path, told, headers)
            status, value = answer(asked)
            found.asked.append(asked)
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = _any

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
