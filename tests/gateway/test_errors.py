from __future__ import annotations

import inspect
import re

import orjson
import pytest

from gateway import errors
from gateway.errors import GatewayError

TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, GatewayError)]
PLAIN = [kind for kind in TREE if not issubclass(kind, errors.Rejected | errors.MethodNotAllowed)]


@pytest.mark.parametrize("kind", PLAIN)
def test_the_body_is_openais(kind: type[GatewayError]) -> None:
    error = kind("Say what?", param="messages")
    assert orjson.loads(orjson.dumps(error.body())) == {
        "error": {"message": "Say what?", "type": error.type, "param": "messages", "code": error.code}
    }
    assert str(error) == "Say what?"


def test_the_docstrings_tree_is_the_real_one() -> None:
    drawn = re.findall(r"[├└]── (\w+)\s+(\d{3})?", errors.__doc__ or "")
    assert {name for name, _ in drawn} == {kind.__name__ for kind in TREE} - {"GatewayError"}
    for name, status in drawn:
        if status:
            assert getattr(errors, name).status == int(status)


def test_only_what_another_try_could_mend_is_retryable() -> None:
    assert {kind.__name__ for kind in TREE if kind.retryable} == {
        "AuthUnavailable",
        "GuardUnavailable",
        "NotConnected",
        "Overloaded",
        "RateLimited",
        "ShuttingDown",
        "UpstreamFailed",
        "UpstreamUnavailable",
        "UpstreamTimeout",
    }


def test_a_code_of_its_own_takes_the_place_of_the_kinds() -> None:
    assert errors.UpstreamFailed("x").code == "upstream_error"
    assert errors.UpstreamFailed("x", code="upstream_cut").code == "upstream_cut"
    assert errors.UpstreamFailed("x").code == "upstream_error"


def test_a_rejection_is_the_upstreams_own() -> None:
    error = errors.Rejected("no", status=422, type=None, param="n", code="bad")
    assert (error.status, error.type, error.param, error.code) == (422, "invalid_request_error", "n", "bad")


def test_method_not_allowed_knows_what_is() -> None:
    assert errors.MethodNotAllowed("no", allow="GET, HEAD").allow == "GET, HEAD"
