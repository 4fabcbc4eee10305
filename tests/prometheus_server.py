"""A real Prometheus for tests, with the configuration that is shipped and targets of the test's."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.ports import free_port

SHIPPED = Path(__file__).parents[1] / "deploy" / "prometheus"
SECONDS = 120.0
"""A Prometheus of a busy machine has that long for whatever it is asked."""


class PrometheusServer:
    def __init__(self, program: str, folder: Path, targets: Mapping[str, str]) -> None:
        """``targets``: by job, the address (``host:port``) that replaces where the shipped configuration looks for it;
        jobs without one are left out."""
        config = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        jobs = {job["job_name"]: job for job in config["scrape_configs"]}
        config["scrape_configs"] = [
            {key: value for key, value in jobs[name].items() if not key.endswith("_sd_configs")}
            | {"static_configs": [{"targets": [target]}]}
            for name, target in targets.items()
        ]
        self._jobs = len(targets)
        folder.mkdir()
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        for name in config["rule_files"]:
            rules = yaml.safe_load((SHIPPED / name).read_text())
            for group in rules["groups"]:
                group.pop("interval", None)  # minutes
            (folder / name).write_text(yaml.safe_dump(rules))
        port = free_port()
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False, timeout=SECONDS
        )
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> PrometheusServer:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self._http.get("/-/ready").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        self._log.seek(0)
        raise RuntimeError("Prometheus did not come up:\n" + self._log.read())

    def __exit__(self, *error: object) -> None:
        self._http.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def api(self, path: str, **parameters: Any) -> Any:
        answer = self._http.get(f"/api/v1/{path}", params=parameters).json()
        if answer["status"] != "success":
            raise AssertionError(f"{parameters}: {answer['error']}")
        return answer["data"]

    def values(self, expr: str) -> list[float]:
        """Of each series that an expression has now."""
        found = self.api("query", query=expr)
        rows = [found] if found["resultType"] == "scalar" else found["result"]
        return [float(row["value"][1] if isinstance(row, dict) else row[1]) for row in rows]

    def has_data(self, expr: str) -> bool:
        """Whether any series has a number."""
        return any(math.isfinite(value) for value in self.values(expr))

    def wait_scraped(self) -> None:
        """Until every target has been scraped once more from now on."""
        asked = time.time()
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            targets = self.api("targets")["activeTargets"]
            started = [self._started(target) for target in targets]
            if (
                len(started) == self._jobs
                and all(target["health"] == "up" for target in targets)
                and all(at >= asked for at in started)
            ):
                return
            time.sleep(0.2)
        raise AssertionError(f"not scraped: {[(one['scrapeUrl'], one['lastError']) for one in targets]}")

    def _started(self, target: Mapping[str, Any]) -> float:
        """When its last scrape began, in Unix time; 0 before the first."""
        labels = f'instance="{target["labels"]["instance"]}", job="{target["labels"]["job"]}"'
        return max(self.values(f"timestamp(up{{{labels}}})"), default=0.0)
