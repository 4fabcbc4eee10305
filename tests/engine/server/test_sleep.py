from __future__ import annotations

from pathlib import Path

from tests.engine.live import EngineServer

BODY = {"prompt": "bad fin", "max_tokens": 8, "temperature": 0}


def test_it_sleeps_when_it_is_idle_and_says_the_same_when_it_wakes(tiny_model: Path, tmp_path: Path) -> None:
    options = ("--sleep-mode", "--kv-cache-memory", "4MiB", "--check-integrity")
    with EngineServer(tiny_model, *options, log=tmp_path / "log") as server:
        body = {**BODY, "model": tiny_model.name}
        said = server.post("/v1/completions", **body).json()["choices"]
        for level in (1, 2):
            assert server.http.post(f"/sleep?level={level}").json() == {"is_sleeping": True, "level": level}
            refused = server.post("/v1/completions", **body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "asleep")
            assert server.http.get("/is_sleeping").json() == {"is_sleeping": True}
            assert server.http.get("/health").status_code == 200
            assert server.http.post("/wake_up").json() == {"is_sleeping": False}
            assert server.post("/v1/completions", **body).json()["choices"] == said
        assert server.http.post("/sleep?level=3").status_code == 400
        with server.http.stream("POST", "/v1/completions", json={**body, "max_tokens": 400, "stream": True}):
            busy = server.http.post("/sleep")
        assert (busy.status_code, busy.json()["error"]["code"]) == (503, "asleep")
        assert "Traceback" not in server.log
