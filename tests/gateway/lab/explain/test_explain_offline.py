"""``tollgate explain``: what the gateway's own parts decide, with the lines of the policy."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.adapters.table import ADAPTERS as ADAPTER_TABLES
from gateway.adapters.table import AdapterTable
from gateway.databases.opening import open_tables
from gateway.lab.adapters_at_hand import uploaded
from gateway.policy.loader import load_policy

HASHES = {name: sha256(name.encode()).hexdigest() for name in ("alice", "doc", "bob", "old")}
POLICY = f"""\
version: 1
backends:
  near: {{kind: openai, base_url: http://near/v1, local: true, max_concurrency: 4}}
  far: {{kind: openai, base_url: http://far/v1}}
  off: {{kind: openai, base_url: http://off/v1, api_key: "${{NOT_SET}}"}}
models:
  chat:
    aliases: [gpt]
    targets: [{{backend: near, model: small}}, {{backend: off, model: small}}]
    fallbacks: [large]
  large: {{targets: [{{backend: far, model: large}}]}}
  auto:
    cascade:
      - {{model: chat, when: {{complexity: {{below: 0.4}}}}}}
      - {{model: large}}
prices:
  far/large: {{input: 1000.0, output: 2000.0}}
tenants:
  acme:
    tier: gold
    quotas: {{requests_per_minute: 5, tokens_per_minute: 10000}}
  hospital: {{local_only: true}}
  poor: {{budget: {{usd_per_month: 0.0001}}}}
tiers:
  gold: {{priority: 2}}
keys:
  - {{id: alice, sha256: {HASHES["alice"]}, tenant: acme}}
  - {{id: doc, sha256: {HASHES["doc"]}, tenant: hospital, models: [chat, large]}}
  - {{id: bob, sha256: {HASHES["bob"]}, tenant: poor}}
  - {{id: old, sha256: {HASHES["old"]}, expires: 2020-01-01}}
guards:
  secrets: {{kind: secrets, on: [input], action: block}}
  pii: {{kind: pii, on: [input, output], action: redact, tenants: [hospital]}}
  toxicity: {{kind: toxicity, on: [output], action: block}}
caches:
  exact: {{ttl: 1h}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("TOLLGATE_STATE_DIR", str(tmp_path / "state"))
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "gateway.yaml").write_text(POLICY)
    return folder


Told = tuple[int, dict[str, Any]]


def ask(folder: Path, capsys: pytest.CaptureFixture[str], key: str, body: dict[str, Any], *more: str) -> Told:
    (folder.parent / "request.json").write_text(json.dumps(body))
    arguments = ["explain", "--key", key, "--policies", str(folder), "--json", *more]
    code = main([*arguments, str(folder.parent / "request.json")])
    return code, json.loads(capsys.readouterr().out)


def chat(content: str = "Hello", model: str = "chat", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **more}


def step(told: dict[str, Any], stage: str) -> dict[str, Any]:
    [found] = [one for one in told["steps"] if one["stage"] == stage]
    return dict(found)


def at(folder: Path, text: str) -> str:
    """The line of the policy that has this."""
    [number] = [n for n, line in enumerate(POLICY.splitlines(), 1) if text in line]
    return f"{folder / 'gateway.yaml'}:{number}"


def test_a_request_that_goes_through(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = ask(folder, capsys, "alice", chat(model="gpt"))
    assert code == 0
    assert told["outcome"]["status"] is None
    assert (told["outcome"]["backend"], told["outcome"]["target"]) == ("near", "small")
    assert told["outcome"]["headers"]["x-ratelimit-remaining-requests"] == "4"
    assert told["outcome"]["headers"]["x-tollgate-cache"] == "miss"
    caller = step(told, "caller")
    assert caller["facts"] == {
        "key": "alice",
        "tenant": "acme",
        "tier": "gold",
        "models": ["*"],
        "scopes": ["inference"],
    }
    assert caller["policy"][0]["at"] == at(folder, "id: alice")
    assert step(told, "request")["policy"][0]["at"] == at(folder, "aliases")
    requests, tokens = step(told, "limits")["facts"]["limits"]
    assert (requests["maximum"], requests["used"], requests["holds"]) == (5, 0, 1)
    assert tokens["maximum"] == 10_000 and tokens["used"] == 0 < tokens["holds"] <= 10_000
    assert step(told, "limits")["rows"][0][1][0]["at"] == at(folder, "requests_per_minute")
    assert [one["verdict"] for one in told["steps"]] == ["passes"] * len(told["steps"])


def test_the_route_names_its_candidates_and_who_was_passed_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, told = ask(folder, capsys, "alice", chat())
    route = step(told, "route")
    assert [(one["backend"], one["why"]) for one in route["facts"]["candidates"]] == [
        ("near", "primary"),
        ("far", "fallback"),
    ]
    [off] = route["alternatives"]
    assert off["what"] == "off/small of 'chat'"
    assert off["why"] == "its backend is not in use: NOT_SET is not set"
    assert off["policy"][0]["at"] == at(folder, "backend: near, model: small")
    fallback = route["rows"][1][1]
    assert [one["at"] for one in fallback] == [at(folder, "fallbacks"), at(folder, "  large: {targets")]


def test_what_must_stay_local_says_by_which_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = ask(folder, capsys, "doc", chat())
    assert code == 0
    [_, far] = step(told, "route")["alternatives"]
    assert far["why"] == "it is not local, and this request stays on local backends"
    assert far["policy"][-1]["at"] == at(folder, "local_only")
    code, told = ask(folder, capsys, "doc", chat(model="large"))
    assert (code, told["outcome"]["status"], told["outcome"]["error"]) == (1, 403, "local_only")
    assert step(told, "route")["verdict"] == "refuses"


def test_costs_are_bounded_by_the_lines_of_prices(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, told = ask(folder, capsys, "alice", chat(model="large", max_tokens=10))
    [large] = step(told, "cost")["facts"]["targets"]
    assert large["max_answer_tokens"] == 10
    assert 10 * 2000 / 1e6 < large["most_usd"] < 10 * 2000 / 1e6 + 100 * 1000 / 1e6
    assert step(told, "cost")["rows"][0][1][0]["at"] == at(folder, "far/large: {input")


def test_a_refusal_by_a_limit_names_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = ask(folder, capsys, "bob", chat(model="large"))
    assert (code, told["outcome"]["status"], told["outcome"]["error"]) == (1, 429, "insufficient_quota")
    assert told["steps"][-1]["stage"] == "limits"
    assert told["steps"][-1]["verdict"] == "refuses"
    assert told["steps"][-1]["rows"][0][1][0]["at"] == at(folder, "usd_per_month")


def test_guards_give_their_verdicts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "ghp_" + "x7Kq2mWz9RtY4bNc8LpV3sHd6FgJ1aQe5UiO"
    code, told = ask(folder, capsys, "alice", chat(f"my token is {secret}"))
    assert (code, told["outcome"]["status"]) == (1, 400)
    guards = step(told, "guards (request)")
    assert guards["verdict"] == "refuses" and guards["policy"][0]["at"] == at(folder, "secrets:")
    assert secret not in json.dumps(told)
    assert {one["what"]: one["why"] for one in guards["alternatives"]} == {
        "guard 'pii'": "it looks after tenants hospital",
        "guard 'toxicity'": "it looks at answers only",
    }
    _, told = ask(folder, capsys, "doc", chat("write to ann@example.com"))
    assert step(told, "guards (request)")["verdict"] == "changes"
    assert step(told, "guards (answer)")["facts"]["guards"] == ["pii", "toxicity"]


def test_a_cascade_says_which_step_and_when_the_next(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, told = ask(folder, capsys, "alice", chat("What is 2+2?", model="auto"))
    cascade = step(told, "cascade")
    assert cascade["facts"]["first"] == "chat" and cascade["facts"]["complexity"] < 0.4
    assert cascade["policy"][0]["at"] == at(folder, "when: {complexity")
    assert told["outcome"]["model"] == "chat"


@pytest.mark.parametrize(
    ("key", "status", "code", "stage"),
    [("nobody", 401, "invalid_api_key", "caller"), ("old", 401, "expired_api_key", "caller")],
)
def test_who_is_no_caller_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], key: str, status: int, code: str, stage: str
) -> None:
    rc, told = ask(folder, capsys, key, chat())
    assert (rc, told["outcome"]["status"], told["outcome"]["error"]) == (1, status, code)
    assert [one["stage"] for one in told["steps"]] == [stage]


def test_the_key_itself_is_as_good_as_its_id(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, told = ask(folder, capsys, "bob", chat())
    assert told["asked"]["key"] == "bob"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {**chat(), "max_tokens": 5, "system": "Be brief"}),
        ("/v1/responses", {"model": "chat", "input": "Hello", "instructions": "Be brief"}),
        ("/v1/responses", {"model": "chat", "input": "Hello", "reasoning": None, "background": True}),
        ("/v1/completions", {"model": "chat", "prompt": "Hello"}),
        ("/v1/embeddings", {"model": "chat", "input": "Hello"}),
    ],
    ids=["messages", "responses", "background", "completions", "embeddings"],
)
def test_each_dialect_is_known_by_its_body(
    folder: Path, capsys: pytest.CaptureFixture[str], path: str, body: dict[str, Any]
) -> None:
    code, told = ask(folder, capsys, "alice", body)
    assert (code, told["asked"]["path"]) == (0, path), told["outcome"]
    assert told["outcome"]["backend"] == "near"


def test_what_is_no_request_is_refused_as_it_would_be(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = ask(folder, capsys, "alice", {"model": "chat", "messages": "Hello"})
    assert (code, told["outcome"]["status"]) == (1, 400)
    code, told = ask(folder, capsys, "doc", chat(model="auto"))
    assert (code, told["outcome"]["error"]) == (1, "model_not_found")
    assert step(told, "request")["policy"][0]["at"] == at(folder, "id: doc")


def test_the_callers_own_cache_control_is_heeded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = ask(folder, capsys, "alice", chat(), "--header", "cache-control: only-if-cached")
    assert (code, told["outcome"]["status"], told["outcome"]["error"]) == (1, 504, "not_cached")


def test_for_people_it_is_a_table_that_ends_in_what_was_taken_as_given(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--key", "alice", "--policies", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("It would be sent to near/small, for the model 'chat'.\n")
    assert f"[{at(folder, 'tier: gold')} (tenants.acme.tier)]" in text
    assert "Taken as given:" in text and "Nothing was sent, and nothing was counted." in text


def test_a_policy_that_cannot_be_read_says_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gateway.yaml").write_text("version: 2\n")
    assert main(["explain", "--key", "alice", "--policies", str(folder)]) == 2
    assert "gateway.yaml:1" in capsys.readouterr().err


ADAPTERS = """\
adapters:
  servers: {near: {slots: 2, folder: /adapters}}
  folder: /mnt
  listed: {far: {tenants: [acme]}}
"""


def test_adapters_that_tenants_uploaded_and_that_servers_list(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vllm = "base_url: http://far/v1, telemetry: vllm"
    (folder / "gateway.yaml").write_text(POLICY.replace("base_url: http://far/v1", vllm) + ADAPTERS)
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("TOLLGATE_STATE_DIR", str(state))
    unknown = "model_not_found"
    code, told = ask(folder, capsys, "alice", chat(model="chat:support"))
    assert (code, told["outcome"]["error"]) == (1, unknown)
    assert not (state / "adapters.sqlite").exists(), "explaining makes nothing"
    table = AdapterTable(open_tables(ADAPTER_TABLES, load_policy(folder, {}).policy.ledger, state))
    support = uploaded("chat", "support", "acme")
    table.add(support, lambda owned: None)
    for model in ("chat:support", "gpt:support", f"chat:{support.id}"):
        code, told = ask(folder, capsys, "alice", chat(model=model))
        outcome = told["outcome"]
        assert (code, outcome["backend"], outcome["target"]) == (0, "near", support.id)
        assert outcome["headers"]["x-ratelimit-remaining-requests"] == "4", "its base's limits hold"
        assert not any("adapter" in one for one in told["assumed"])
    code, told = ask(folder, capsys, "doc", chat(model="chat:support"))
    assert (code, told["outcome"]["error"]) == (1, unknown), "it is another tenant's"
    code, told = ask(folder, capsys, "alice", chat(model="large:sql"))
    assert (code, told["outcome"]["backend"], told["outcome"]["target"]) == (0, "far", "sql")
    assert [one for one in told["assumed"] if one.startswith("servers list the adapter 'large:sql'")]
    code, told = ask(folder, capsys, "doc", chat(model="large:sql"))
    assert (code, told["outcome"]["error"]) == (1, unknown), "they are listed for acme alone"
