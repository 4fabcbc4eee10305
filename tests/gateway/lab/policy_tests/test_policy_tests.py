"""``tollgate test``: what passes, what fails and where that was decided, and what is wrong with a test file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gateway.__main__ import main
from gateway.lab.policy_tests.reader import read_tests
from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError

POLICY = """\
version: 1
backends:
  one: {kind: openai, base_url: http://one/v1, api_key: "${SOME_KEY}", max_concurrency: 2}
  two: {kind: anthropic, api_key: "${OTHER_KEY}"}
models:
  chat:
    targets: [{backend: one, model: small}]
    fallbacks: [big]
    retry: {attempts: 1}
  big: {targets: [{backend: two, model: claude}]}
prices:
  one/small: {input: 1.0, output: 2.0}
  two/claude: {input: 10.0, output: 20.0}
tenants:
  acme: {quotas: {requests_per_minute: 2}}
keys:
  - {id: alice, sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", tenant: acme}
  - {id: old, sha256: "cb8379ac2098aa165029e3938a51da0bcecfc008fd6795f401178647f96c5b34", expires: 2027-01-01}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SOME_KEY", raising=False)
    (tmp_path / "gateway.yaml").write_text(POLICY)
    return tmp_path


def run(
    folder: Path, capfd: pytest.CaptureFixture[str], tests: str, *more: str
) -> tuple[int, list[dict[str, Any]]]:
    (folder / "gateway.test.yaml").write_text(tests)
    code = main(["test", str(folder), "--json", *more])
    out, err = capfd.readouterr()
    assert err == ""
    [file] = json.loads(out)["files"]
    assert file["problems"] == []
    return code, file["cases"]


def test_what_fails_is_told_with_the_line_that_decided(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    code, cases = run(
        folder,
        capfd,
        """\
backends:
  one: {prompt_tokens: 1000, completion_tokens: 1000}
cases:
  - name: passes
    key: alice
    model: chat
    ask: Hello
    expect: {status: 200, cost_at_most: 0.003, decided_by: "models.chat.targets[0]"}
  - name: fails
    key: alice
    steps:
      - {model: chat, ask: Hello, times: 2}
      - {model: chat, ask: Hello, expect: {status: 200, cost_at_most: 0.001}}
      - {wait: 1h, model: chat, ask: Hello, backends: {one: {status: 500}}, expect: {backend: two}}
""",
        "--junit",
        str(folder / "report.xml"),
    )
    assert time.monotonic() - began < 300, "an hour takes no time"
    passes, fails = cases
    assert code == 1 and passes["passed"] and not fails["passed"]
    [failure] = fails["failures"]
    assert (failure["where"], failure["what"], failure["expected"]) == ("steps[1]", "status", "200")
    assert failure["got"].startswith("429 (Rate limit reached for tenant 'acme': 2 requests per minute")
    assert failure["decided_by"] == [
        {
            "key": "tenants.acme.quotas.requests_per_minute",
            "at": f"{folder / 'gateway.yaml'}:15",
            "written": True,
        }
    ]
    assert [one["status"] for one in fails["requests"]] == [200, 200, 429, 200]
    assert fails["at"] == f"{folder / 'gateway.test.yaml'}:9"
    suite = ElementTree.parse(folder / "report.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")


def test_for_people_it_is_a_table(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "gateway.test.yaml").write_text(
        """\
cases:
  - {name: goes to big, key: alice, model: chat, ask: Hello, expect: {backend: two}}
  - {name: goes to small, key: alice, model: chat, ask: Hello, expect: {backend: one}}
"""
    )
    assert main(["test", str(folder), "--only", "goes"]) == 1
    policy, tests = folder / "gateway.yaml", folder / "gateway.test.yaml"
    decided = f"{policy}:7 (models.chat.targets[0])"
    assert capfd.readouterr().out.splitlines() == [
        str(tests),
        f"  FAIL goes to big    {decided}",
        f"       {tests}:2: backend: expected two, got one",
        f"       decided at {decided}",
        f"  ok   goes to small  {decided}",
        "1 passed, 1 failed",
    ]


def test_each_expectation_can_fail(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = {
        "status": 500,
        "error": "nothing",
        "model": "big",
        "backend": "two",
        "target": "claude",
        "why": "fallback",
        "tier": "gold",
        "attempts": 2,
        "cache": "exact",
        "cost_at_most": 0.0,
        "cost_at_least": 1.0,
        "waits_at_least": "1s",
        "takes_at_most": "1s",
        "takes_at_least": "1m",
        "says": "Goodbye",
        "says_not": "Hello",
        "sees": "Goodbye",
        "sees_not": "Hi",
        "headers": {"x-tollgate-model": "big*"},
        "decided_by": "models.big.targets[0]",
    }
    case = {
        "name": "all",
        "key": "alice",
        "model": "chat",
        "ask": "Hi",
        "backends": {"one": {"reply": "Hello", "delay": "2s", "prompt_tokens": 9}},
    }
    code, [told] = run(folder, capfd, json.dumps({"cases": [{**case, "expect": wrong}]}))
    assert code == 1
    found = {failure["what"].partition(".")[0] for failure in told["failures"]}
    assert found == wrong.keys()
    right = {"status": [200, 201], "backend": ["one", "two"], "says": "Hello", "says_not": "Goodbye"}
    right |= {"takes_at_least": "2s", "takes_at_most": "2s", "headers": {"x-tollgate-model": "c*"}}
    code, [told] = run(folder, capfd, json.dumps({"cases": [{**case, "expect": right}]}))
    assert (code, told["failures"]) == (0, [])


def test_time_load_and_faults_are_the_cases_own(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, cases = run(
        folder,
        capfd,
        """\
cases:
  - name: a key expires
    at: 2026-12-31T23:59:00Z
    key: old
    steps:
      - {model: chat, ask: Hello, expect: {status: 200}}
      - {wait: 2m, model: chat, ask: Hello, expect: {status: 401, error: expired_api_key}}
  - name: a full backend is waited for
    caller: {tenant: other}
    load: {one: 2}
    steps:
      - {model: chat, ask: Hello, begin: true, expect: {status: 200, waits_at_least: 3s, waits_at_most: 3.1s}}
      - {wait: 3s, load: {one: 0}}
  - name: who hangs is given up
    caller: {tenant: other}
    model: chat
    ask: Hello
    stream: true
    backends: {one: {hangs: true}}
    expect: {backend: two, takes_at_least: 600s, takes_at_most: 601s}
  - name: backends out of use
    caller: {tenant: other}
    disabled: [one]
    model: chat
    ask: Hello
    expect: {backend: two, why: fallback}
  - name: answers change as they are given
    caller: {tenant: other}
    backends: {one: [{status: 500, times: 1}, {match: special, reply: Just for you}, {reply: For all}]}
    steps:
      - {model: chat, ask: Hello, expect: {backend: two}}
      - {model: chat, ask: something special, expect: {says: Just for you}}
      - {model: chat, ask: Hello, path: /v1/messages, expect: {says: For all}}
      - {model: chat, ask: Hello, path: /v1/responses, expect: {says: For all}}
      - {model: chat, body: {prompt: Hello}, expect: {says: For all}}
""",
    )
    assert [(case["name"], case["failures"], case["broken"]) for case in cases if not case["passed"]] == []
    assert code == 0


@pytest.mark.parametrize(
    ("tests", "line", "message"),
    [
        (
            "cases:\n  - {name: a, model: m, ask: Hi, expects: {}}",
            2,
            "cases[0].expects: unknown key; did you mean 'expect'?",
        ),
        (
            "cases:\n  - name: a\n    model: m\n    ask: Hi\n    expect:\n      statis: 200",
            6,
            "did you mean 'status'?",
        ),
        ("cases:\n  - name: a\n    model: m", 2, "should have either 'steps', or one request of its own"),
        ("cases:\n  - {name: a, model: m, ask: Hi, body: {}}", 2, "has both 'ask' and 'body'"),
        ("cases:\n  - {name: a, ask: Hi}", 2, "asks no model"),
        (
            "cases:\n  - {name: a, model: m, ask: Hi, wait: 5}",
            2,
            "write a duration as a number with its unit",
        ),
        ("backends: {one: {statis: 500}}\ncases: []", 1, "unknown key; did you mean 'status'?"),
        ("cases: [", 1, "not valid YAML"),
        ("{}", 1, "cases: is required, and missing"),
    ],
)
def test_what_is_wrong_with_a_file_has_its_line(tmp_path: Path, tests: str, line: int, message: str) -> None:
    path = tmp_path / "a.test.yaml"
    path.write_text(tests)
    with pytest.raises(PolicyError) as caught:
        read_tests(path)
    problem = caught.value.problems[0]
    assert (problem.file, problem.line) == (path, line)
    assert message in problem.message


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("key: alise", "no key of the policy has the id 'alise'; did you mean 'alice'?"),
        ("key: alice, disabled: [oen]", "no backend of the policy is named 'oen'; did you mean 'one'?"),
        ("key: alice, load: {three: 1}", "no backend of the policy is named 'three'"),
        ("stream: false", "says nobody who asks"),
    ],
)
def test_names_that_are_none_of_the_policys_are_told(
    folder: Path, capfd: pytest.CaptureFixture[str], case: str, message: str
) -> None:
    code, [told] = run(folder, capfd, f"cases:\n  - {{name: a, model: chat, ask: Hi, {case}}}\n")
    assert code == 1 and message in told["broken"]


def test_a_folder_without_tests_is_no_success(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["test", str(folder)]) == 2
    assert "holds no tests" in capfd.readouterr().err
    assert main(["test", str(folder / "nowhere")]) == 2


def test_a_policy_that_is_wrong_fails_all_of_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "gateway.yaml").write_text("version: 2\n")
    (folder / "gateway.test.yaml").write_text("cases: [{name: a, model: m, ask: Hi}]")
    assert main(["test", str(folder)]) == 1
    assert "gateway.yaml:1: version" in capfd.readouterr().out


def test_a_gateway_does_not_read_the_tests(folder: Path) -> None:
    (folder / "gateway.test.yaml").write_text("cases: [{name: a, model: m, ask: Hi}]")
    loaded = load_policy(folder, {})
    assert [file.path.name for file in loaded.sources] == ["gateway.yaml"]


def test_adapters_are_models_of_those_who_may_ask_them(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    servers = "adapters: {folder: /mnt, servers: {one: {slots: 2, folder: /in}}, listed: {one: {}}}\n"
    vllm = "base_url: http://one/v1, telemetry: vllm"
    (folder / "gateway.yaml").write_text(POLICY.replace("base_url: http://one/v1", vllm) + servers)
    code, cases = run(
        folder,
        capfd,
        """\
env: {SOME_KEY: x, OTHER_KEY: y}
adapters:
  "chat:support": {tenant: acme}
  "chat:sql": {}
backends:
  one: [{model: sql, reply: SELECT}, {status: 500}]
cases:
  - name: what servers list
    model: chat:sql
    ask: hi
    key: alice
    expect: {status: 200, model: "chat:sql", backend: one, target: sql, says: SELECT}
  - name: nothing stands in for it
    model: chat:support
    ask: hi
    key: alice
    expect: {status: 502, attempts: 1}
  - name: it is a tenant's own
    model: chat:support
    ask: hi
    key: old
    at: 2026-01-01T00:00:00Z
    expect: {status: 404, error: model_not_found}
  - name: there is no other
    model: chat:else
    ask: hi
    key: alice
    expect: {status: 404, error: model_not_found}
""",
    )
    assert code == 0, cases
    code, [case] = run(
        folder, capfd, "adapters: {'big:x': {}}\ncases: [{name: a, model: big, ask: hi, key: alice}]\n"
    )
    assert code == 1
    assert case["broken"].startswith("'big:x' can be no adapter: write base:name")
