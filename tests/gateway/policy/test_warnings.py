"""What is told, with its line, of judges that cannot see what must stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError

POLICY = """\
version: 1
backends:
  far: {{kind: openai, base_url: http://far.test/v1}}
  near: {{kind: openai, base_url: http://near.test/v1, local: true}}
models:
  judge: {{targets: [{{backend: far, model: x}}]{more}}}
  m: {{targets: [{{backend: near, model: x}}]}}
tenants: {tenants}
guards:
  toxicity: {{judge: judge, on_error: allow, tenants: ["a*"]}}
  {other}
"""


@pytest.mark.parametrize(
    ("tenants", "other", "more", "line", "said"),
    [
        ("{acme: {local_only: true}}", "", "", 10, "those of tenant 'acme' (local_only)"),
        ("{}", "pii: {action: local}", "", 10, "those that guard 'pii' keeps local"),
        ("{}", "injection: {action: local, judge: judge}", "", 11, "this guard's texts"),
        ("{b: {local_only: true}, acme: {}}", "", "", 0, ""),
        ("{acme: {}}", "", "", 0, ""),
        ("{acme: {local_only: true}}", "", ", fallbacks: [m]", 0, ""),
    ],
)
def test_warnings_of(tmp_path: Path, tenants: str, other: str, more: str, line: int, said: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(POLICY.format(tenants=tenants, other=other, more=more))
    told = [str(warning) for warning in load_policy(tmp_path, {}).warnings]
    assert any(one.startswith(f"{file}:{line}: guards.") and said in one for one in told) == bool(line), told
    assert bool(told) == bool(line)


@pytest.mark.parametrize(
    ("webhook", "warned"),
    [
        ("{url: http://x.test/check}", True),
        ("{url: http://x.test/check, texts: masked}", False),
        ("{url: http://x.test/check, texts: raw}", False),
        ("{url: http://x.test/check, local: true}", False),
        ("{url: http://x.test/analyze, format: presidio}", False),
        ("{url: http://x.test/check, on: [output]}", False),
        ("{url: http://x.test/check, models: [other]}", False),
        ("{url: http://x.test/check, models: ['*t*', m]}", True),
        ("{url: http://x.test/check, routes: [/v1/embeddings]}", False),
    ],
)
def test_servers_that_see_what_is_hidden_from_models(tmp_path: Path, webhook: str, warned: bool) -> None:
    (tmp_path / "gateway.yaml").write_text(
        "version: 1\nbackends: {near: {kind: fake, script: [{reply: x}]}}\n"
        "models: {m: {targets: [{backend: near, model: x}]}, other: {targets: [{backend: near, model: x}]}}\n"
        "guards:\n  cards: {kind: pii, on: [output], action: redact}\n"
        "  pii: {action: mask, models: [m], routes: [/v1/chat/completions, /v1/messages]}\n"
        f"  webhook: {webhook}\n"
    )
    told = [str(warning) for warning in load_policy(tmp_path, {}).warnings]
    assert ["what guard 'pii' hides from models" in one for one in told] == [True] * warned


@pytest.mark.parametrize(
    ("files", "warned"),
    [
        ("{}", True),
        ("{path: elsewhere}", True),
        ("{path: /srv/files}", False),
        ("{store: 's3://bucket'}", False),
        ("{enabled: false}", False),
    ],
)
@pytest.mark.parametrize("ledger", ["sqlite", "postgresql://tollgate@db/tollgate"])
def test_contents_that_replicas_do_not_share(tmp_path: Path, files: str, warned: bool, ledger: str) -> None:
    (tmp_path / "gateway.yaml").write_text(
        "version: 1\nbackends: {near: {kind: fake, script: [{reply: x}]}}\n"
        "models: {m: {targets: [{backend: near, model: x}]}}\n"
        f"files: {files}\nledger: {{store: '{ledger}'}}\n"
    )
    told = [str(warning) for warning in load_policy(tmp_path, {}).warnings]
    assert ["a folder that all of them mount" in one for one in told] == [True] * (
        warned and ledger != "sqlite"
    )


def test_what_is_said_of_adapters_may_wait_for_servers_that_list_them(tmp_path: Path) -> None:
    keys = "keys: [{id: k, sha256: %s, models: ['m:sql', 'other:*', 'm:*']}]" % ("a" * 64)
    of_m = "guards: {injection: {models: ['m:sql']}}"
    engine = "backends: {e: {kind: engine, base_url: http://e.test}}\nmodels: {m: {targets: [{backend: e, model: x}]}}"
    listed = "adapters: {listed: {e: {}}}\nprices: {e/sql: {input: 1, output: 1}}"
    (tmp_path / "a.yaml").write_text(f"version: 1\n{engine}\n{keys}\n{of_m}\n{listed}\n")
    told = [one.message for one in load_policy(tmp_path, {}).warnings]
    assert [one for one in told if "no model" in one] == [
        "keys[0].models[1]: no model matches 'other:*'; there is 'm'"
    ]
    (tmp_path / "a.yaml").write_text(f"version: 1\n{engine}\n{keys}\n{of_m}\n")
    with pytest.raises(PolicyError, match="no model is named 'm:sql'"):
        load_policy(tmp_path, {})
