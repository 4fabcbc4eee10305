from __future__ import annotations

import re

import engine.errors
from engine.errors import ContextLengthExceeded, EngineError, MethodNotAllowed, QueueFull


def tree(kind: type[EngineError]) -> list[type[EngineError]]:
    return [kind] + [below for child in kind.__subclasses__() for below in tree(child)]


def test_the_tree_drawn_is_the_tree_that_is() -> None:
    drawn = re.findall(
        r"^[\s│]*[├└]── (\w+)\s+(?:(\d{3})\s+(\w+)|never|no such|read)", engine.errors.__doc__, re.M
    )
    on_the_wire = {name: (int(status), code) for name, status, code in drawn if status}
    kinds = {kind.__name__: kind for kind in tree(EngineError)[1:]}
    assert {name for name, _, _ in drawn} == set(kinds)
    for name, (status, code) in on_the_wire.items():
        assert kinds[name].status == status
        if name != "Unavailable":
            assert kinds[name].code == code


def test_bodies_have_openais_four_fields() -> None:
    error = ContextLengthExceeded(40, 10, limit=32, param="messages")
    assert set(error.body()["error"]) == {"message", "type", "param", "code"}
    assert "40" in error.message
    assert "32" in error.message


def test_headers_tell_what_to_do() -> None:
    assert QueueFull(3, retry_after=7.4).headers() == {"retry-after": "7"}
    assert QueueFull(3, retry_after=0.1).headers() == {"retry-after": "1"}
    assert MethodNotAllowed("no", allow="POST").headers() == {"allow": "POST"}
