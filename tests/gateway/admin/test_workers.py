"""The admin API of a real ``tollgate serve`` with two workers: figures of both, a policy's history and way back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import yaml

from benchmarks.attacks.frame.gateway import workers_of
from tests.ports import free_port
from tests.serving import KEY, a_policy, chat, key

ADMIN = "tg-admin-1"
SECRET = "sk-written-into-the-file"
TIMES = 16


@dataclass
class Served:
    url: str
    file: Path
    supervisor: int

    def get(self, path: str) -> Any:
        return self._told("GET", path)

    def post(self, path: str, body: Any = None) -> Any:
        return self._told("POST", path, **({} if body is None else {"content": orjson.dumps(body)}))

    def patch(self, path: str, body: Any) -> Any:
        return self._told("PATCH", path, content=orjson.dumps(body))

    def chat(self, model: str) -> int:
        """Over a connection of its own, which either worker may accept."""
        headers = {"authorization": f"Bearer {KEY}", "cache-control": "no-store"}
        return httpx.post(
            f"{self.url}/v1/chat/completions", json=chat(model), headers=headers, timeout=300
        ).status_code

    def live(self) -> Any:
        with httpx.stream("GET", f"{self.url}/admin/api/live", headers=_ADMIN, timeout=300) as response:
            line = next(line for line in response.iter_lines() if line.startswith("data: "))
        return orjson.loads(line[6:])

    def live_workers(self) -> int:
        """As many as answer one another; 0 where the connection went to one that is gone."""
        with suppress(httpx.TransportError, StopIteration):
            return int(self.live()["workers"])
        return 0

    def _told(self, method: str, path: str, **body: Any) -> Any:
        response = httpx.request(method, f"{self.url}/admin/api{path}", headers=_ADMIN, timeout=300, **body)
        assert response.is_success, response.text
        return response.json()


_ADMIN = {"authorization": f"Bearer {ADMIN}"}


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline, "not within 300 s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with two_workers(tmp_path_factory.mktemp("workers")) as served:
        yield served


@contextmanager
def two_workers(folder: Path) -> Iterator[Served]:
    whole = a_policy("http://127.0.0.1:1/v1", admin={"enabled": True})
    whole["keys"].append(key(ADMIN, "ops", tenant="ops", scopes=["admin"]))
    whole["tenants"] = {"acme": {"quotas": {"requests_per_minute": 1000}}}
    whole["backends"]["up"]["api_key"] = SECRET
    file = folder / "policies" / "gateway.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(whole))
    port = free_port()
    command = [sys.executable, "-m", "gateway", "serve", "--policies", str(file.parent), "--port", str(port)]
    environment = {
        **os.environ,
        "TOLLGATE_STATE_DIR": str(folder / "state"),
        "TOLLGATE_SHUTDOWN_DELAY": "0",
    }
    log = (folder / "log").open("w")
    process = subprocess.Popen([*command, "--workers", "2"], env=environment, stdout=log, stderr=log)
    served = Served(f"http://127.0.0.1:{port}", file, process.pid)

    def both_answer() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return bool(served.live()["workers"] == 2)
        except (httpx.TransportError, StopIteration, AssertionError):
            return False

    try:
        until(both_answer)
        yield served
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(300)
        log.close()


def test_figures_are_those_of_all_workers(tmp_path: Path) -> None:
    with two_workers(tmp_path) as served:  # whose figures are those of nobody else
        _figures_are_of_all(served)


def _figures_are_of_all(served: Served) -> None:
    assert {served.chat("fake") for _ in range(TIMES)} == {200}
    label = "fake\tscripted\t200"
    until(lambda: served.live()["counters"]["requests"].get(label) == TIMES)
    until(lambda: sum(served.live()["histograms"]["first_token"]["counts"]) == TIMES)

    def used() -> float:
        """Counted by each worker in its own memory."""
        tenants = {one["name"]: one for one in served.get("/tenants")["tenants"]}
        [limit] = tenants["acme"]["limits"]
        return float(limit["used"])

    until(lambda: used() == TIMES)
    until(lambda: len(served.get(f"/requests?limit={2 * TIMES}")["requests"]) == TIMES)
    for found in served.get(f"/requests?limit={TIMES}")["requests"]:
        # Whoever keeps it; it is written by another thread than the ledger's row.
        until(lambda name=found["id"]: served.get(f"/requests/{name}").get("receipt", {}).get("id") == name)


def test_a_keys_new_limits_hold_in_both_workers_when_it_is_told(served: Served) -> None:
    made = served.post("/keys", {"id": "ci", "models": ["fake"]})
    headers = {"authorization": f"Bearer {made['key']}", "cache-control": "no-store"}

    def asked() -> int:
        return httpx.post(
            f"{served.url}/v1/chat/completions", json=chat("fake"), headers=headers, timeout=300
        ).status_code

    assert made["in_force"] and {asked() for _ in range(TIMES)} == {200}
    for models, status in ((["slow"], 404), (["fake"], 200), (["slow"], 404)):
        changed = served.patch("/keys/ci", {"models": models})
        assert changed["in_force"]
        assert {asked() for _ in range(TIMES)} == {status}


def test_the_policys_history_tells_changes_and_no_secret_and_leads_back(served: Served) -> None:
    first = served.get("/policy")["policy"]
    before = served.file.read_text()
    assert SECRET in before and "(hidden)" in first["files"]["gateway.yaml"]
    changed = yaml.safe_load(before)
    changed["models"]["later"] = changed["models"]["fake"]
    changed["backends"]["up"]["api_key"] = SECRET + "-2"
    served.file.write_text(yaml.safe_dump(changed))
    # Of both workers: each takes it up by itself.
    until(lambda: all("later" in served.get("/policy")["models"] for _ in range(TIMES)))
    second = served.get("/policy")
    assert second["policy"]["generation"] == first["generation"] + 1
    assert "+  later:" in second["policy"]["diff"]
    generations = served.get("/policy/history")["generations"]
    assert [one["generation"] for one in generations[:2]] == [first["generation"] + 1, first["generation"]]
    assert generations[0]["added"] > 0
    earlier = served.get(f"/policy/history/{first['generation']}")
    assert earlier["files"] == first["files"]
    rolled = served.post("/policy/rollback", {"generation": first["generation"]})
    assert rolled["in_force"] and served.file.read_text() == before
    until(lambda: {served.chat("later") for _ in range(TIMES)} == {404})
    newest = served.get("/audit")["entries"][0]
    assert newest["action"] == "policy.roll_back" and newest["ok"]
    told = orjson.dumps(
        [first, second, generations, earlier, rolled, served.get("/audit"), served.get("/policy")]
    )
    assert SECRET.encode() not in told


def test_what_each_worker_has_from_the_ledger_is_spent_once(served: Served) -> None:
    """A worker counts what the ledger has when it starts, or reloads: also what others count that are still there."""

    def spending() -> tuple[list[float], float]:
        acme = next(one for one in served.get("/tenants")["tenants"] if one["name"] == "acme")
        return [one["used"] for one in acme["limits"] if one["quantity"] == "dollars"], acme["month_usd"]

    def spend() -> None:
        assert {served.chat("fake") for _ in range(TIMES)} == {200}
        for _ in range(20):  # a worker may answer late, or write late
            used, of_month = spending()
            if used == pytest.approx([of_month] * 3):
                break
            time.sleep(0.5)
        assert of_month > 0
        assert used == pytest.approx([of_month] * 3), "of a day, of a month, of the tier's month"

    changed = yaml.safe_load(served.file.read_text())
    changed["prices"] = {"scripted/x": {"input": 1000.0, "output": 1000.0}}
    changed["tenants"]["acme"] |= {"budget": {"usd_per_day": 1000.0, "usd_per_month": 1000.0}, "tier": "pro"}
    changed["tiers"] = {"pro": {"budget": {"usd_per_month": 1000.0}}}
    for reload in ("one", "two"):
        changed["models"][reload] = changed["models"]["fake"]
        served.file.write_text(yaml.safe_dump(changed))
        until(lambda name=reload: all(name in served.get("/policy")["models"] for _ in range(TIMES)))
        spend()
    for gone in workers_of(served.supervisor):
        os.kill(gone, signal.SIGKILL)
        until(lambda gone=gone: gone not in workers_of(served.supervisor))
        until(lambda: served.live_workers() == 2)
        spend()


def test_what_is_said_to_be_in_force_is_so_at_every_worker(served: Served) -> None:
    for how, status in (("drain", 503), ("undrain", 200)) * 3:
        assert served.post(f"/backends/scripted/{how}")["in_force"]
        assert [served.chat("fake") for _ in range(TIMES)] == [status] * TIMES, how


def test_a_generation_has_one_number_everywhere(served: Served) -> None:
    changed = yaml.safe_load(served.file.read_text())
    for _ in range(2):
        changed["models"][f"more-{len(changed['models'])}"] = changed["models"]["fake"]
        served.file.write_text(yaml.safe_dump(changed))
        newest = list(changed["models"])[-1]
        until(lambda newest=newest: all(newest in served.get("/policy")["models"] for _ in range(TIMES)))
        served.post("/backends/slow/drain")
        served.post("/backends/slow/undrain")
        number = served.get("/policy")["policy"]["generation"]
        assert served.get("/policy/history")["generations"][0]["generation"] == number
        assert {served.live()["generation"] for _ in range(TIMES)} == {number}
        log = (served.file.parent.parent / "log").read_text()
        assert re.findall(r"policy generation (\d+) is in force", log)[-1] == str(number)
    assert served.post("/policy/rollback", {"generation": number - 1})["in_force"]


def test_a_mistake_is_logged_once(served: Served) -> None:
    before, log = served.file.read_text(), served.file.parent.parent / "log"
    served.file.write_text(before + "\nnonsense: 1\n")
    until(lambda: served.get("/policy").get("rejected"))
    until(lambda: "the policy is rejected" in log.read_text())
    time.sleep(1.0)
    assert log.read_text().count("the policy is rejected") == 1
    served.file.write_text(before)
    until(lambda: not served.get("/policy").get("rejected"))
