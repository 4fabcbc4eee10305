"""``tollgate import``: any value anywhere in a configuration makes a valid policy or a clear error."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.__main__ import main
from gateway.lab.migration import agentgateway, bifrost, litellm, portkey
from gateway.lab.migration.draft import ConfigError, PolicyDraft
from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError
from tests.examples import examples
from tests.gateway.lab.test_import_agentgateway import MODELS, ROUTES
from tests.gateway.lab.test_import_bifrost import CONFIG as BIFROST
from tests.gateway.lab.test_import_litellm import GUARDS, ROUTED, SETTINGS

DEPLOYMENTS = """
- {model_name: "openai/*", litellm_params: {model: "openai/*"}}
- model_name: d
  litellm_params: {model: azure/x, api_base: "https://c.openai.azure.com", api_version: "2024-10-21", weight: 2,
    order: 1, tenant_id: t, client_id: c, client_secret: s}
- model_name: d
  litellm_params: {model: azure/x, api_base: "https://d.openai.azure.com", api_key: k, rpm: 5, tpm: 5, order: 2,
    max_parallel_requests: 3, region_name: eu, timeout: 5, num_retries: 2}
- model_name: e
  litellm_params: {model: bedrock/x, aws_region_name: eu-west-1, aws_access_key_id: a, aws_secret_access_key: b,
    litellm_credential_name: shared}
- {model_name: f, litellm_params: {model: vertex_ai/gemini-x, vertex_project: p, vertex_location: l}}
- {model_name: g, litellm_params: {model: x/y, mock_response: hi}}
"""
ROWS: list[dict[str, Any]] = [
    {"team_id": "t1", "team_alias": "R", "max_budget": 50.0, "budget_duration": "30d", "models": ["a"]},
    {"token": "a" * 64, "key_alias": "k", "team_id": "t1", "models": [], "expires": "2031-06-01T10:00:00Z"},
    {"token": "b" * 64, "user_id": "b", "models": ["a"], "max_budget": 3, "spend": 1.0, "budget_id": "few"},
    {"budget_id": "few", "max_budget": 4, "rpm_limit": 2, "tpm_limit": 7},
]

# Python's own reader of patterns warns of "[[".
pytestmark = pytest.mark.filterwarnings("ignore:Possible (nested|set):FutureWarning")


def whole() -> dict[str, Any]:
    config: dict[str, Any] = {}
    for text in (ROUTED, SETTINGS, GUARDS):
        for section, content in yaml.safe_load(text).items():
            there = config.setdefault(section, content)
            if there is not content:
                there.update(content)
    config["model_list"] += yaml.safe_load(DEPLOYMENTS)
    config["credential_list"] = [{"credential_name": "shared", "credential_values": {"api_key": "z"}}]
    config["litellm_settings"]["cache_params"]["sentinel_nodes"] = [["h", 26379]]
    return {"config": config, "rows": ROWS}


def places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    for name in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield from places(node[name], (*at, name))


WHOLE = whole()
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.dates()
    | st.binary(max_size=3)
    | st.sampled_from(
        [
            "*",
            "a",
            "a/*",
            "os.environ/",
            "${",
            "${X}",
            "$${",
            "http://[",
            "openai/",
            "azure/x",
            "30d",
            "1e9",
            "-",
            "🦀",
        ]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3),
    max_leaves=6,
)


def changed(whole: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    everything = copy.deepcopy(whole)
    node = everything
    for name in place[:-1]:
        node = node[name]
    node[place[-1]] = value
    return everything


def checked(draft: PolicyDraft) -> None:
    """It can be told, and is valid as it is written, or each problem has its line."""
    assert all(note.where and note.what for note in draft.report.notes)
    if not draft.models:
        return  # which the command says, and writes nothing
    with TemporaryDirectory() as folder:
        draft.write(Path(folder))
        values = {name: "6379" if "PORT" in name else "https://x.invalid" for name in draft.needed}
        try:
            policy = load_policy(Path(folder), {**values, "REDIS_HOST": "h", **draft.secrets}).policy
        except PolicyError as error:  # the command prints them, and ends with 1
            assert all(problem.line and problem.path for problem in error.problems), error
        else:
            assert policy.models


@given(st.sampled_from([place for place in places(WHOLE) if len(place) > 1]), VALUES)
@settings(max_examples=examples(200))
def test_any_value_anywhere_ends_well(place: tuple[Any, ...], value: Any) -> None:
    everything = changed(WHOLE, place, value)
    try:
        draft = litellm.imported(
            everything["config"],
            source="config.yaml",
            env={"MASTER": "sk-1"},
            rows=[row for row in everything["rows"] if isinstance(row, dict)],
            today=date(2030, 1, 15),
        )
    except ConfigError as error:
        assert str(error)
        return
    checked(draft)


OTHERS: dict[str, tuple[Callable[[Any], PolicyDraft], dict[str, Any]]] = {
    "bifrost": (lambda config: bifrost.imported(config, source="c", env={}), BIFROST),
    "agentgateway": (
        lambda config: agentgateway.imported(config, source="c", env={}),
        yaml.safe_load(MODELS + ROUTES),
    ),
    "portkey": (
        lambda config: portkey.imported(config, source="c", name="chat"),
        {
            "strategy": {"mode": "fallback", "on_status_codes": [429]},
            "targets": [
                {"provider": "openai", "api_key": "k", "weight": 1, "override_params": {"model": "gpt-4o"}},
                {
                    "strategy": {"mode": "loadbalance"},
                    "targets": [{"virtual_key": "anthropic-1", "weight": 0.5}],
                },
            ],
            "retry": {"attempts": 2},
            "cache": {"mode": "simple", "max_age": 60},
            "request_timeout": 1000,
        },
    ),
}


@given(
    st.sampled_from([(name, place) for name, (_, config) in OTHERS.items() for place in places(config, ())]),
    VALUES,
)
@settings(max_examples=examples(200))
def test_so_it_does_in_those_of_other_gateways(chosen: tuple[str, tuple[Any, ...]], value: Any) -> None:
    name, place = chosen
    read, config = OTHERS[name]
    try:
        draft = read(changed(config, place, value))
    except ConfigError as error:
        assert str(error)
    else:
        checked(draft)


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9))


@pytest.mark.parametrize(
    "text",
    [
        "model_list: &a [*a]",
        BOMB,
        "a: " + "[" * 3000,
        "a: 2024-13-45",
        "model_list: !!python/object:os.system {}",
        "a: \x07",
        "include: [nowhere.yaml]",
    ],
    ids=["itself", "bomb", "brackets", "day", "object", "bell", "include"],
)
def test_what_no_configuration_holds(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert main(["import", "litellm", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "o")]) == 1
    assert capsys.readouterr().err.startswith("tollgate import: ")
