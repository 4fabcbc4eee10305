from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict

import orjson
import pytest

from gateway import errors
from gateway.errors import GatewayError
from tests.import_graph import ROOT

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


def test_one_code_has_one_status() -> None:
    statuses = defaultdict(set)
    for kind in PLAIN:
        statuses[kind.code].add(kind.status)
    for path in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                kind = next((kind for kind in PLAIN if kind.__name__ == node.func.id), None)
                for keyword in node.keywords if kind is not None else ():
                    if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                        statuses[keyword.value.value].add(kind.status)
    assert {code for code, found in statuses.items() if code is not None and len(found) > 1} == set()
    assert statuses["deadline_exceeded"] == {504}
    assert statuses["deadline_unreachable"] == {503}


def test_only_what_another_try_could_mend_is_retryable() -> None:
    assert {kind.__name__ for kind in TREE if kind.retryable} == {
        "AnswerUnjudged",
        "AuthUnavailable",
        "GuardUnavailable",
        "ModelUnavailable",
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
