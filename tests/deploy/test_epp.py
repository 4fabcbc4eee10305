"""The chart's endpoint picker: its manifests are valid, agree with each other, and with ``tollgate epp``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.cli.epp import add_parser
from gateway.picker.pool import pool_of
from gateway.policy.loader import load_policy
from scripts.kubernetes import rendered
from tests import kubernetes_tools

CUSTOM = {"InferencePool": "inference.networking.k8s.io/v1", "HTTPRoute": "gateway.networking.k8s.io/v1"}
ENABLED = (
    *("--set", "epp.enabled=true", "--set", "engine.model=Qwen/Qwen3-8B", "--set", "epp.model=qwen"),
    *("--set-json", 'epp.gateways=[{"name":"inference-gateway"}]', "--namespace", "models"),
    *("--set-json", 'epp.args=["--fallbacks=2"]'),
)

Manifests = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    found = yaml.safe_load_all(rendered(kubernetes_tools.helm(), ENABLED))
    return {(one["kind"], one["metadata"]["name"]): one for one in found if one is not None}


def test_they_are_valid(manifests: Manifests) -> None:
    for (kind, _), one in manifests.items():
        if kind in CUSTOM:
            assert one["apiVersion"] == CUSTOM[kind]
        else:
            kubernetes_validate.validate(one, "1.33", strict=True)
    assert CUSTOM.keys() <= {kind for kind, _ in manifests}


def test_the_pool_names_engines_and_who_picks_them(manifests: Manifests) -> None:
    pool = manifests["InferencePool", "tollgate"]["spec"]
    labels = manifests["Deployment", "tollgate-engine"]["spec"]["template"]["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    (engine,) = manifests["Deployment", "tollgate-engine"]["spec"]["template"]["spec"]["containers"]
    assert pool["targetPorts"] == [{"number": engine["ports"][0]["containerPort"]}]
    service = manifests["Service", pool["endpointPickerRef"]["name"]]["spec"]
    (port,) = service["ports"]
    assert port["port"] == pool["endpointPickerRef"]["port"]["number"]
    picker = manifests["Deployment", "tollgate-epp"]["spec"]["template"]
    assert service["selector"].items() <= picker["metadata"]["labels"].items()
    (route,) = manifests["HTTPRoute", "tollgate"]["spec"]["rules"]
    assert [(one["kind"], one["name"]) for one in route["backendRefs"]] == [("InferencePool", "tollgate")]


def test_the_picker_listens_where_its_manifests_say(manifests: Manifests) -> None:
    spec = manifests["Deployment", "tollgate-epp"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    arguments = parser.parse_args(container["args"])
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    places = (arguments.listen, arguments.health, f":{arguments.metrics_port}")
    assert [int(place.rpartition(":")[2]) for place in places] == [*ports.values()]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"]["port"] == ports["health"]
    assert spec["automountServiceAccountToken"], "it reads the pool and its pods"
    assert arguments.fallbacks == 2
    env = {one["name"]: one["value"] for one in container["env"]}
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounted["secrets"] == env["TOLLGATE_SECRETS_DIR"]
    needs = float(env["TOLLGATE_SHUTDOWN_DELAY"]) + float(env["TOLLGATE_DRAIN_TIMEOUT"]) + 10
    assert spec["terminationGracePeriodSeconds"] >= needs


def test_its_policy_picks_the_pools_engines(manifests: Manifests, tmp_path: Path) -> None:
    for name, text in manifests["ConfigMap", "tollgate-epp-policies"]["data"].items():
        (tmp_path / name).write_text(text)
    policy = load_policy(tmp_path, {}).policy
    backend: Any = policy.backends[pool_of(policy, None)]
    assert (backend.replicas.pool.name, backend.replicas.pool.namespace) == ("tollgate", "models")
    assert policy.models["qwen"].targets[0].model == "Qwen/Qwen3-8B"


def test_its_role_is_for_what_it_reads(manifests: Manifests) -> None:
    rules = manifests["Role", "tollgate-epp"]["rules"]
    assert {(one["apiGroups"][0], one["resources"][0]) for one in rules} == {
        ("inference.networking.k8s.io", "inferencepools"),
        ("", "pods"),
    }
    assert all(one["verbs"] == ["list", "watch"] for one in rules)
