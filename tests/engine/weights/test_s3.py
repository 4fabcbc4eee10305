"""A model in a bucket, on a server that speaks S3's API: fetched once, anew where it changed, and never by halves."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelUnavailable
from engine.offline import OfflineEngine
from engine.options import read_options
from engine.weights import s3
from engine.weights.digest import check_digests, file_digest
from engine.weights.source import DEMO, locate
from tests.s3_server import BUCKET, S3Server, cutting, recording

URL = f"s3://{BUCKET}/teams/models/one"


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> S3Server:
    s3_server.empty()
    reach(monkeypatch, s3_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-tests")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return s3_server


def reach(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)


def put(bucket: S3Server, key: str, body: bytes) -> None:
    bucket.client.put_object(Bucket=BUCKET, Key=key, Body=body)


def put_model(bucket: S3Server, weights: bytes = b"weights", *, at: str = "teams/models/one") -> None:
    put(bucket, f"{at}/config.json", b"{}")
    put(bucket, f"{at}/model.safetensors", weights)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock", ".s3.json"}


def test_the_engine_runs_what_is_in_a_bucket(bucket: S3Server, tmp_path: Path) -> None:
    demo = locate(DEMO)
    for path in demo.iterdir():
        if path.is_file():
            put(bucket, f"teams/models/one/{path.name}", path.read_bytes())
    put(bucket, "teams/models/one/README.md", b"not needed")
    put(bucket, "teams/models/one/original/model.safetensors", b"nor this")
    put(bucket, "teams/models/one-more/config.json", b"another's")
    config = read_options({"model": f"{URL}/"})
    assert config.served_model_name == "one" and config.given_model_name == URL
    folder = config.engine.model
    assert folder.is_relative_to(tmp_path / "cache")
    assert names(folder) == {path.name for path in demo.iterdir() if path.is_file()} - {"README.md"}
    check_digests(folder, [("", file_digest(demo / "model.safetensors"))])
    with pytest.raises(ModelUnavailable, match="--digest"):
        check_digests(folder, [("", "0" * 64)])
    assert OfflineEngine(config.engine).runner.model.vocab_size > 0


def test_what_is_there_is_not_fetched_again(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    put_model(bucket)
    folder = s3.fetch(URL)
    with recording(bucket.port) as (url, heads):
        reach(monkeypatch, url)
        assert s3.fetch(URL) == folder
    assert len(heads) == 1 and "list-type=2" in heads[0]


def test_what_has_changed_is_fetched_anew(bucket: S3Server) -> None:
    put_model(bucket)
    put(bucket, "teams/models/one/model-2.safetensors", b"a second file")
    folder = s3.fetch(URL)
    (folder / "of-the-operator.txt").write_text("x")
    put_model(bucket, b"WEIGHTS")
    bucket.client.delete_object(Bucket=BUCKET, Key="teams/models/one/model-2.safetensors")
    (folder / "config.json").write_bytes(b"cut")
    s3.fetch(URL)
    assert names(folder) == {"config.json", "model.safetensors", "of-the-operator.txt"}
    assert (folder / "model.safetensors").read_bytes() == b"WEIGHTS"
    assert (folder / "config.json").read_bytes() == b"{}"


def test_a_file_and_a_file_in_parts(bucket: S3Server) -> None:
    for key in ("m.gguf", "m-2.gguf", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf", "config.json"):
        put(bucket, f"teams/{key}", key.encode())
    one, split = (s3.fetch(f"s3://{BUCKET}/teams/{key}") for key in ("m.gguf", "s-00001-of-00002.gguf"))
    assert one.read_bytes() == b"m.gguf" and names(one.parent) == {"m.gguf"}
    assert split.name == "s-00001-of-00002.gguf"
    assert names(split.parent) == {"s-00001-of-00002.gguf", "s-00002-of-00002.gguf"}
    assert read_options({"model": f"s3://{BUCKET}/teams/m.gguf"}, find=lambda _: one).served_model_name == "m"


@pytest.mark.parametrize("times", [1, 3])
def test_an_answer_that_breaks_off_goes_on(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    whole = os.urandom(3 * 2**20 + 5)
    put_model(bucket, whole)
    monkeypatch.setattr(s3, "_PART", 2**20)
    with cutting(bucket.port, 300_000, times) as url:
        reach(monkeypatch, url)
        assert (s3.fetch(URL) / "model.safetensors").read_bytes() == whole


def test_one_that_always_breaks_off_leaves_no_half(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    put_model(bucket, bytes(2**20))
    with cutting(bucket.port, 100_000, 10**6) as url:
        reach(monkeypatch, url)
        with pytest.raises(ModelUnavailable, match="S3: "):
            s3.fetch(URL)
    reach(monkeypatch, bucket.url)
    folder = s3.fetch(URL)
    assert names(folder) == {"config.json", "model.safetensors"}
    assert (folder / "model.safetensors").stat().st_size == 2**20


def test_one_that_changes_while_it_is_read_is_refused(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_model(bucket, bytes(2**20))
    fetch_part = s3._fetch_part

    def changed(*given: Any) -> int:
        put_model(bucket, bytes(2**20 - 1) + b"x")
        return fetch_part(*given)

    monkeypatch.setattr(s3, "_fetch_part", changed)
    with pytest.raises(ModelUnavailable, match="PreconditionFailed"):
        s3.fetch(URL)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://", "write s3://BUCKET/PREFIX"),
        (f"s3://{BUCKET}", "write s3://BUCKET/PREFIX"),
        (f"s3://{BUCKET}/a/../b", "write s3://BUCKET/PREFIX"),
        (f"s3://{BUCKET}/nothing", "holds no model"),
        (f"s3://{BUCKET}/teams/models/one/no.gguf", "holds no model"),
        ("s3://no-such-bucket/x", "NoSuchBucket"),
    ],
)
def test_what_is_no_model_is_said(bucket: S3Server, url: str, said: str) -> None:
    put(bucket, "nothing/config.json", b"{}")
    with pytest.raises(ModelUnavailable, match=re.escape(said)):
        locate(url)


def test_a_full_disk_is_told_before_anything_is_written(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_model(bucket)
    monkeypatch.setattr(s3, "_SPARE", 2**60)
    with pytest.raises(ModelUnavailable, match="Make room"):
        s3.fetch(URL)


def test_what_a_bucket_that_is_away_says(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    reach(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(ModelUnavailable, match="AWS_ENDPOINT_URL_S3"):
        s3.fetch(URL)


def test_a_launched_engine_is_checked_without_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.weights.source import on_this_machine

    reach(monkeypatch, "http://127.0.0.1:9")
    assert read_options({"model": URL}, find=on_this_machine).served_model_name == "one"


def test_progress_is_logged(bucket: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    put_model(bucket)
    with caplog.at_level(logging.INFO, "engine.weights"):
        s3.fetch(URL)
    assert "fetching 2 files, 0.0 GB, into " in caplog.text
