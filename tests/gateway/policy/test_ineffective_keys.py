"""What is written and can have no effect is told with its line, and nothing that has one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.loader import load_policy

BASE = """\
version: 1
backends:
  one: {kind: openai, base_url: http://one/v1, local: true}
  script: {kind: fake, script: [{reply: Hi}]}
models:
  m: {targets: [{backend: one, model: m}]}
  s: {targets: [{backend: script, model: s}]}
prices: {m: {input: 1.0, output: 1.0}}
"""
HASH = "a" * 64


def told(folder: Path, lines: str) -> list[str]:
    """Each warning about ``lines``, which begin at line 1 of a file of their own."""
    (folder / "a.yaml").write_text(BASE)
    (folder / "b.yaml").write_text(lines)
    return [str(one).removeprefix(f"{folder}/") for one in load_policy(folder, {}).warnings]


@pytest.mark.parametrize(
    ("lines", "warning"),
    [
        (
            "caches:\n  exact:",
            "b.yaml:2: caches.exact: has no value, and is ignored; write {}",
        ),
        ("files:\n  s3: {region: eu-west-1}", "b.yaml:2: files.s3: has no effect without a bucket"),
        (
            "files:\n  path: x\n  store: s3://abc",
            "b.yaml:2: files.path: has no effect with 'store: s3://abc'",
        ),
        ("caches:\n  semantic: null", "b.yaml:2: caches.semantic: has no value"),
        (
            "models:\n  x:\n    context:\n    targets: [{backend: one, model: m}]",
            "b.yaml:3: models.x.context: has no value, and is ignored; write one",
        ),
        (
            "guards:\n  secrets:\n    models: ['m*', mm]",
            "b.yaml:3: guards.secrets.models[1]: no model is named 'mm'; did you mean 'm'?",
        ),
        (
            "guards:\n  secrets:\n    message: Ask us.",
            "b.yaml:3: guards.secrets.message: has no effect with 'action: redact', which refuses nothing",
        ),
        (
            "models:\n  x: {aliases: [y], targets: [{backend: one, model: m}]}\nguards:\n  secrets:\n    models: [y]",
            "b.yaml:5: guards.secrets.models[0]: no model is named 'y'; it is an alias of 'x', write that",
        ),
        (
            f"tenants: {{acme: {{}}}}\nkeys:\n  - {{id: k, sha256: '{HASH}', tenant: acmee}}",
            (
                "b.yaml:3: keys[0].tenant: no tenant is named 'acmee': the key has no tenant quotas and no tenant "
                "budget; did you mean 'acme'?"
            ),
        ),
        (
            "backends:\n  e:\n    kind: engine\n    model: x",
            "b.yaml:4: backends.e.model: has no effect without 'launch: true'; write that",
        ),
        ("backends:\n  e: {kind: engine, args: [--x]}", "b.yaml:2: backends.e.args: has no effect"),
        ("backends:\n  e: {kind: engine, env: [X]}", "b.yaml:2: backends.e.env: has no effect"),
        (
            "guards:\n  secrets:\n    stream: hold",
            "b.yaml:3: guards.secrets.stream: has no effect on requests",
        ),
        ("guards:\n  secrets:\n    window: 32", "b.yaml:3: guards.secrets.window: has no effect on requests"),
        (
            "guards:\n  toxicity:\n    action: flag\n    self_harm: {action: block}",
            "b.yaml:4: guards.toxicity.self_harm: has no effect with 'action: flag'",
        ),
        (
            "guards:\n  toxicity:\n    self_harm:\n      action: flag\n      message: Hello",
            "b.yaml:5: guards.toxicity.self_harm.message: has no effect with 'action: flag'",
        ),
        (
            "guards:\n  toxicity:\n    on: [output]\n    categories: {self_harm: 0.3}",
            "b.yaml:4: guards.toxicity.categories.self_harm: has no effect on answers, which pass",
        ),
        (
            "guards:\n  secrets:\n    on: [output]\n    action: flag\n    interval: 2",
            "b.yaml:5: guards.secrets.interval: has no effect with 'action: flag'",
        ),
        (
            "guards:\n  secrets:\n    action: flag\n    on_error: allow",
            "b.yaml:4: guards.secrets.on_error: has no effect with 'action: flag'",
        ),
        (
            "models:\n  auto:\n    cascade:\n      - {model: s, when: {complexity: {below: 0.0}}}\n      - {model: m}",
            "b.yaml:4: models.auto.cascade[0].when.complexity.below: no request begins here: complexity is never below",
        ),
        (
            (
                "models:\n  auto:\n    cascade:\n      - {model: s, when: {complexity: {below: 0.5}}}\n"
                "      - {model: m, when: {complexity: {below: 0.5}}}\n      - {model: m}"
            ),
            "b.yaml:5: models.auto.cascade[1].when.complexity.below: no request begins here: those below 0.5 begin",
        ),
        (
            (
                "models:\n  auto:\n    cascade:\n      - {model: s}\n"
                "      - {model: m, when: {complexity: {below: 0.5}}}\n      - {model: m}"
            ),
            "b.yaml:5: models.auto.cascade[1].when: has no effect: every request begins with a step before",
        ),
        (
            "models:\n  auto:\n    cascade:\n    - {model: s, escalate: {mean_logprob_below: -1}}\n    - {model: m}",
            "b.yaml:4: models.auto.cascade[0].escalate.mean_logprob_below: has no effect: script returns no",
        ),
        (
            (
                "models:\n  a: {targets: [{backend: one, model: m}], context: 8192, larger_context: b}\n"
                "  b: {targets: [{backend: one, model: m}], context: 8192}"
            ),
            "b.yaml:2: models.a.larger_context: 'b' has a context of 8192, which is not larger than this model's 8192",
        ),
        (
            "models:\n  d: {targets: [{backend: one, model: unheard}]}\ntenants: {a: {budget: {usd_per_day: 1.0}}}",
            "b.yaml:2: models.d.targets[0]: 'unheard' has no price: requests under a budget are refused",
        ),
    ],
)
def test_what_cannot_act(tmp_path: Path, lines: str, warning: str) -> None:
    warnings = told(tmp_path, lines)
    assert len(warnings) == 1 and warnings[0].startswith(warning), warnings


@pytest.mark.parametrize(
    "lines",
    [
        "caches: {exact: {}, semantic: {}}",
        f"keys: [{{id: k, sha256: '{HASH}', tenant: acme}}]",  # no tenant is described: names are for the books alone
        f"tenants: {{acme: {{}}}}\nkeys: [{{id: k, sha256: '{HASH}', tenant: acme}}]",
        f"tenants: {{acme: {{}}}}\nkeys: [{{id: k, sha256: '{HASH}'}}]",
        "backends: {e: {kind: engine, launch: true, model: demo, args: [], env: [X]}}",
        "backends: {e: {kind: engine, launch: '${L:-false}', model: demo}}",  # a switch
        "backends: {o: {kind: openai, base_url: http://o/v1, api_key: '${UNSET_KEY}'}}",
        "guards: {secrets: {on: [input, output], stream: windowed, window: 32, interval: 2, on_error: allow}}",
        "guards: {secrets: {on_error: allow, action: block}}",
        (
            "models:\n  auto:\n    cascade:\n      - {model: s, when: {complexity: {below: 0.3}}}\n"
            "      - {model: m, when: {complexity: {below: 0.5}}, escalate: {mean_logprob_below: -1}}\n"
            "      - {model: m}"
        ),
        (
            "models:\n  a: {targets: [{backend: one, model: m}], context: 8192, larger_context: b}\n"
            "  b: {targets: [{backend: one, model: m}]}"
        ),
        "models: {a: {targets: [{backend: one, model: m}], larger_context: m}}",
    ],
)
def test_what_acts_is_let_be(tmp_path: Path, lines: str) -> None:
    assert told(tmp_path, lines.replace("'${L:-false}'", "${L:-false}")) == []


@pytest.mark.parametrize(
    ("backend", "tiers", "keys"),
    [
        ("{kind: fake, script: [{reply: Hi}]}", "{a: {weight: 2, max_wait: 1s}}", ["max_wait", "weight"]),
        ("{kind: fake, script: [{reply: Hi}], max_concurrency: 2}", "{a: {weight: 2, max_wait: 1s}}", []),
        ("{kind: fake, script: [{reply: Hi}]}", "{a: {sla: 1s}, b: {}}", []),
        ("{kind: engine}", "{a: {weight: 2, max_wait: 1s, on_saturation: {at: 0.5}}}", ["max_wait"]),
        ("{kind: openai, base_url: 'http://one/v1'}", "{a: {weight: 2, max_wait: 1s}}", []),
    ],
)
def test_tiers_that_cannot_act(tmp_path: Path, backend: str, tiers: str, keys: list[str]) -> None:
    (tmp_path / "a.yaml").write_text(
        f"version: 1\nbackends: {{one: {backend}}}\nmodels: {{m: {{targets: [{{backend: one, model: m}}]}}}}\n"
        f"tiers: {tiers}\n"
    )
    warnings = [str(one) for one in load_policy(tmp_path, {}).warnings]
    found = [one.split(": ")[1].removeprefix("tiers.a.") for one in warnings if "has a queue" in one]
    assert found == keys
