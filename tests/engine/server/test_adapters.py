"""Adapters over HTTP, with a real server."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from engine.adapter_files import FILES
from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.errors import ModelNotFound
from engine.server.adapters import Adapters
from engine.server.tokenizer import Tokenizer
from engine.worker.runner import Runner
from tests.engine.live import EngineServer, eventually
from tests.engine.lora import write_adapter
from tests.engine.steps import run

PROMPT = [5, 6, 7, 90, 91, 33, 12, 250, 8] * 4
TOKEN = "open-sesame-0123456789"
GREEDY = SamplingParams(max_tokens=12, temperature=0)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, long_model: Path) -> Path:
    home = tmp_path_factory.mktemp("adapters")
    weights = load_file(long_model / "model.safetensors")
    write_adapter(home / "one", weights, rank=4, seed=1)
    write_adapter(home / "two", weights, rank=7, seed=2)
    write_adapter(home / "dora", weights, rank=2, use_dora=True)
    write_adapter(home / "high", weights, rank=9)
    return home


@pytest.fixture(scope="module")
def texts(long_model: Path, home: Path) -> dict[str | None, str]:
    """What base model and adapters go on to say after ``PROMPT``."""
    names: list[str | None] = [None, "one", "two"]
    adapters = tuple((name, home / name) for name in names if name)
    runner = Runner(EngineConfig(model=long_model, kv_cache_blocks=100, threads=1, adapters=adapters))
    tokens = run(runner, [(PROMPT, GREEDY)] * 3, adapters=names).tokens
    tokenizer = Tokenizer(long_model)
    texts = {name: tokenizer.decode(tokens[i]) for i, name in enumerate(names)}
    assert len(set(texts.values())) == 3
    return texts


@pytest.fixture(scope="module")
def server(long_model: Path, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    folder = tmp_path_factory.mktemp("logs")
    (folder / "token").write_text(TOKEN + "\n")
    options = [
        *("--served-model-name", "base", "--kv-cache-blocks", "2000", "--adapter", f"one={home / 'one'}"),
        *("--max-adapters", "2", "--max-adapter-rank", "8", "--adapter-token-file", str(folder / "token")),
        *("--adapter-folder", str(home), "--max-adapter-bytes", "4MiB"),
    ]
    with EngineServer(long_model, *options, log=folder / "engine.log") as server:
        server.http.headers["authorization"] = f"Bearer {TOKEN}"
        yield server


def say(server: EngineServer, model: str) -> Any:
    return server.post("/v1/completions", model=model, prompt=PROMPT, max_tokens=12, temperature=0)


def load(server: EngineServer, name: str, folder: Path) -> Any:
    return server.post("/v1/load_lora_adapter", lora_name=name, lora_path=str(folder))


def unload(server: EngineServer, name: str) -> Any:
    return server.post("/v1/unload_lora_adapter", lora_name=name)


def models(server: EngineServer) -> dict[str, dict[str, Any]]:
    return {model["id"]: model for model in server.http.get("/v1/models").json()["data"]}


def test_adapters_are_models_of_their_own(
    server: EngineServer, home: Path, texts: dict[str | None, str]
) -> None:
    found = models(server)
    assert list(found) == ["base", "one"]
    assert "parent" not in found["base"]
    assert (found["one"]["parent"], found["one"]["root"]) == ("base", str(home / "one"))
    assert server.http.get("/v1/models/one").json() == found["one"]
    for name, key in (("base", None), ("one", "one"), ("base", None)):
        answer = say(server, name).json()
        assert (answer["model"], answer["choices"][0]["text"]) == (name, texts[key])
    chat = server.post(
        "/v1/chat/completions", model="one", messages=[{"role": "user", "content": "a"}], max_tokens=2
    )
    assert chat.json()["model"] == "one"


def test_a_name_can_be_used_again_and_no_prefix_of_the_old_one_is(
    server: EngineServer, home: Path, texts: dict[str | None, str]
) -> None:
    for folder in ("two", "one", "two"):
        answer = load(server, "mine", home / folder)
        assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'mine' added successfully.")
        assert list(models(server)) == ["base", "one", "mine"]
        for _ in range(2):
            assert say(server, "mine").json()["choices"][0]["text"] == texts[folder]
        answer = unload(server, "mine")
        assert (answer.status_code, answer.text) == (
            200,
            "Success: LoRA adapter 'mine' removed successfully.",
        )
    assert list(models(server)) == ["base", "one"]


def test_names_that_are_not_there_are_404(server: EngineServer) -> None:
    for answer in (say(server, "other"), unload(server, "other"), server.http.get("/v1/models/other")):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
    assert "'base', 'one' do" in say(server, "other").json()["error"]["message"]


def test_what_cannot_be_loaded_is_400_and_says_why(server: EngineServer, home: Path) -> None:
    assert load(server, "spare", home / "two").status_code == 200
    cases = [
        (load(server, "spare", home / "two"), "lora_name", "taken"),
        (load(server, "base", home / "two"), "lora_name", "taken"),
        (load(server, "a#1", home / "two"), "lora_name", "letters"),
    ]
    unload(server, "spare")
    cases += [
        (load(server, "bad", home), "lora_path", "adapter_config.json cannot be read"),
        (load(server, "bad", home / "dora"), "lora_path", "DoRA"),
        (load(server, "bad", home / "high"), "lora_path", "--max-adapter-rank is 8"),
        (server.post("/v1/load_lora_adapter", lora_name="bad"), "lora_path", "missing"),
        (
            server.post("/v1/load_lora_adapter", lora_name="bad", lora_path="x", load_inplace=True),
            "load_inplace",
            "",
        ),
    ]
    for answer, param, complaint in cases:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert complaint in error["message"]
    assert list(models(server)) == ["base", "one"]
    assert server.http.get("/v1/load_lora_adapter").status_code == 405


def test_there_may_be_more_than_slots(server: EngineServer, home: Path, texts: dict[str | None, str]) -> None:
    """Two slots; all ask at once, so that they take turns."""
    before = server.state()["adapters"]
    names = {f"{folder}-{i}": folder for folder in ("one", "two") for i in range(3)}
    for name, folder in names.items():
        assert load(server, name, home / folder).status_code == 200
    with ThreadPoolExecutor(6) as threads:
        for _ in range(2):
            for name, answer in zip(
                names, threads.map(lambda name: say(server, name).json(), names), strict=True
            ):
                assert answer["choices"][0]["text"] == texts[names[name]]
    state = server.state()["adapters"]
    assert (state["slots_total"], state["slots_used"]) == (2, 2)
    assert (state["memory_total"], state["known"]) == (8, 7) and state["memory_used"] >= 6
    assert state["swaps"] - before["swaps"] >= 6
    assert state["hits"] + state["swaps"] - before["hits"] - before["swaps"] == 12
    for name in names:
        assert unload(server, name).status_code == 200


def test_one_comes_and_another_goes_while_requests_run(
    server: EngineServer, home: Path, texts: dict[str | None, str]
) -> None:
    body = {"prompt": PROMPT, "temperature": 0, "stream": True}
    load(server, "mine", home / "two")
    with server.http.stream(
        "POST", "/v1/completions", json={**body, "model": "mine", "max_tokens": 600}
    ) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        # It goes when the answer is whole; nobody else finds it any more.
        gone = threading.Thread(target=unload, args=(server, "mine"))
        gone.start()
        eventually(lambda: "mine" not in models(server))
        assert say(server, "mine").status_code == 404
        assert say(server, "one").json()["choices"][0]["text"] == texts["one"]
        pieces = [line for line in lines if line.startswith("data: {")]
        assert '"finish_reason":"length"' in pieces[-1]
        gone.join(300)
        assert not gone.is_alive()
    assert load(server, "mine", home / "one").status_code == 200
    assert say(server, "mine").json()["choices"][0]["text"] == texts["one"]
    assert unload(server, "mine").status_code == 200


def test_an_engine_without_room_says_how_to_get_some(server_without: EngineServer, home: Path) -> None:
    answer = load(server_without, "one", home / "one")
    assert answer.status_code == 403
    assert "--max-adapters" in answer.json()["error"]["message"]


@pytest.fixture
def server_without(long_model: Path, tmp_path: Path) -> Iterator[EngineServer]:
    with EngineServer(long_model, "--kv-cache-blocks", "100", log=tmp_path / "engine.log") as server:
        yield server


def test_any_name_is_the_models_where_it_was_asked_for() -> None:
    """A launched engine's: a target need not know the file's name. Names of adapters are told apart."""
    client: Any = None
    named = Adapters(client, "base", [("one", Path("one"))], ("/models/base.gguf",))
    assert [named.key(name) for name in ("base", "/models/base.gguf", "one")] == [None, None, "one"]
    with pytest.raises(ModelNotFound, match="'other' does not exist here"):
        named.key("other")
    assert Adapters(client, "base", (), None).key("other") is None
    many = Adapters(client, "base", [(f"a{i}", Path("one")) for i in range(500)])
    with pytest.raises(ModelNotFound, match="'a8' and 491 others do"):
        many.key("other")


def packed(folder: Path) -> tuple[bytes, dict[str, str]]:
    body = subprocess.run(["tar", "c", "-C", str(folder), *FILES], check=True, stdout=subprocess.PIPE).stdout
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return body, {"content-digest": f"sha-256=:{digest}:"}


def put(server: EngineServer, name: str, folder: Path) -> Any:
    body, headers = packed(folder)
    return server.http.put(f"/v1/adapters/{name}", content=body, headers=headers)


def test_an_adapter_can_be_sent_and_replaced_while_it_answers(
    server: EngineServer, home: Path, texts: dict[str | None, str]
) -> None:
    made = put(server, "team/sent", home / "two")
    assert made.status_code == 201
    data = b"".join((home / "two" / name).read_bytes() for name in FILES)
    assert (made.json()["id"], made.json()["sha256"]) == ("team/sent", hashlib.sha256(data).hexdigest())
    assert say(server, "team/sent").json()["choices"][0]["text"] == texts["two"]
    assert put(server, "team/sent", home / "two").status_code == 200
    assert unload(server, "team/sent").status_code == 200
    assert put(server, "team/sent", home / "one").status_code == 201
    assert say(server, "team/sent").json()["choices"][0]["text"] == texts["one"]
    listed = {one["id"]: one for one in server.http.get("/v1/adapters").json()["data"]}
    assert list(listed) == ["one", "team/sent"]
    assert listed["one"]["sha256"] == listed["team/sent"]["sha256"] != made.json()["sha256"]
    assert server.http.delete("/v1/adapters/team/sent").json()["deleted"]
    assert server.http.delete("/v1/adapters/team/sent").status_code == 404
    refused = put(server, "bad", home / "dora")
    assert refused.status_code == 400 and "DoRA" in refused.json()["error"]["message"]
    assert put(server, "base", home / "one").status_code == 400
    large = server.http.put("/v1/adapters/bad", content=bytes(5 * 2**20), headers=packed(home / "one")[1])
    assert large.status_code == 413
    # Nothing is left of any of them.
    eventually(lambda: [path.name for own in home.glob("uploads-*") for path in own.iterdir()] == [".lock"])


def test_adapters_take_a_token(server: EngineServer, home: Path) -> None:
    body, headers = packed(home / "two")
    for given in ({"authorization": "Bearer wrong-0123456789abcdef"}, {"authorization": TOKEN}):
        for answer in (
            server.http.post("/v1/load_lora_adapter", json={}, headers=given),
            server.http.post("/v1/unload_lora_adapter", json={"lora_name": "one"}, headers=given),
            server.http.get("/v1/adapters", headers=given),
            server.http.put("/v1/adapters/mine", content=body, headers={**headers, **given}),
            server.http.delete("/v1/adapters/one", headers=given),
        ):
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
    assert list(models(server)) == ["base", "one"]


def test_one_whose_files_changed_is_refused_until_they_are_back(
    server: EngineServer, home: Path, texts: dict[str | None, str]
) -> None:
    """All are asked for in turns, more than host memory has (8), so that each is read again."""
    names = [f"many-{i}" for i in range(9)]
    for name in names:
        shutil.copytree(home / "two", home / name)
        assert load(server, name, home / name).status_code == 200
    changed = home / names[0] / "adapter_config.json"
    before = changed.read_bytes()
    changed.write_bytes(before + b" ")
    for name in names[1:]:
        assert say(server, name).json()["choices"][0]["text"] == texts["two"]
    refused = say(server, names[0])
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "adapter_unreadable")
    assert str(home) not in refused.text
    assert say(server, "one").json()["choices"][0]["text"] == texts["one"]
    changed.write_bytes(before)
    assert say(server, names[0]).json()["choices"][0]["text"] == texts["two"]
    assert server.state()["adapters"]["reads"] > 0
    for name in names:
        assert unload(server, name).status_code == 200
