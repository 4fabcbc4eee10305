"""``deploy/kubernetes``: its manifests are valid, and a gateway starts, reloads and ends by their own numbers."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml

from gateway.cli.scaler import add_parser
from gateway.policy.schema import KubernetesService
from gateway.replicas.kubernetes import EndpointSlices
from gateway.scaler.target import Target
from scripts.kubernetes import HEADER, KUBERNETES, RENDERED, rendered
from tests import kubernetes_tools
from tests.json_server import JsonServer, json_server
from tests.kubernetes_api import endpoint, kubernetes_api
from tests.ports import free_port
from tests.test_packaging import ROOT

OVERLAYS = ("laptop", "production", "gpu")
EVERYTHING = (
    *("--set", "podMonitor.enabled=true", "--set", "gateway.autoscaling.enabled=true"),
    *("--set", "engine.autoscaling.enabled=true", "--set", "engine.gpus=2"),
    *("--set", "gateway.nodeSelector.pool=web", "--set-json", 'engine.tolerations=[{"operator":"Exists"}]'),
    *("--set-json", 'moreSecrets=["team-a"]', "--set-json", 'gateway.envFrom=[{"secretRef":{"name":"aws"}}]'),
    *("--set-json", 'networkPolicy.clients=[{"namespaceSelector":{}}]', "--set", "gateway.env.A=b"),
)
DISCOVERY = [{"namespace": "models", "service": "vllm", "ports": [8000]}, {"service": "here"}]
EVERYTHING += ("--set-json", f"discovery.endpointSlices={json.dumps(DISCOVERY)}")
WITHOUT = ("--set", "engine.enabled=false", "--set", "networkPolicy.enabled=false")
CUSTOM = {"PodMonitor": "monitoring.coreos.com/v1", "ScaledObject": "keda.sh/v1alpha1"}
"""Kinds of others, whose schemas Kubernetes does not have."""


@pytest.fixture(scope="module")
def helm() -> Path:
    return kubernetes_tools.helm()


@pytest.fixture(scope="module")
def overlays() -> dict[str, list[dict[str, Any]]]:
    kubectl = kubernetes_tools.kubectl()
    return {name: documents(kustomized(kubectl, KUBERNETES / "overlays" / name)) for name in OVERLAYS}


def kustomized(kubectl: Path, folder: Path) -> str:
    command = [str(kubectl), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")  # a warning is a form that a later version will not take
    return done.stdout


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document is not None]


def one(found: list[dict[str, Any]], kind: str, name: str = "tollgate") -> dict[str, Any]:
    (document,) = [one for one in found if one["kind"] == kind and one["metadata"]["name"] == name]
    return document


def pod(deployment: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def validate(found: list[dict[str, Any]]) -> None:
    for document in found:
        if document["kind"] in CUSTOM:
            assert document["apiVersion"] == CUSTOM[document["kind"]]
        else:
            kubernetes_validate.validate(document, "1.33", strict=True)


def test_the_base_is_what_the_chart_renders(helm: Path) -> None:
    for file, arguments in RENDERED:
        text = (KUBERNETES / file).read_text()
        assert text == HEADER + rendered(helm, arguments), "run `python -m scripts.kubernetes`"
        validate(documents(text))


@pytest.mark.parametrize("arguments", [EVERYTHING, WITHOUT], ids=["everything", "without"])
def test_the_chart_is_valid_with_other_values(helm: Path, arguments: tuple[str, ...]) -> None:
    found = documents(rendered(helm, arguments))
    validate(found)
    kinds = {document["kind"] for document in found}
    assert ({*CUSTOM, "HorizontalPodAutoscaler"} <= kinds) is (arguments is EVERYTHING)
    if arguments is EVERYTHING:
        engine = one(found, "Deployment", "tollgate-engine")
        assert pod(engine)["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 2
        assert "replicas" not in engine["spec"], "or each upgrade would undo what the autoscaler has done"


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlays_are_valid(overlays: dict[str, list[dict[str, Any]]], name: str) -> None:
    validate(overlays[name])


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_are_hardened_and_end_within_their_grace(
    overlays: dict[str, list[dict[str, Any]]], name: str
) -> None:
    for deployment in (document for document in overlays[name] if document["kind"] == "Deployment"):
        spec = pod(deployment)
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert spec["securityContext"]["runAsUser"] == 10001, "the Dockerfile's user"
        assert "--uid 10001" in (ROOT / "Dockerfile").read_text()
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        if deployment["metadata"]["name"] == "tollgate-scaler":
            continue  # no answer of its takes a second
        env = {variable["name"]: variable.get("value") for variable in container.get("env", [])}
        delay = float(
            env.get("TOLLGATE_SHUTDOWN_DELAY") or container["lifecycle"]["preStop"]["exec"]["command"][1]
        )
        draining = float(env.get("TOLLGATE_DRAIN_TIMEOUT") or 30)
        assert spec["terminationGracePeriodSeconds"] >= delay + draining + 10


def test_images_of_all_are_the_dockerfiles(overlays: dict[str, list[dict[str, Any]]]) -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    built = {line.split(" AS ")[1].strip() for line in lines if line.startswith("FROM ")}
    for found in overlays.values():
        for deployment in (document for document in found if document["kind"] == "Deployment"):
            image = pod(deployment)["containers"][0]["image"]
            assert image.removeprefix("tollgate-").partition(":")[0] in built


def test_selectors_find_pods_and_ports_have_names(overlays: dict[str, list[dict[str, Any]]]) -> None:
    for found in overlays.values():
        deployments = [document for document in found if document["kind"] == "Deployment"]
        labels = [deployment["spec"]["template"]["metadata"]["labels"] for deployment in deployments]
        for kind, path in (
            ("Service", ("selector",)),
            ("PodDisruptionBudget", ("selector", "matchLabels")),
            ("NetworkPolicy", ("podSelector", "matchLabels")),
        ):
            for document in (document for document in found if document["kind"] == kind):
                selector: Any = document["spec"]
                for part in path:
                    selector = selector[part]
                assert sum(selector.items() <= label.items() for label in labels) == 1, document["metadata"]


def test_production_shares_its_state_and_leaves_replicas_to_autoscalers(
    overlays: dict[str, list[dict[str, Any]]],
) -> None:
    found = overlays["production"]
    policy = yaml.safe_load(one(found, "ConfigMap", "tollgate-policies")["data"]["gateway.yaml"])
    assert (policy["store"], policy["ledger"]["store"]) == (
        "${TOLLGATE_STORE:-redis://redis:6379/0}",
        "${LEDGER_STORE:-postgresql://tollgate@postgres:5432/tollgate}",
    )
    mounts = {
        mount["mountPath"]: mount["name"]
        for mount in pod(one(found, "Deployment"))["containers"][0]["volumeMounts"]
    }
    assert mounts[str(Path(policy["ledger"]["password_file"]).parent)] == "secrets"
    for name, scaler in (("tollgate", "HorizontalPodAutoscaler"), ("tollgate-engine", "ScaledObject")):
        assert "replicas" not in one(found, "Deployment", name)["spec"]
        assert one(found, scaler, name)["spec"]["scaleTargetRef"]["name"] == name
    spread = pod(one(found, "Deployment"))["topologySpreadConstraints"]
    assert [constraint["whenUnsatisfiable"] for constraint in spread] == ["ScheduleAnyway", "DoNotSchedule"]


def test_keda_asks_the_scaler_for_what_is_there(overlays: dict[str, list[dict[str, Any]]]) -> None:
    found = overlays["production"]
    (trigger,) = one(found, "ScaledObject", "tollgate-engine")["spec"]["triggers"]
    target = Target.read(trigger["metadata"])
    policy = yaml.safe_load(one(found, "ConfigMap", "tollgate-policies")["data"]["gateway.yaml"])
    assert target.backend in policy["backends"]
    for place in (target.gateways, target.engines, trigger["metadata"]["scalerAddress"]):
        name, _, port = place.partition(".tollgate:")
        (served,) = one(found, "Service", name)["spec"]["ports"]
        selector = one(found, "Service", name)["spec"]["selector"]
        (container,) = [
            container
            for deployment in (document for document in found if document["kind"] == "Deployment")
            if selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
            for container in pod(deployment)["containers"]
        ]
        ports = {one["name"]: one["containerPort"] for one in container["ports"]}
        assert int(port) == served["port"] == ports[served["targetPort"]]
    (scaler,) = pod(one(found, "Deployment", "tollgate-scaler"))["containers"]
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    arguments = parser.parse_args(scaler["args"])
    assert arguments.listen.endswith(":6000")
    assert str(arguments.state.parent) in {mount["mountPath"] for mount in scaler["volumeMounts"]}


@pytest.mark.parametrize("folder", ["chart", "overlays/production"])
def test_policies_pass_the_check(folder: str) -> None:
    command = [sys.executable, "-m", "gateway", "check", str(KUBERNETES / folder / "policies")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.anyio
async def test_the_role_allows_what_discovery_asks_and_no_more(
    helm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = documents(rendered(helm, (*EVERYTHING, "--namespace", "tollgate")))
    assert pod(one(found, "Deployment"))["automountServiceAccountToken"]
    roles = {role["metadata"]["namespace"]: role for role in found if role["kind"] == "Role"}
    assert {*roles} == {"models", "tollgate"}
    for binding in (document for document in found if document["kind"] == "RoleBinding"):
        assert binding["roleRef"]["name"] == roles[binding["metadata"]["namespace"]]["metadata"]["name"]
        account = one(found, "ServiceAccount", pod(one(found, "Deployment"))["serviceAccountName"])
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "tollgate"}
        ]
    (rule,) = roles["models"]["rules"]
    async with kubernetes_api() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "config")))
        api.put("vllm-1", endpoint("10.0.0.1"))
        service = KubernetesService(service="vllm", namespace="models")
        source = EndpointSlices("pool", "http://pool/v1", service).follow()
        await anext(source)
        async with asyncio.timeout(60):
            while not api.watchers:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await source.aclose()
        asked = {asked_of(one["path"], "watch" in one) for one in api.asked}
    (group,), (resource,) = rule["apiGroups"], rule["resources"]
    assert asked == {(group, "models", resource, verb) for verb in rule["verbs"]}
    ways = one(found, "NetworkPolicy", "tollgate-discovery")["spec"]["egress"]
    assert [[port["port"] for port in way["ports"]] for way in ways] == [[443, 6443], [8000]]
    assert ways[1]["to"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == "models"


def asked_of(path: str, watches: bool) -> tuple[str, str, str, str]:
    """A GET as Kubernetes' authorization sees it: API group, namespace, resource, verb."""
    matched = re.fullmatch(r"/apis/([^/]+)/v1/namespaces/([^/]+)/([^/]+)(/[^/]+)?", path)
    assert matched is not None, path
    group, namespace, resource, name = matched.groups()
    return group, namespace, resource, "get" if name else "watch" if watches else "list"


def test_the_autoscaler_asks_for_metrics_that_the_adapter_has(helm: Path) -> None:
    """That these exist is found out in tests/e2e/test_observability.py, by a real Prometheus."""
    arguments = (*EVERYTHING, "--set", "engine.autoscaling.by=hpa")
    found = documents(rendered(helm, arguments))
    validate(found)
    assert not any(document["kind"] == "ScaledObject" for document in found)
    scaler = one(found, "HorizontalPodAutoscaler", "tollgate-engine")["spec"]
    assert scaler["scaleTargetRef"]["name"] == "tollgate-engine"
    asked = {metric["external"]["metric"]["name"] for metric in scaler["metrics"]}
    adapter = yaml.safe_load((KUBERNETES / "prometheus-adapter.yaml").read_text())["rules"]["external"]
    assert asked == {rule["name"]["as"] for rule in adapter}
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered(helm, (*arguments, "--set", "engine.autoscaling.minReplicas=0"))
    assert "at least one" in refused.value.stderr


# --- a gateway by the manifests' own numbers --------------------------------------------------------------------

KEY = "tg-kubernetes-0123456789abcdef0123456789abcdef"


def config_map(model: str, url: str) -> str:
    """A policy whose model takes 3 s to answer, and one whose provider takes a key."""
    return yaml.safe_dump(
        {
            "version": 1,
            "backends": {
                "scripted": {"kind": "fake", "script": [{"reply": "a b c d"}], "token_delay": "1s"},
                "provider": {"kind": "openai", "base_url": url, "api_key": "${PROVIDER_KEY}"},
            },
            "models": {
                model: {"targets": [{"backend": "scripted", "model": "x"}]},
                "keyed": {"targets": [{"backend": "provider", "model": "x"}]},
            },
        }
    )


def swap(folder: Path, version: str, content: dict[str, str]) -> None:
    """As the kubelet updates a ConfigMap or a Secret: a new folder, and one link that is replaced."""
    (folder / f"..{version}").mkdir()
    for name, text in content.items():
        (folder / f"..{version}" / name).write_text(text)
        (folder / f"..{version}" / name).chmod(0o440)
    (folder / "..data_tmp").symlink_to(f"..{version}")
    (folder / "..data_tmp").replace(folder / "..data")
    for name in content:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


@pytest.fixture
def provider() -> Iterator[JsonServer]:
    message = {"role": "assistant", "content": "Hello"}
    answer = {
        "object": "chat.completion",
        "choices": [{"message": message, "finish_reason": "stop", "index": 0}],
    }
    with json_server(lambda asked: (200, answer)) as server:
        yield server


async def key_of(http: httpx.AsyncClient, provider: JsonServer) -> str | None:
    """The key with which the provider is asked now."""
    body = {"model": "keyed", "messages": [{"role": "user", "content": "Hi"}]}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    return provider.asked[-1].headers.get("authorization")


async def until(http: httpx.AsyncClient, probe: dict[str, Any], status: int) -> None:
    """The probe has this status, within what its numbers allow."""
    for _ in range(probe.get("failureThreshold", 3)):
        try:
            if (
                await http.get(probe["httpGet"]["path"], timeout=probe["timeoutSeconds"])
            ).status_code == status:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(probe["periodSeconds"])
    raise AssertionError(f"{probe['httpGet']['path']} was never {status}")


@pytest.mark.anyio
async def test_a_gateway_starts_reloads_and_ends_as_the_manifests_say(
    tmp_path: Path, provider: JsonServer
) -> None:
    base = documents((KUBERNETES / "base" / "tollgate.yaml").read_text())
    spec = pod(one(base, "Deployment"))
    (container,) = spec["containers"]
    port, folder, state = free_port(), tmp_path / "policies", tmp_path / "state"
    folder.mkdir()
    state.mkdir()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "secrets"]
    assert (volume["projected"]["defaultMode"], spec["securityContext"]["fsGroup"]) == (0o440, 10001)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    secret = {
        "TOLLGATE_DEV_KEY": KEY,
        "TOLLGATE_METRICS_TOKEN": "kubernetes-metrics-token",
        "TOLLGATE_SESSION_SECRET": "kubernetes-session-secret-0123456789",
        "PROVIDER_KEY": "sk-one",
    }
    swap(secrets, "one", secret)
    swap(folder, "one", {"gateway.yaml": config_map("before", provider.url)})
    env = {variable["name"]: variable["value"] for variable in container["env"]} | {
        "PATH": "/usr/bin:/bin",
        "HOME": str(state),
        "TOLLGATE_POLICIES": str(folder),
        "TOLLGATE_STATE_DIR": str(state),
        "TOLLGATE_PORT": str(port),
        "TOLLGATE_METRICS_PORT": "0",
    }
    assert env["TOLLGATE_SECRETS_DIR"] == mounts["secrets"]
    env["TOLLGATE_SECRETS_DIR"] = str(secrets)
    command = [sys.executable, "-m", "gateway", *container["args"]]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)  # noqa: ASYNC220
    client = httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {KEY}"}, trust_env=False
    )
    try:
        async with client as http:
            await until(http, container["startupProbe"], 200)
            await until(http, container["readinessProbe"], 200)
            await until(http, container["livenessProbe"], 200)
            swap(folder, "two", {"gateway.yaml": config_map("after", provider.url)})
            async with asyncio.timeout(60):
                while "after" not in {m["id"] for m in (await http.get("/v1/models")).json()["data"]}:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert await key_of(http, provider) == "Bearer sk-one"
            swap(secrets, "two", secret | {"PROVIDER_KEY": "sk-two"})
            async with asyncio.timeout(60):
                while await key_of(http, provider) != "Bearer sk-two":  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            body = {"model": "after", "messages": [{"role": "user", "content": "Hi"}]}
            answer = asyncio.create_task(http.post("/v1/chat/completions", json=body, timeout=60))
            await asyncio.sleep(0.5)
            told = time.monotonic()
            process.send_signal(signal.SIGTERM)
            # Not ready, and yet it serves: endpoints have not noticed.
            await until(
                http, container["readinessProbe"] | {"periodSeconds": 0.05, "failureThreshold": 1000}, 503
            )
            assert (await http.get("/v1/models")).status_code == 200
            assert (await answer).json()["choices"][0]["message"]["content"] == "a b c d"
            code = await asyncio.to_thread(process.wait, spec["terminationGracePeriodSeconds"])
            assert (code, time.monotonic() - told < spec["terminationGracePeriodSeconds"]) == (0, True)
    finally:
        process.kill()
        process.wait()
