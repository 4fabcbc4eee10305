"""An engine's embeddings, whatever it answers; tests/e2e/keys/test_engine_embedder.py has a real one."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import numpy as np
import orjson
import pytest

from gateway.sidecar.api import SidecarBusy, SidecarDown, SidecarError
from gateway.sidecar.models.engine_embedder import EngineEmbedder

Serve = Callable[..., str]


def answer(*vectors: list[float]) -> dict[str, Any]:
    data = [
        {"index": at, "embedding": b64encode(np.array(one, "<f4").tobytes()).decode()}
        for at, one in enumerate(vectors)
    ]
    return {"data": data[::-1]}


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answers one after the other, as (status, body), the last one for ever; what was asked is in ``asked``."""
    servers: list[ThreadingHTTPServer] = []

    def start(*answers: tuple[int, Any], asked: list[Any] | None = None) -> str:
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if asked is not None:
                    asked.append((self.path, orjson.loads(body)))
                status, given = left.pop(0) if len(left) > 1 else left[0]
                data = orjson.dumps(given)
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


def test_texts_become_vectors_in_their_order(serve: Serve) -> None:
    asked: list[Any] = []
    embedder = EngineEmbedder(serve((200, answer([3.0, 4.0], [0.0, 2.0])), asked=asked), "m")
    one, other = embedder.encode(["a" * 100_000, ""])
    assert embedder.sentence(one) == np.array([0.6, 0.8], "<f4").tobytes()
    assert embedder.sentence(other) == np.array([0.0, 1.0], "<f4").tobytes()
    ((path, body),) = asked
    assert (path, body["model"], body["truncate_prompt_tokens"]) == ("/v1/embeddings", "m", -1)
    assert [len(text) for text in body["input"]] == [16_384, 1]


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (503, {}, SidecarBusy),
        (429, {}, SidecarBusy),
        (400, {"error": {"message": "no"}}, SidecarError),
        (200, {"data": [{"index": 0}]}, SidecarError),
        (200, [], SidecarError),
        (200, answer(), SidecarError),
        (200, answer([1.0], [1.0, 2.0]), SidecarError),
        (200, answer([1.0], [1.0], [1.0]), SidecarError),
        (200, answer([], []), SidecarError),
    ],
)
def test_what_is_no_answer_is_an_error_of_the_sidecars(
    serve: Serve, status: int, body: Any, error: type[SidecarError]
) -> None:
    with pytest.raises(SidecarError) as raised:
        EngineEmbedder(serve((status, body)), "m").encode(["a", "b"])
    assert type(raised.value) is error


def test_an_engine_that_is_away_is_down() -> None:
    with pytest.raises(SidecarDown, match="cannot be reached"):
        EngineEmbedder("http://127.0.0.1:1", "m").encode(["a"])


def test_vectors_of_another_width_are_another_models(serve: Serve) -> None:
    embedder = EngineEmbedder(serve((200, answer([1.0, 0.0])), (200, answer([1.0]))), "m")
    embedder.encode(["a"])
    with pytest.raises(SidecarError, match="another model"):
        embedder.encode(["a"])


def test_another_model_than_minilm_is_found_out(serve: Serve) -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 384)).tolist()
    with pytest.raises(ValueError, match="is not all-MiniLM-L6-v2"):
        EngineEmbedder(serve((200, answer(*vectors))), "m").check_is_minilm()
