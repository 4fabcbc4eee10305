"""Each rule finds something in one policy, at a line of it, and nothing in its neighbour."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from gateway.policy.loader import load_policy
from gateway.policy.problems import Diagnostic, PolicyError, render
from gateway.policy.rules.subject import Draft, Valid
from gateway.policy.rules.table import ERRORS, WARNINGS
from gateway.policy.schema import Policy

BASE = """\
version: 1
backends:
  one: {kind: openai, base_url: http://one/v1}
  two: {kind: openai, base_url: http://two/v1}
  near: {kind: openai, base_url: http://near/v1, local: true, region: eu}
models:
  m: {targets: [{backend: one, model: x}]}
"""
HASH, HASH_2 = "a" * 64, "b" * 64


class Case(NamedTuple):
    said: str
    """How the finding begins, with its path."""
    wrong: str
    right: str


def key(more: str) -> str:
    return f"keys: [{{id: k, sha256: {HASH}, {more}}}]"


def model(more: str, target: str = "{backend: two, model: x}") -> str:
    return f"models: {{x: {{targets: [{target}], {more}}}}}"


def cascade(steps: str, more: str = "") -> str:
    return f"models: {{a: {{cascade: [{steps}]{more}}}}}"


def guard(more: str) -> str:
    return f"guards: {{g: {{{more}}}}}"


def engine(more: str) -> str:
    return f"backends: {{e: {{kind: engine, {more}}}}}"


def script(*matches: str) -> str:
    return f"backends: {{f: {{kind: fake, script: [{', '.join(f'{{match: {one!r}, reply: x}}' for one in matches)}]}}}}"


def arms(*written: str, more: str = "", before: str = "") -> str:
    """An experiment ``t`` over the model ``m``."""
    named = ", ".join(f"{name}: {{{one}}}" for name, one in zip("ab", ("", *written), strict=False))
    return f"{before}experiments: {{t: {{arms: {{{named}}}, where: {{models: [m]}}{more}}}}}"


BUDGET = "tenants: {a: {budget: {usd_per_day: 1.0}}}"
NO_PRICE = "on_unpriced: free"
CALLBACK = f"url: http://c/x, secret: whsec_{'A' * 44}"
OIDC = "oidc: {issuer: 'https://i', client_id: c, redirect_uri: 'https://g/admin/api/oidc/callback', admins: [ops]}"
WITH_TIERS = "tiers: {gold: {}}\n"
EMBEDDER = "sidecar: {embedder: other}\n"
OF_ENGINE = "sidecar: {embedder: {backend: ours, model: m}}\n"

CASES = {
    "models.unknown_backend": Case(
        "models.x.targets[0].backend: no backend is named 'tow'; did you mean 'two'?",
        model("", "{backend: tow, model: x}"),
        model(""),
    ),
    "models.name_taken": Case(
        "models.x.aliases[0]: 'm' is the name of another model", model("aliases: [m]"), model("aliases: [n]")
    ),
    "models.unknown_model": Case(
        "models.x.fallbacks[0]: no model is named 'mm'; did you mean 'm'?",
        model("fallbacks: [mm]"),
        model("fallbacks: [m]"),
    ),
    "models.unknown_region": Case(
        "models.x.regions[0]: no backend is in region 'us'", model("regions: [us]"), model("regions: [eu]")
    ),
    "models.no_larger_context": Case(
        "models.x.larger_context: 'y' has a context of 10",
        "models: {x: {targets: [{backend: one, model: x}], context: 10, larger_context: y},"
        " y: {targets: [{backend: one, model: y}], context: 10}}",
        "models: {x: {targets: [{backend: one, model: x}], context: 10, larger_context: y},"
        " y: {targets: [{backend: one, model: y}], context: 11}}",
    ),
    "models.fallbacks_in_a_circle": Case(
        "models.y.fallbacks[0]: leads back to 'y' (y → x → y)",
        "models: {x: {targets: [{backend: one, model: x}], fallbacks: [y]},"
        " y: {targets: [{backend: one, model: y}], fallbacks: [x]}}",
        "models: {x: {targets: [{backend: one, model: x}], fallbacks: [y, m]},"
        " y: {targets: [{backend: one, model: y}], fallbacks: [m]}}",
    ),
    "models.timeout_beyond_total": Case(
        "models.x.timeouts.first_token: has no effect: 90s is beyond 'total'",
        model("timeouts: {first_token: 90s, total: 60s}"),
        model("timeouts: {total: 60s}"),
    ),
    "models.spill_over_to_nobody": Case(
        "models.x.spill_over: has no effect without 'fallbacks'",
        model("spill_over: true"),
        model("spill_over: true, fallbacks: [m]"),
    ),
    "models.beyond_no_context": Case(
        "models.x.over_context: has no effect without 'context'",
        model("over_context: refuse"),
        model("over_context: refuse, context: 8192"),
    ),
    "models.output_beyond_context": Case(
        "models.x.max_output: 16 tokens never fit into the model's context of 8",
        model("context: 8, max_output: 16"),
        model("context: 16, max_output: 8"),
    ),
    "models.weight_of_least_loaded": Case(
        "models.x.targets[0].weight: is no share of the traffic",
        model("select: least_loaded", "{backend: one, model: x, weight: 9.0}, {backend: two, model: x}"),
        model("select: weighted", "{backend: one, model: x, weight: 9.0}, {backend: two, model: x}"),
    ),
    "cascades.keys_of_a_cascade": Case(
        "models.a.context: has no effect on a cascade",
        cascade("{model: m}", ", context: 10"),
        cascade("{model: m}", ", aliases: [b]"),
    ),
    "cascades.step_that_only_embeds": Case(
        "models.a.cascade[0].model: 'v' only makes embeddings",
        "backends: {s: {kind: sidecar}}\nmodels: {v: {targets: [{backend: s, model: x}]}, a: {cascade: [{model: v}]}}",
        "backends: {s: {kind: sidecar}}\nmodels: {v: {targets: [{backend: s, model: x}]}, a: {cascade: [{model: m}]}}",
    ),
    "cascades.unreachable_step": Case(
        "models.a.cascade[0].when.complexity.below: no request begins here",
        cascade("{model: m, when: {complexity: {below: 0.0}}}, {model: m}"),
        cascade("{model: m, when: {complexity: {below: 0.1}}}, {model: m}"),
    ),
    "cascades.no_log_probabilities": Case(
        "models.a.cascade[0].escalate.mean_logprob_below: has no effect: f returns no log-probabilities",
        "backends: {f: {kind: fake, script: [{reply: x}]}}\nmodels: {f: {targets: [{backend: f, model: x}]},"
        " a: {cascade: [{model: f, escalate: {mean_logprob_below: -1.0}}, {model: m}]}}",
        cascade("{model: m, escalate: {mean_logprob_below: -1.0}}, {model: m}"),
    ),
    "access.unknown_tier": Case(
        "keys[0].tier: no tier is named 'golf'; did you mean 'gold'?",
        WITH_TIERS + key("tier: golf"),
        WITH_TIERS + key("tier: gold"),
    ),
    "access.key_given_twice": Case(
        "keys[1].id: two keys have this id",
        f"keys: [{{id: k, sha256: {HASH}}}, {{id: k, sha256: {HASH_2}}}]",
        f"keys: [{{id: k, sha256: {HASH}}}, {{id: l, sha256: {HASH_2}}}]",
    ),
    "access.key_of_no_model": Case(
        "keys[0].models[0]: no model is named 'mm'", key("models: [mm]"), key("models: [m, 'mm*']")
    ),
    "access.nowhere_local": Case(
        "tenants.a.local_only: no backend is local",
        "backends: {near: {kind: openai, base_url: http://near/v1, region: eu}}\ntenants: {a: {local_only: true}}",
        "tenants: {a: {local_only: true}}",
    ),
    "access.unknown_tenant": Case(
        "keys[0].tenant: no tenant is named 'b'",
        "tenants: {a: {}}\n" + key("tenant: b"),
        "tenants: {a: {}}\n" + key("tenant: a"),
    ),
    "access.undefined_tier": Case(
        "tenants.a.tier: no tier is named 'gold', so that it has the defaults",
        "tenants: {a: {tier: gold}}",
        WITH_TIERS + "tenants: {a: {tier: gold}}",
    ),
    "access.expired_key": Case(
        "keys[0].expires: the key 'k' expired on 2020-01-01",
        key("expires: 2020-01-01"),
        key("expires: 2999-01-01"),
    ),
    "access.strict_alone": Case(
        "tenants.a.quotas.strict: has no effect without a limit of tokens",
        "tenants: {a: {quotas: {strict: true, requests_per_minute: 5}}}",
        "tenants: {a: {quotas: {strict: true}}}\n" + key("tenant: a, quotas: {tokens_per_day: 5}"),
    ),
    "access.tier_without_queue": Case(
        "tiers.gold.max_wait: has no effect: no backend has a queue",
        "backends: {one: &f {kind: fake, script: [{reply: x}], region: eu}, two: *f, near: *f}\n"
        "tiers: {gold: {max_wait: 1s}}",
        "backends: {one: {kind: fake, script: [{reply: x}], max_concurrency: 1}}\ntiers: {gold: {max_wait: 1s}}",
    ),
    "access.guard_of_nobody": Case(
        "guards.g.tenants[0]: no tenant matches 'ac*'",
        "tenants: {bank: {}}\n" + guard("kind: secrets, tenants: ['ac*']"),
        "tenants: {acme: {}}\n" + guard("kind: secrets, tenants: ['ac*'], keys: [dev]"),
    ),
    "issuers.issuer_given_twice": Case(
        "jwt[1].issuer: two entries have this issuer",
        "jwt: [{issuer: i, audience: a, jwks: 'http://h/k'}, {issuer: i, audience: b, jwks: 'http://h/k'}]",
        "jwt: [{issuer: i, audience: a, jwks: 'http://h/k'}, {issuer: j, audience: b, jwks: 'http://h/k'}]",
    ),
    "issuers.unreadable_jwks": Case(
        "jwt[0].jwks: should be an http(s) URL",
        "jwt: [{issuer: i, audience: a, jwks: 'ftp://h/k'}]",
        "jwt: [{issuer: i, audience: a, jwks: 'http://h/k'}]",
    ),
    "issuers.missing_jwks": Case(
        "jwt[0].jwks: there is no file",
        "jwt: [{issuer: i, audience: a, jwks: keys.json}]",
        "jwt: [{issuer: i, audience: a, jwks: there.json}]",
    ),
    "issuers.sign_in_at_no_page": Case(
        "admin.oidc: has no effect while the page is off",
        f"admin: {{{OIDC}}}",
        f"admin: {{enabled: true, {OIDC}}}\n{key('scopes: [admin]')}",
    ),
    "backends.engine_launched_elsewhere": Case(
        "backends.e.base_url: with 'launch: true' the engine runs on this machine",
        engine("launch: true, base_url: http://10.0.0.1:8100"),
        engine("launch: true, base_url: http://localhost:8100"),
    ),
    "backends.engines_of_one_port": Case(
        "backends.f.base_url: two launched engines have port 8100",
        "backends: {e: {kind: engine, launch: true}, f: {kind: engine, launch: true}}",
        "backends: {e: {kind: engine, launch: true}, f: {kind: engine, launch: false}}",
    ),
    "backends.reserved_engine_option": Case(
        "backends.e.args[0]: '--port' is set by 'base_url'",
        engine("launch: true, args: [--port=1]"),
        engine("launch: true, args: [--seed=1]"),
    ),
    "backends.engine_that_would_not_start": Case(
        "backends.e.args[0]: ", engine("launch: true, args: [--nonsense]"), engine("launch: true")
    ),
    "backends.truncated_embeddings": Case(
        "backends.s.matryoshka: the built-in all-MiniLM-L6-v2 cannot be truncated",
        "backends: {s: {kind: sidecar, matryoshka: true}}",
        EMBEDDER + "backends: {s: {kind: sidecar, matryoshka: true}}",
    ),
    "backends.launch_options_without_launch": Case(
        "backends.e.model: has no effect without 'launch: true'",
        engine("model: demo"),
        engine("model: demo, launch: true"),
    ),
    "backends.unreachable_reply": Case(
        "backends.f.script[1]: is never reached: entry 0 matches all",
        script("hello", "say hello"),
        script("say hello", "hello", ""),
    ),
    "backends.drained_nothing": Case(
        "drained[0]: no backend is named 'three'", "drained: [three]", "drained: [two]"
    ),
    "backends.kv_events_that_nobody_reads": Case(
        "backends.b.kv_events: nobody reads its events: no model with 'select: score'",
        "backends: {b: {kind: openai, base_url: http://b/v1, kv_events: {}}}",
        "backends: {b: {kind: openai, base_url: http://b/v1, kv_events: {}}}\n"
        "models: {m: {targets: [{backend: b, model: x}], select: score}}",
    ),
    "credentials.half_credentials": Case(
        "backends.b.aws.access_key_id: has no effect without secret_access_key",
        "backends: {b: {kind: bedrock, aws: {region: eu-west-1, access_key_id: x}}}",
        "backends: {b: {kind: bedrock, aws: {region: eu-west-1, access_key_id: x, secret_access_key: y}}}",
    ),
    "prices.price_of_nothing": Case(
        "prices.z: no target has this model",
        "prices: {z: {input: 1, output: 1}}",
        "prices: {x: {input: 1, output: 1}}",
    ),
    "prices.unpriced": Case(
        "models.m.targets[0]: 'x' has no price",
        f"{BUDGET}",
        f"{BUDGET}\nprices: {{'one/*': {{input: 1, output: 1}}}}",
    ),
    "prices.tokens_for_units": Case(
        "models.voice.targets[0]: 'tts-1' has a price for tokens alone",
        f"{BUDGET}\ndefault_price: {{input: 1, output: 1}}\n"
        "models: {voice: {targets: [{backend: one, model: tts-1}]}}",
        f"{BUDGET}\ndefault_price: {{input: 1, output: 1, only_tokens: true}}\n"
        "models: {voice: {targets: [{backend: one, model: tts-1}]}}",
    ),
    "prices.misspelt_extra": Case(
        "extras[0]: 'web_serach': allows nothing known; did you mean 'web_search'?",
        "extras: [web_serach]",
        "extras: [web_search, brand_new_field]",
    ),
    "prices.picture_of_no_quality": Case(
        "prices.x.image.hihg 1024x1024: 'hihg' is no quality",
        "prices: {x: {image: {hihg 1024x1024: 0.1}}}",
        "prices: {x: {image: {high 1024x1024: 0.1, 512x512: 0.1, low: 0.1, '*': 0.2}}}",
    ),
    "guards.foreign_embedder": Case(
        "guards.toxicity: was trained for 'sidecar.embedder: builtin'",
        EMBEDDER + "guards: {toxicity: {}}",
        EMBEDDER + "guards: {toxicity: {checks: [fast]}}",
    ),
    "guards.unused_guard_keys": Case(
        "guards.g.window: has no effect with 'action: flag'",
        guard("kind: secrets, 'on': [output], action: flag, window: 32"),
        guard("kind: secrets, 'on': [output], action: block, window: 32"),
    ),
    "guards.unused_self_harm": Case(
        "guards.toxicity.self_harm: has no effect with 'action: flag'",
        "guards: {toxicity: {action: flag, self_harm: {action: block}}}",
        "guards: {toxicity: {action: block, self_harm: {action: block}}}",
    ),
    "guards.guard_of_no_model": Case(
        "guards.g.models[0]: no model is named 'mm'; did you mean 'm'?",
        guard("kind: secrets, models: [mm]"),
        guard("kind: secrets, models: [m]"),
    ),
    "guards.held_and_windowed": Case(
        "guards.g.window: has no effect with 'stream: hold'",
        guard("kind: secrets, 'on': [output], stream: hold, window: 32"),
        guard("kind: topics, words: [x], 'on': [output], stream: hold, window: 32"),
    ),
    "guards.origins_of_answers": Case(
        "guards.g.origins: has no effect on answers",
        guard("kind: secrets, 'on': [output], origins: [tool]"),
        guard("kind: secrets, 'on': [input, output], origins: [tool]"),
    ),
    "guards.judge_that_only_flags": Case(
        "guards.toxicity.judge.categories.hate: 'block' has no effect with 'action: flag'",
        "guards: {toxicity: {action: flag, judge: {model: m, categories: {hate: block}}}}",
        "guards: {toxicity: {action: block, judge: {model: m, categories: {hate: block}}}}",
    ),
    "guards.review_of_nothing": Case(
        "review: nothing is written: no guard has 'action: flag'",
        "review: {enabled: true}\nguards: {secrets: {}}",
        "review: {enabled: true}\nguards: {secrets: {action: flag}}",
    ),
    "guards.remote_webhook": Case(
        "guards.g: its server sees what guard 'pii' hides",
        "guards: {pii: {}, g: {kind: webhook, url: http://w/x}}",
        "guards: {pii: {}, g: {kind: webhook, url: http://w/x, texts: masked}}",
    ),
    "guards.remote_judge": Case(
        "guards.toxicity.judge: 'm' has no local target",
        "tenants: {a: {local_only: true}}\nguards: {toxicity: {judge: m}}",
        "tenants: {a: {}}\nguards: {toxicity: {judge: m}}",
    ),
    "texts.unknown_entity": Case(
        "guards.pii.entities: EMAIL: nobody here can find it",
        "guards: {pii: {entities: [EMAIL]}}",
        "guards: {pii: {entities: [EMAIL_ADDRESS]}}",
    ),
    "texts.slow_pattern": Case(
        "guards.topics.patterns[0]: has a repetition inside",
        "guards: {topics: {patterns: ['(a+)+b']}}",
        "guards: {topics: {patterns: ['a+b']}}",
    ),
    "texts.unproven_pattern": Case(
        "guards.pii.patterns.CASE: may take too long",
        "guards: {pii: {patterns: {CASE: 'a*b*a*b*c'}}}",
        "guards: {pii: {patterns: {CASE: 'case-[0-9]{1,9}'}}}",
    ),
    "texts.unknown_language": Case(
        "guards.pii.languages[1]: no language has the code 'jp' (ISO 639-1); did you mean 'ja'?",
        "guards: {pii: {languages: [en, jp]}}",
        "guards: {pii: {languages: [en, ja]}}",
    ),
    "values.without_value": Case("caches.exact: has no value", "caches: {exact: }", "caches: {exact: {}}"),
    "storage.verifier_of_another_embedder": Case(
        "caches.semantic: its verifier was trained",
        EMBEDDER + "caches: {semantic: {}}",
        EMBEDDER + "caches: {semantic: {mode: 'off'}}",
    ),
    "backends.embedder_of_no_engine": Case(
        "sidecar.embedder.backend: 'one' is of kind",
        "sidecar: {embedder: {backend: one, model: m}}",
        "backends: {ours: {kind: engine}}\n" + OF_ENGINE + "caches: {semantic: {}}",
    ),
    "storage.files_elsewhere": Case(
        "files.s3: has no effect without a bucket",
        "files: {s3: {region: eu-west-1}}",
        "files: {store: s3://bucket, s3: {region: eu-west-1}}",
    ),
    "storage.files_of_one_replica": Case(
        "ledger.store: has the names of files for all replicas",
        "ledger: {store: postgresql://h/d}",
        "ledger: {store: postgresql://h/d}\nfiles: {enabled: false}",
    ),
    "storage.recordings_of_one_replica": Case(
        "record.key_file: is missing: each replica would make a secret of its own",
        "ledger: {store: postgresql://h/d}\nfiles: {enabled: false}\nrecord: {enabled: true, path: /mnt/r}",
        "ledger: {store: postgresql://h/d}\nfiles: {enabled: false}\n"
        "record: {enabled: true, path: /mnt/r, key_file: /run/secrets/record}",
    ),
    "texts.unused_spacy": Case(
        "sidecar.spacy.de: has no effect: no 'pii' guard",
        "sidecar: {spacy: {de: x}}\nguards: {pii: {entities: [PERSON]}}",
        "sidecar: {spacy: {de: x}}\nguards: {pii: {entities: [PERSON], languages: [de]}}",
    ),
    "storage.store_failure_of_no_store": Case(
        "on_store_failure: has no effect with 'store: memory'",
        "on_store_failure: closed",
        "on_store_failure: closed\nstore: redis://h",
    ),
    "storage.ledger_elsewhere": Case(
        "ledger.password_file: has no effect with 'store: sqlite'",
        "ledger: {password_file: x}",
        "ledger: {password_file: x, store: postgresql://u@h/d}\nfiles: {enabled: false}",
    ),
    "storage.budgets_without_a_record": Case(
        "ledger.enabled: makes budgets, and limits of tokens by the day, begin anew",
        "ledger: {enabled: false}\ntenants: {t: {budget: {usd_per_day: 1}}}",
        "ledger: {enabled: false}\ntenants: {t: {budget: {usd_per_day: 1}}}\nstore: redis://h",
    ),
    "storage.entry_beyond_its_store": Case(
        "caches.exact.max_entry: has no effect beyond 'max_bytes'",
        "caches: {exact: {max_entry: 2MiB, max_bytes: 1MiB}}",
        "caches: {exact: {max_entry: 1MiB, max_bytes: 1MiB}}",
    ),
    "extras.ledger_without_driver": Case(
        "ledger.store: nothing can be recorded: psycopg is not installed",
        "ledger: {store: postgresql://u@h/d}\nfiles: {enabled: false}",
        "ledger: {enabled: false, store: postgresql://u@h/d}",
    ),
    "extras.feature_without_extra": Case(
        "files.store: no files can be kept: botocore is not installed",
        "files: {store: s3://bucket}",
        "files: {store: s3://bucket, enabled: false}\nledger: {store: postgresql://u@h/d}",
    ),
    "residency.nothing_in_region": Case(
        "tenants.a.residency[0]: no backend is in region 'us'",
        "tenants: {a: {residency: [us]}}",
        "tenants: {a: {residency: [eu]}}",
    ),
    "residency.place_outside": Case(
        "store: is in a region that is not stated, and contents of tenant 'a' are to stay in 'eu'",
        "store: redis://h\ntenants: {a: {residency: [eu]}}",
        "store: redis://h\nregions: {store: eu}\ntenants: {a: {residency: [eu]}}",
    ),
    "residency.embedder_outside": Case(
        "sidecar.embedder.backend: 'ours' is in no stated region, and contents of tenant 'a' are to stay in 'eu'",
        "backends: {ours: {kind: engine}}\n" + OF_ENGINE + "tenants: {a: {residency: [eu]}}",
        "backends: {ours: {kind: engine, region: eu}}\n" + OF_ENGINE + "tenants: {a: {residency: [eu]}}",
    ),
    "residency.model_never_served": Case(
        "tenants.a.residency: 'm' can never be served",
        "tenants: {a: {residency: [eu]}}",
        "models: {m: {targets: [{backend: one, model: x}], fallbacks: [n]}, n: {targets: [{backend: near, model: x}]}}"
        "\ntenants: {a: {residency: [eu]}}",
    ),
    "residency.guard_outside": Case(
        "guards.g: its server is in no stated region, and contents of tenant 'a' stay in 'eu': there 'on_error: block'",
        "tenants: {a: {residency: [eu]}}\n" + guard("kind: webhook, url: http://w/x"),
        "tenants: {a: {residency: [eu]}}\n" + guard("kind: webhook, url: http://w/x, region: eu"),
    ),
    "residency.shadow_outside": Case(
        "models.x.shadow.model: 'm' gets no copies of what stays in 'eu'",
        model("residency: [eu], shadow: {model: m}", "{backend: near, model: x}"),
        model("residency: [eu], shadow: {model: n}", "{backend: near, model: x}")[:-1]
        + ", n: {targets: [{backend: near, model: x}]}}",
    ),
    "residency.traces_outside": Case(
        "telemetry.content: traces hold no contents of everybody, which stay in 'eu'",
        "residency: [eu]\ntelemetry: {endpoint: 'http://h:4318', content: true}",
        "residency: [eu]\ntelemetry: {endpoint: 'http://h:4318', content: true}\nregions: {telemetry: eu}",
    ),
    "residency.region_of_no_place": Case(
        "regions.store: has no effect: 'store' names no server",
        "regions: {store: eu}",
        "regions: {store: eu}\nstore: redis://h",
    ),
    "observing.shares_of_no_budget": Case(
        "callbacks[0].budget_at: has no effect without 'budget'",
        f"callbacks: [{{{CALLBACK}, events: [guard], budget_at: [0.5]}}]",
        f"callbacks: [{{{CALLBACK}, budget_at: [0.5]}}]\n{BUDGET}\n{NO_PRICE}",
    ),
    "observing.path_over_grpc": Case(
        "telemetry.endpoint: '/otlp' has no effect with 'protocol: grpc'",
        "telemetry: {protocol: grpc, endpoint: 'http://h:4317/otlp'}",
        "telemetry: {protocol: grpc, endpoint: 'http://h:4317'}",
    ),
    "observing.scores_nowhere": Case(
        "telemetry.scores.receiver: 'langfuse' takes scores over HTTP, and where is not to be seen",
        "telemetry: {endpoint: 'http://h:4318', scores: {receiver: langfuse}}",
        "telemetry: {endpoint: 'http://h/api/public/otel', scores: {receiver: langfuse}}",
    ),
    "observing.scores_of_nothing": Case(
        "telemetry.scores.endpoint: has no effect without 'receiver'",
        "telemetry: {endpoint: 'http://h:4318', scores: {endpoint: 'http://h'}}",
        "telemetry: {endpoint: 'http://h:4318', scores: {endpoint: 'http://h', receiver: phoenix}}",
    ),
    "observing.evaluation_of_no_model": Case(
        "evaluation.models[0]: no model matches 'y'",
        model("aliases: [gpt-4]") + "\nevaluation: {judge: x, models: [y, x]}",
        model("aliases: [gpt-4]") + "\nevaluation: {judge: x, models: ['*']}",
    ),
    "values.variable_in_other_words": Case(
        "backends.b.api_key: is taken as it stands; for the value of a variable write '${KEY}'",
        "backends: {b: {kind: openai, base_url: 'http://b/v1', api_key: $KEY}}",
        "backends: {b: {kind: openai, base_url: 'http://b/v1', api_key: sk-$KEY}}",
    ),
    "models.retry_of_one_attempt": Case(
        "models.x.retry.backoff: has no effect with 'attempts: 1'",
        model("retry: {attempts: 1, backoff: 1s}"),
        model("retry: {attempts: 2, backoff: 1s}"),
    ),
    "models.given_twice": Case(
        "models.x.targets[1]: is entry 0 again",
        model("fallbacks: [m]", "{backend: one, model: x}, {backend: one, model: x}"),
        model(
            "fallbacks: [m]", "{backend: one, model: x}, {backend: two, model: x}, {backend: one, model: y}"
        ),
    ),
    "backends.engine_beside_which_none_starts": Case(
        "backends.e.args[1]: '--handover-address' is one engine's at a time",
        engine("launch: true, args: [--role=prefill, '--handover-address=tcp://127.0.0.1:8200']"),
        engine(
            "launch: true, stop_first: true, args: [--role=prefill, '--handover-address=tcp://127.0.0.1:8200']"
        ),
    ),
    "backends.golden_set_that_is_missing": Case(
        "backends.e.golden.set: there is no file 'none.jsonl'",
        "backends: {e: {kind: engine, launch: true, golden: {set: none.jsonl}}}",
        "backends: {e: {kind: engine, launch: true, golden: {set: there.json}}}",
    ),
    "backends.prefill_by_no_engine": Case(
        "backends.e.prefill[0]: 'one' is no other engine",
        engine("prefill: [one]"),
        "backends: {e: {kind: engine, prefill: [p]}, p: {kind: engine, base_url: 'http://p:1'}}",
    ),
    "adapters.adapters_of_no_server": Case(
        "adapters.servers.one: needs 'folder'",
        "backends: {one: {kind: openai, base_url: 'http://p:1/v1'}}\nadapters: {servers: {one: {}}}",
        "backends: {one: {kind: engine}}\nadapters: {servers: {one: {}}}",
    ),
    "adapters.listings_of_no_server": Case(
        "adapters.listed.one: lists adapters as which server does? Give 'backends.one' a 'telemetry'",
        "backends: {one: {kind: openai, base_url: 'http://p:1/v1', telemetry: tgi}}\nadapters: {listed: {one: {}}}",
        "backends: {one: {kind: openai, base_url: 'http://p:1/v1', telemetry: vllm}}\nadapters: {listed: {one: {}}}",
    ),
    "models.rollout_to_itself": Case(
        "models.x.rollout.to: is one of the model's targets already",
        model("rollout: {to: {backend: two, model: x}}"),
        model("rollout: {to: {backend: one, model: y}}"),
    ),
    "models.split_of_no_weights": Case(
        "models.x.split_by: has no effect on a model with one target",
        model("split_by: user"),
        model("split_by: user", "{backend: one, model: x}, {backend: two, model: x}"),
    ),
    "experiments.unknown_prompt": Case(
        "experiments.t.arms.b.prompt: no prompt is named 'brief'; write it under 'prompts', or into a file brief.pro",
        arms("prompt: brief"),
        arms("prompt: brief", before="prompts: {brief: Be brief.}\n"),
    ),
    "experiments.unknown_guard": Case(
        "experiments.t.arms.b.guards[0]: no guard is named 'pi'; did you mean 'pii'?",
        arms("guards: [pi]", before="guards: {pii: {}}\n"),
        arms("guards: [pii]", before="guards: {pii: {}}\n"),
    ),
    "experiments.guard_of_its_own_tenants": Case(
        "experiments.t.arms.b.without[0]: 'pii' was written for certain tenants, whom an experiment does not take it",
        arms("without: [pii]", before="guards: {pii: {tenants: [acme]}}\n"),
        arms("guards: [other], without: [pii]", before="guards: {pii: {}, other: {kind: pii}}\n"),
    ),
    "experiments.model_of_every_request": Case(
        "experiments.t.arms.b.model: takes the place of every model there is",
        model("") + "\nexperiments: {t: {arms: {a: {}, b: {model: x}}}}",
        model("") + "\nexperiments: {t: {arms: {a: {}, b: {model: x}}, where: {models: [m]}}}",
    ),
    "experiments.weaker_arm": Case(
        "experiments.t.arms.b.without[0]: leaves those of this arm without any guard of kind 'pii'",
        arms("without: [pii]", before="guards: {pii: {}}\n"),
        arms("guards: [other], without: [pii]", before="guards: {pii: {}, other: {kind: pii}}\n"),
    ),
    "experiments.arms_alike": Case(
        "experiments.t.arms.b: is the same as 'a'",
        arms("weight: 2.0"),
        arms("prompt: brief", before="prompts: {brief: Be brief.}\n"),
    ),
    "experiments.experiment_never_reached": Case(
        "experiments.u: is never reached: 't', before it, is about all of its requests",
        "experiments: {t: {arms: &arms {a: {}, b: {}}}, u: {arms: *arms, where: {models: [m]}}}",
        "experiments: {t: {arms: &arms {a: {}, b: {}}, share: 0.5}, u: {arms: *arms, where: {models: [m]}}}",
    ),
    "experiments.place_of_no_prompt": Case(
        "experiments.t.arms.b.prompt_place: has no effect without 'prompt'",
        arms("prompt_place: instead"),
        arms("prompt_place: instead, prompt: brief", before="prompts: {brief: Be brief.}\n"),
    ),
    "experiments.prompt_of_no_arm": Case(
        "prompts.brief: is used by no arm",
        "prompts: {brief: Be brief.}",
        arms("prompt: brief", before="prompts: {brief: Be brief.}\n"),
    ),
    "experiments.results_nowhere": Case(
        "experiments: have no results with 'ledger: {enabled: false}'",
        arms("weight: 2.0", before="ledger: {enabled: false}\n"),
        arms("weight: 2.0"),
    ),
    "experiments.rolled_out_meanwhile": Case(
        "experiments.t: compares requests to 'x', which is rolling out another target meanwhile",
        model("rollout: {to: {backend: one, model: y}}") + "\n" + arms("model: x"),
        model("") + "\n" + arms("model: x"),
    ),
    "models.steps_too_short": Case(
        "models.x.rollout.steps: sends everything at once",
        model("rollout: {to: {backend: one, model: y}, steps: [100]}"),
        model("rollout: {to: {backend: one, model: y}, steps: [5, 100]}"),
    ),
    "models.shared_prompts_of_no_model": Case(
        "shared_prompts: has no effect: no model has",
        "shared_prompts: {a: Be brief.}\n" + model("prefix_sharing: all"),
        "shared_prompts: {a: Be brief.}\n" + model("prefix_sharing: system"),
    ),
    "access.pattern_of_no_model": Case(
        "keys[0].models[0]: no model matches 'gtp-*'; did you mean 'gpt-4'?",
        key("models: ['gtp-*', '*']") + "\n" + model("aliases: [gpt-4]"),
        key("models: ['gpt-*', '*']") + "\n" + model("aliases: [gpt-4]"),
    ),
    "access.tenant_of_the_house": Case(
        "keys[0].tenant: 'tollgate' is the gateway's own tenant",
        key("models: ['*'], tenant: tollgate"),
        key("models: ['*'], tenant: tollgates"),
    ),
    "access.everybody_a_proxy": Case(
        "trusted_proxies[0]: believes every caller",
        "trusted_proxies: ['0.0.0.0/0', 10.0.0.0/8]",
        "trusted_proxies: [0.0.0.0/8, 10.0.0.0/8]",
    ),
    "access.cors_of_no_origin": Case(
        "cors.allow_credentials: has no effect without 'allow_origins'",
        "cors: {allow_credentials: true}",
        "cors: {allow_credentials: true, allow_origins: ['https://a.example']}",
    ),
    "access.limit_beyond_a_longer_one": Case(
        "tenants.a.budget.usd_per_day: has no effect: 50 are more than 'usd_per_month' has, which is 10",
        "tenants: {a: {budget: {usd_per_day: 50.0, usd_per_month: 10.0}}}",
        "tenants: {a: {budget: {usd_per_day: 10.0, usd_per_month: 10.0}}}",
    ),
    "access.limit_beyond_its_tenant": Case(
        "keys[0].budget.usd_per_day: has no effect: 9 are more than tenant 'a' has, which is 1",
        key("tenant: a, budget: {usd_per_day: 9.0}") + f"\n{BUDGET}",
        key("tenant: a, budget: {usd_per_day: 1.0, usd_per_month: 9.0}") + f"\n{BUDGET}",
    ),
    "issuers.page_of_nobody": Case(
        "admin.enabled: nobody can open the page",
        "admin: {enabled: true}\n" + key("scopes: [inference]"),
        "admin: {enabled: true}\n" + key("scopes: [admin]"),
    ),
    "issuers.jwks_in_the_clear": Case(
        "jwt[0].jwks: is fetched without TLS",
        "jwt: [{issuer: i, audience: a, jwks: 'http://i.example/jwks'}]",
        "jwt: [{issuer: i, audience: a, jwks: 'http://localhost:8080/jwks'}]",
    ),
    "prices.price_of_one_token": Case(
        "prices.x.input: is in dollars for a million tokens; is 1.5e-07 the price of one? Write 0.15",
        "prices: {x: {input: 0.00000015, output: 0.6}}",
        "prices: {x: {input: 0.001, output: 0.0}}",
    ),
    "prices.cached_beyond_input": Case(
        "prices.x.cached_input: 0.75 is more than 'input', which is 0.15",
        "prices: {x: {input: 0.15, output: 0.6, cached_input: 0.75}}",
        "prices: {x: {input: 0.15, output: 0.6, cached_input: 0.15}}",
    ),
    "storage.batches_without_files": Case(
        "batches: has no effect with 'files: {enabled: false}'",
        "files: {enabled: false}\nbatches: {max_lines: 100}",
        "files: {enabled: false}\nbatches: {enabled: false}",
    ),
    "observing.most_of_no_tenants": Case(
        "metrics.max_tenants: has no effect with 'tenants: false'",
        "metrics: {tenants: false, max_tenants: 5}",
        "metrics: {tenants: true, max_tenants: 5}",
    ),
}
MORE = [
    ("credentials.half_credentials", said, wrong)
    for said, wrong in (
        (
            "backends.b.aws.session_token: has no effect without access_key_id",
            "backends: {b: {kind: bedrock, aws: {region: eu-west-1, session_token: x}}}",
        ),
        (
            "backends.b: has no credentials",
            "backends: {b: {kind: azure, base_url: 'https://n.openai.azure.com'}}",
        ),
        (
            "backends.b.entra.tenant_id: has no effect without client_secret",
            "backends: {b: {kind: azure, base_url: 'https://n', entra: {tenant_id: t, client_id: c}}}",
        ),
        ("backends.b: has no credentials for Google's", "backends: {b: {kind: gemini}}"),
        ("backends.b: has no credentials for Anthropic's", "backends: {b: {kind: anthropic}}"),
        ("backends.b: has no credentials for the provider's", "backends: {b: {kind: openai, preset: groq}}"),
    )
] + [
    ("access.strict_alone", "keys[0].quotas.strict: has no effect", key("quotas: {strict: true}")),
    ("access.strict_alone", "tiers.t.quotas.strict: has no effect", "tiers: {t: {quotas: {strict: true}}}"),
    ("access.undefined_tier", "keys[0].tier: no tier is named 'gold'", key("tier: gold")),
    (
        "access.guard_of_nobody",
        "guards.g.keys[0]: no key's id matches 'ci'",
        guard("kind: secrets, keys: [ci]"),
    ),
    ("issuers.sign_in_at_no_page", "keys[0].scopes: the scope 'admin' opens nothing", key("scopes: [admin]")),
    (
        "models.timeout_beyond_total",
        "models.x.targets[0].timeouts.idle: has no effect",
        model("", "{backend: two, model: x, timeouts: {idle: 1h, total: 1m}}"),
    ),
    (
        "models.fallbacks_in_a_circle",
        "models.z.fallbacks[0]: leads back to 'z' (z → x → y → z)",
        """models:
  x: {targets: [{backend: one, model: x}], fallbacks: [y]}
  y: {targets: [{backend: one, model: y}], fallbacks: [z]}
  z: {targets: [{backend: one, model: z}], fallbacks: [x]}""",
    ),
    (
        "prices.misspelt_extra",
        "extras[0]: 'web_search_20250305': kinds of tools are named without",
        "extras: [web_search_20250305]",
    ),
    ("storage.ledger_elsewhere", "ledger.path: has no effect", "ledger: {path: x, store: postgresql://h/d}"),
    (
        "storage.ledger_elsewhere",
        "ledger.password_file: has no effect beside",
        "ledger: {password_file: x, store: postgresql://u:p@h/d}",
    ),
    (
        "storage.entry_beyond_its_store",
        "responses.max_entry: has no effect",
        "responses: {max_entry: 2MiB, max_bytes: 1MiB}",
    ),
    (
        "storage.entry_beyond_its_store",
        "files.max_bytes: has no effect",
        "files: {max_bytes: 2MiB, max_tenant_bytes: 1MiB}",
    ),
    (
        "observing.shares_of_no_budget",
        "callbacks[0].budget_at: nothing is told of budgets",
        f"callbacks: [{{{CALLBACK}, budget_at: [0.5]}}]",
    ),
    (
        "observing.scores_nowhere",
        "telemetry.scores.receiver: 'otlp' takes scores over HTTP",
        "telemetry: {endpoint: 'http://h:4317', protocol: grpc, scores: {receiver: otlp}}",
    ),
    (
        "observing.scores_of_nothing",
        "telemetry.scores.receiver: has no effect with 'traces: false'",
        "telemetry: {endpoint: 'http://h:4318', traces: false, scores: {receiver: otlp}}",
    ),
    (
        "guards.judge_that_only_flags",
        "guards.toxicity.judge.otherwise: 'block' has",
        "guards: {toxicity: {action: flag, judge: {model: m, otherwise: block}}}",
    ),
    (
        "guards.held_and_windowed",
        "guards.g.interval: has no effect with 'stream: hold'",
        guard("kind: topics, words: [x], 'on': [output], stream: hold, interval: 32"),
    ),
    (
        "values.variable_in_other_words",
        "telemetry.headers.authorization: is taken as it stands; for the value of a variable write '${TOKEN}'",
        "telemetry: {endpoint: 'http://h:4318', headers: {authorization: Bearer $TOKEN}}",
    ),
    (
        "values.variable_in_other_words",
        "files.s3.secret_access_key: is taken as it stands; for the value of a variable write '${S3_SECRET}'",
        "files: {store: 's3://bucket', s3: {access_key_id: x, secret_access_key: os.environ/S3_SECRET}}",
    ),
    ("models.given_twice", "models.x.fallbacks[1]: is entry 0 again", model("fallbacks: [m, m]")),
    (
        "access.limit_beyond_a_longer_one",
        "keys[0].quotas.tokens_per_minute: has no effect: 9000 are",
        key("quotas: {tokens_per_minute: 9000, tokens_per_day: 100}"),
    ),
    (
        "access.limit_beyond_a_longer_one",
        "tiers.t.budget.usd_per_day: has no effect",
        "tiers: {t: {budget: {usd_per_day: 2.0, usd_per_month: 1.0}}}",
    ),
    (
        "access.pattern_of_no_model",
        "jwt[0].models[0]: no model matches 'y-*'",
        "jwt: [{issuer: i, audience: a, jwks: 'https://i/jwks', models: ['y-*']}]",
    ),
    ("access.everybody_a_proxy", "trusted_proxies[0]: believes", "trusted_proxies: ['::/0']"),
    (
        "prices.price_of_one_token",
        "default_price.output: is in dollars for a million tokens",
        "default_price: {input: 1.0, output: 0.0000006}",
    ),
]

RULES: dict[str, Callable[[Any], Any]] = {
    f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}": rule for rule in (*ERRORS, *WARNINGS)
}


def found(name: str, text: str, folder: Path) -> list[str]:
    content = yaml.safe_load(BASE)
    for section, value in (yaml.safe_load(text) or {}).items():
        known = content.get(section)
        content[section] = {**known, **value} if isinstance(known, dict) else value
    rule, findings = RULES[name], list[Diagnostic]()
    if rule in ERRORS:
        findings = [*rule(Draft(content, folder))]
    else:
        policy = Policy.model_validate(content)
        findings = [*rule(Valid(policy, content, policy.keys, folder=folder))]
    return [f"{render(finding.path)}: {finding.message}" for finding in findings]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "there.json").write_text("{}")
    return tmp_path


@pytest.fixture(autouse=True)
def _without_extras(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where none of them was installed."""
    if "[extras." not in request.node.name:
        return
    for name in ("psycopg", "botocore", "opentelemetry.sdk"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_exporter_of_another_protocol_is_none(
    protocol: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = f"telemetry: {{endpoint: http://h:4318, protocol: {protocol}}}"
    assert found("extras.feature_without_extra", written, folder) == []
    monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{protocol}", None)
    [told] = found("extras.feature_without_extra", written, folder)
    assert told.startswith("telemetry.endpoint: no traces are sent")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("telemetry: {endpoint: http://h:4318}", "telemetry.endpoint: no traces are sent"),
        (
            "ledger: {enabled: false, store: postgresql://u@h/d}",
            "ledger.store: no files and batches can be kept",
        ),
    ],
    ids=["[extras.otel", "[extras.postgres"],
)
def test_other_features_without_their_extra(written: str, said: str, folder: Path) -> None:
    [told] = found("extras.feature_without_extra", written, folder)
    assert told.startswith(said)


def test_each_rule_has_a_case() -> None:
    assert CASES.keys() == RULES.keys()
    assert len(RULES) == len(ERRORS) + len(WARNINGS)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_finds_what_it_is_for_and_nothing_beside_it(name: str, folder: Path) -> None:
    case = CASES[name]
    told = found(name, case.wrong, folder)
    assert len(told) == 1 and told[0].startswith(case.said), told
    assert found(name, case.right, folder) == []


@pytest.mark.parametrize(("name", "said", "wrong"), MORE, ids=[said for _, said, _ in MORE])
def test_what_else_a_rule_finds(name: str, said: str, wrong: str, folder: Path) -> None:
    told = found(name, wrong, folder)
    assert len(told) == 1 and told[0].startswith(said), told


@pytest.mark.parametrize("name", CASES)
def test_a_finding_is_told_with_its_line(name: str, folder: Path) -> None:
    """By all that reads a folder: an error refuses it, a warning does not."""
    (folder / "a.yaml").write_text(yaml.safe_dump(_without(yaml.safe_load(BASE), CASES[name].wrong)))
    (folder / "b.yaml").write_text(CASES[name].wrong)
    if RULES[name] in ERRORS:
        with pytest.raises(PolicyError) as caught:
            load_policy(folder, {}, with_files=True)
        told = caught.value.problems
    else:
        told = load_policy(folder, {}).warnings
    assert any(
        one.message.startswith(CASES[name].said) and one.file.parent == folder and one.line > 0
        for one in told
    ), told


def _without(base: dict[str, Any], text: str) -> dict[str, Any]:
    """``base`` without the entries that ``text`` has of its own."""
    for section, value in yaml.safe_load(text).items():
        if isinstance(base.get(section), dict):
            base[section] = {name: one for name, one in base[section].items() if name not in value}
    return {section: value for section, value in base.items() if value}


@pytest.mark.parametrize("folder_", [*sorted(Path("policies/examples").iterdir()), Path("policies")], ids=str)
def test_what_ships_is_clean(folder_: Path) -> None:
    """But for prices, which an operator's own models have not."""
    loaded = load_policy(
        folder_,
        {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k", "AZURE_OPENAI_API_KEY": "k"},
        with_files=True,
    )
    assert [str(one) for one in loaded.warnings if "has no price" not in one.message] == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("e: {kind: engine, prefill: [q]}", "there is no backend 'q'"),
        ("e: {kind: engine, prefill: [e]}", "'e' is no other engine"),
        (
            "e: {kind: engine, prefill: [p]}, p: {kind: engine, base_url: 'http://p:1', local: false}",
            "another 'region' or 'local'",
        ),
        (
            "e: {kind: engine, prefill: [p], region: eu}, p: {kind: engine, base_url: 'http://p:1', region: us}",
            "another 'region' or 'local'",
        ),
    ],
)
def test_prompts_are_computed_by_another_engine_at_the_same_place(
    more: str, said: str, tmp_path: Path
) -> None:
    whole = yaml.safe_load(BASE)
    whole["backends"] |= yaml.safe_load(f"{{{more}}}")
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(whole))
    with pytest.raises(PolicyError, match=said):
        load_policy(tmp_path, {})
