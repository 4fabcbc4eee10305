"""Client libraries as they are, against scripted providers: what ``docs/clients.md`` says of them is so.

Where a client is not installed its tests are skipped; in CI they fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.conformance.clients import page, real
from benchmarks.conformance.clients.catalogue import CLIENTS, Client
from benchmarks.conformance.clients.features import FEATURES
from benchmarks.conformance.clients.page import Notes, cell
from benchmarks.conformance.clients.tried import KINDS, MODEL_PATIENCE_S, PATIENCE_S, Report, Tried, try_out
from benchmarks.conformance.stack import Stack, running
from tests.conformance import scripted_stack

QUICK = [name for name in FEATURES if name not in ("retry", "responses-compact")]
"""What does not sleep."""
AGENTS = [client for client in CLIENTS if client.is_agent]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with scripted_stack(tmp_path_factory.mktemp("clients")) as stack:
        yield stack


@pytest.fixture(scope="module")
def whole() -> Iterator[Stack]:
    with running() as stack:
        yield stack


# Each of the official clients, with the providers whose APIs differ most from the one that it speaks.
@pytest.mark.parametrize(
    ("script", "kinds"), [("openai_python.py", ["gemini"]), ("anthropic_python.py", ["bedrock"])]
)
def test_the_official_clients(scripted: Stack, script: str, kinds: list[str]) -> None:
    [client] = [client for client in CLIENTS if client.script == script]
    assert _wrong(try_out(client, scripted, kinds, QUICK)) == []


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
def test_every_client_with_every_kind_of_backend(request: pytest.FixtureRequest, client: Client) -> None:
    if why := client.missing():
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    # Started only where there is a client for it.
    assert _wrong(try_out(client, request.getfixturevalue("whole"))) == []


# One test, so that one process has the model.
@pytest.mark.slow
@pytest.mark.timeout(len(AGENTS) * real.ATTEMPTS * (MODEL_PATIENCE_S + PATIENCE_S))
def test_coding_agents_write_a_file_with_a_real_model() -> None:
    weights = real.weights()
    if weights is None:
        pytest.skip(real.HOW)
    agents = [agent for agent in AGENTS if not agent.missing()]
    if not agents:
        pytest.skip(AGENTS[0].missing())
    with running(weights) as stack:
        tried = {agent.name: list(real.errands(agent, stack)) for agent in agents}
    failed = {name: [one.reason for one in tries] for name, tries in tried.items() if not tries[-1].works}
    assert failed == {}


def test_weights_are_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(real.VARIABLE, raising=False)
    assert real.weights() is None
    monkeypatch.setenv(real.VARIABLE, str(tmp_path / "model.gguf"))
    with pytest.raises(FileNotFoundError, match="which does not exist: no weights: set "):
        real.weights()
    (tmp_path / "model.gguf").touch()
    assert real.weights() == tmp_path / "model.gguf"


def _wrong(report: Report) -> list[str]:
    assert report.tried
    return report.faults + page.differences([report], page.PAGE.read_text())


def test_the_table_is_read_as_it_is_written() -> None:
    works = [Tried(kind, "models", True) for kind in KINDS]
    some = [
        Tried(kind, "chat", kind != "azure", "Error code: 400 - It has none. Ask another.") for kind in KINDS
    ]
    none = [Tried(kind, "errors", False, "no" if kind == "gemini" else "never") for kind in KINDS]
    report = Report("Some client", {"some": "1.0"}, (*works, *some, *none))
    text = f"{page.BEGIN}\n\n{page.table([report])}\n\n{page.END}"
    assert page.differences([report], text) == []
    read = page.written(text)
    assert read["Some client", "models", "bundled"] == ""
    assert read["Some client", "chat", "azure"] == "It has none"
    assert (read["Some client", "errors", "gemini"], read["Some client", "errors", "azure"]) == (
        "no",
        "never",
    )
    broken = Report("Some client", {}, (Tried("azure", "models", False, "it broke", is_fault=True),))
    assert page.differences([broken], text) == [
        "Some client, models, azure: 'it broke', and the page says 'works'"
    ]
    assert broken.faults == ["Some client, azure: models: it broke"]


def test_a_cell_names_the_kinds_that_do_not_work() -> None:
    tried = [Tried(kind, "chat", kind != "bundled", "no pictures") for kind in KINDS]
    assert cell(tried, Notes()) == "yes, not bundled [1]"
    assert cell([], Notes()) == ""
