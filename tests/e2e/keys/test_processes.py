"""What those keys do that say which processes ``tollgate serve`` starts, and how: engines, and the sidecar."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.backends.launcher import launches
from gateway.policy.loader import load_policy
from gateway.sidecar.config import CONFIG, SidecarConfig
from tests.e2e.conftest import OPERATOR
from tests.e2e.gateways import serving
from tests.e2e.keys.conftest import Folders
from tests.e2e.keys.harness import on, shows
from tests.ports import free_port
from tests.serving import KEY, key

MARK, VALUE = "MIRROR_OF_OURS", "http://mirror.example"


@dataclass
class Whole:
    url: str
    ports: dict[str, int]
    """Of the engines, by backend."""

    def embed(self, model: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {KEY}"}
        body = {"model": model, "input": "north", **more}
        return httpx.post(f"{self.url}/v1/embeddings", json=body, headers=headers, timeout=300)

    def engine(self, name: str) -> dict[str, Any]:
        """What the engine says of its model."""
        listed = httpx.get(f"http://127.0.0.1:{self.ports[name]}/v1/models", timeout=300).json()
        return dict(listed["data"][0])


def environments(*words: str) -> list[dict[str, str]]:
    """Of the processes with ``words`` in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_text().split("\0")
                lines = (entry / "environ").read_text().split("\0")
            except OSError:
                continue
            if set(words) <= set(command) and not any(
                word.endswith("die_with_parent.py") for word in command
            ):
                found.append(dict(line.split("=", 1) for line in lines if "=" in line))
    return found


@pytest.fixture(scope="module")
def whole(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """Two engines, one with what the keys give and one without; one that is not launched; and a sidecar."""
    ports = {name: free_port() for name in ("given", "plain", "idle")}
    engines: dict[str, dict[str, Any]] = {
        name: {"kind": "engine", "base_url": f"http://127.0.0.1:{port}"} for name, port in ports.items()
    }
    engines["given"] |= {
        "launch": True,
        "model": "demo-draft",
        "args": ["--max-model-len", "64"],
        "env": ["MIRROR_*"],
    }
    engines["plain"] |= {"launch": True}
    policy = {
        "version": 1,
        "backends": {
            **engines,
            "vectors": {"kind": "sidecar"},
            "cut": {"kind": "sidecar", "matryoshka": True},
        },
        "models": {
            "given": {"targets": [{"backend": "given", "model": "demo-draft"}]},
            **{name: on(name) for name in ("plain", "idle", "vectors", "cut")},
        },
        "sidecar": {"embedder": str(folders.embedder), "threads": 2},
        "keys": [key(KEY, "one")],
    }
    with serving(tmp_path_factory.mktemp("whole"), policy, **{MARK: VALUE}) as url:
        yield Whole(url, ports)


def starts(name: str) -> str:
    return f"backends.<name>.{name} (engine)"


@shows(*(f"backends.<name>.golden{key} (engine)" for key in ("", ".set", ".at_least")))
def test_a_launched_engine_has_its_golden_set_with_it(tmp_path: Path) -> None:
    """What becomes of it is shown in ``tests/gateway/process/test_engines.py`` and ``tests/gateway/lab``."""
    backend = {"kind": "engine", "launch": True, "golden": {"set": "a.jsonl", "at_least": 0.9}}
    policy = {"version": 1, "backends": {"up": backend, "two": {**backend}}, "models": {"m": on("up")}}
    policy["backends"]["two"] |= {"golden": None, "base_url": "http://127.0.0.1:8200"}
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(policy))
    found = launches(load_policy(tmp_path, {}))
    golden = found["up"].golden
    assert golden is not None and (golden.set, golden.at_least) == ("a.jsonl", 0.9)
    assert found["two"].golden is None


@shows("backends.<name>.stop_first (engine)")
@pytest.mark.parametrize("stop_first", [False, True])
def test_an_edited_engine_starts_beside_the_old_one_or_after_it(stop_first: bool, tmp_path: Path) -> None:
    """What becomes of either is shown with processes in ``tests/gateway/process/test_engines.py``."""
    found = []
    for model in ("demo", "demo-draft"):
        backend = {"kind": "engine", "launch": True, "model": model, "stop_first": stop_first}
        policy = {"version": 1, "backends": {"up": backend}, "models": {"m": on("up")}}
        (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(policy))
        found.append(launches(load_policy(tmp_path, {}))["up"])
    before, after = found
    assert before != after
    assert after.may_replace(before) != stop_first


def _engines(whole: Whole) -> None:
    told = httpx.get(f"{whole.url}/readyz", headers=OPERATOR, timeout=300).json()["backends"]
    assert told["given"] == told["plain"] == "ready"
    assert told["idle"] != "ready"
    with pytest.raises(httpx.ConnectError):
        whole.engine("idle")
    given, plain = whole.engine("given"), whole.engine("plain")
    assert (given["id"], plain["id"]) == ("demo-draft", "demo")
    assert given["max_model_len"] == 64 != plain["max_model_len"]
    seen = [
        next(iter(environments("engine", "--port", str(whole.ports[name])))).get(MARK)
        for name in ("given", "plain")
    ]
    assert seen == [VALUE, None]


def _another_embedder(whole: Whole) -> None:
    """The one that is built in has 384 dimensions, which nobody may cut."""
    assert len(whole.embed("vectors").json()["data"][0]["embedding"]) == 16
    assert len(whole.embed("cut", dimensions=8).json()["data"][0]["embedding"]) == 8
    assert whole.embed("vectors", dimensions=8).status_code == 400


def _the_sidecars_threads(whole: Whole) -> None:
    """As it is told when it is started; by default it has one."""
    mine = [
        SidecarConfig.from_json(one[CONFIG])
        for one in environments("gateway.sidecar.worker")
        if CONFIG in one
    ]
    own = [config for config in mine if config.embedder not in (None, "builtin")]
    assert own and {config.threads for config in own} == {2}
    assert SidecarConfig(socket="").threads == 1


@pytest.mark.slow
@shows(
    *(starts(name) for name in ("launch", "model", "args", "env")),
    *("backends.<name>.matryoshka (sidecar)", "sidecar.embedder", "sidecar.threads"),
)
def test_what_is_started_and_how(whole: Whole) -> None:
    """One test, so that the processes are started once, however many run tests."""
    _engines(whole)
    _another_embedder(whole)
    _the_sidecars_threads(whole)
