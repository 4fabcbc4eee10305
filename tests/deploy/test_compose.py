"""docker-compose.yml's profile `observability`: what it mounts is there, and its parts find one another."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_packaging import COMPOSE, OBSERVABILITY, filled

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SERVICES: dict[str, Any] = COMPOSE["services"]


def read(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text())


def mounts(service: str) -> dict[Path, str]:
    """Files and folders of the repository, and where the service sees them."""
    pairs = [volume.split(":") for volume in SERVICES[service]["volumes"] if volume.startswith("./")]
    return {ROOT / source: inside for source, inside, _ in pairs}


@pytest.mark.parametrize("service", OBSERVABILITY)
def test_images_are_pinned_and_mounts_are_there_and_read_only(service: str) -> None:
    settings = SERVICES[service]
    assert re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", settings["image"])
    for volume in settings["volumes"]:
        source, _, mode = volume.split(":") if volume.startswith("./") else (*volume.split(":"), "")
        assert (
            (ROOT / source).exists() and mode == "ro"
            if source.startswith(".")
            else source in COMPOSE["volumes"]
        )


@pytest.mark.parametrize("service", ["gateway", *OBSERVABILITY])
def test_only_the_gateway_is_open_to_other_machines(service: str) -> None:
    for port in SERVICES[service].get("ports", []):
        assert port.startswith("127.0.0.1:") or (service == "gateway" and port.endswith(":8000"))


def test_prometheus_scrapes_services_at_their_ports() -> None:
    jobs = {job["job_name"]: job for job in read("prometheus/prometheus.yml")["scrape_configs"]}
    metrics = int(SERVICES["gateway"]["environment"]["TOLLGATE_METRICS_PORT"])
    found = {name: job["dns_sd_configs"][0] for name, job in jobs.items() if "dns_sd_configs" in job}
    assert {name: (one["names"], one["port"]) for name, one in found.items()} == {
        "tollgate": (["gateway"], metrics),
        "tollgate-engine": (["engine"], 8100),
    }
    [target] = jobs["otel-collector"]["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert port in SERVICES[host]["expose"]
    assert any(filled(one).endswith(f":{metrics}") for one in SERVICES["gateway"]["ports"])


def test_grafana_finds_prometheus_and_every_dashboard() -> None:
    [source] = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert SERVICES["prometheus"]["ports"][0].endswith(":9090")
    assert (
        source["jsonData"]["timeInterval"] == read("prometheus/prometheus.yml")["global"]["scrape_interval"]
    )
    [provider] = read("grafana/provisioning/dashboards/tollgate.yml")["providers"]
    inside = provider["options"]["path"]
    seen = {path.name for path, where in mounts("grafana").items() if where == f"{inside}/{path.name}"}
    assert seen == {path.name for path in (DEPLOY / "grafana").glob("*.json")}
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).name in seen


def test_prometheus_and_the_collector_read_what_is_mounted() -> None:
    for service in ("prometheus", "otel-collector"):
        [config] = [
            word.partition("=")[2]
            for word in SERVICES[service]["command"]
            if word.startswith(("--config.file", "--config="))
        ]
        assert config in mounts(service).values()
    folder = Path(
        next(where for path, where in mounts("prometheus").items() if path.name == "prometheus.yml")
    ).parent
    for rules in read("prometheus/prometheus.yml")["rule_files"]:
        assert str(folder / rules) in mounts("prometheus").values()


def test_the_collectors_pipelines_name_what_is_there() -> None:
    config = read("otel/collector.yml")
    for pipeline in config["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= set(config[kind])
    assert set(config["service"]["extensions"]) <= set(config["extensions"])
    ports = {one["endpoint"].rpartition(":")[2] for one in config["receivers"]["otlp"]["protocols"].values()}
    ports.add(config["exporters"]["prometheus"]["endpoint"].rpartition(":")[2])
    assert ports == set(SERVICES["otel-collector"]["expose"])


def test_the_command_line_of_prometheus_is_one(prometheus_program: str) -> None:
    """By the flags of the Prometheus that is here, which need not be the image's version."""
    helped = subprocess.run([prometheus_program, "--help"], capture_output=True, text=True, check=False)
    flags = set(re.findall(r"--[a-z][\w.-]*", helped.stdout + helped.stderr))
    assert {word.partition("=")[0] for word in SERVICES["prometheus"]["command"]} <= flags
