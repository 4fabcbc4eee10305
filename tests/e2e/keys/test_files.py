"""What the keys of ``files`` do: what can be uploaded, and how long it is there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.keys.harness import Look, Row, Site, a_site, shows
from tests.s3_server import BUCKET, S3Server, recording

pytestmark = pytest.mark.anyio


def files(**more: Any) -> dict[str, Any]:
    return {"files": more}


async def upload(site: Site, size: int = 10) -> httpx.Response:
    return await site.gateway.http.post(
        "/v1/files", files={"file": ("f.txt", b"x" * size)}, data={"purpose": "user_data"}
    )


def uploads(*sizes: int) -> Look:
    """The status of the last of several uploads."""

    async def look(site: Site) -> int:
        return [(await upload(site, size)).status_code for size in sizes][-1]

    return look


def again(pause: float) -> Look:
    """The status of a look at a file, after a while."""

    async def look(site: Site) -> int:
        file = (await upload(site)).json()["id"]
        await asyncio.sleep(pause)
        return (await site.gateway.http.get(f"/v1/files/{file}")).status_code

    return look


def in_folder(name: str) -> Look:
    """How many contents are in a folder beside the policy's."""

    async def look(site: Site) -> int:
        await upload(site)
        folder = site.folder / "state" / name
        return len(list(folder.iterdir())) if folder.exists() else 0

    return look


@shows(
    *("files.store", "files.s3", "files.s3.endpoint", "files.s3.access_key_id"),
    *("files.s3.secret_access_key", "files.s3.session_token", "files.s3.region", "files.s3.profile"),
)
async def test_a_bucket_has_the_contents(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked, and where, is in the signature of each request."""
    (tmp_path / "credentials").write_text(
        "[tests]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = of-the-profile\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    key = {"access_key_id": "AKIAKEY", "secret_access_key": "secret", "session_token": "temporary"}
    for name, who, region, more in (
        ("key", "AKIAKEY", "us-east-1", key),
        ("profile", "AKIAPROFILE", "eu-west-1", {"profile": "tests", "region": "eu-west-1"}),
    ):
        s3_server.empty()
        with recording(s3_server.port) as (url, heads):
            policy = files(store=f"s3://{BUCKET}/{name}", s3={"endpoint": url, **more})
            async with a_site(tmp_path / name, policy) as site:
                file = (await upload(site)).json()["id"]
                assert (await site.gateway.http.get(f"/v1/files/{file}/content")).content == b"x" * 10
                (found,) = s3_server.keys()
                assert found.startswith(f"{name}/") and not (site.folder / "state" / "files").exists()
        assert all(f"Credential={who}/" in head and f"/{region}/s3/" in head for head in heads)
        assert ("temporary" in heads[0].lower()) == ("session_token" in more)


ROWS = [
    Row("files", files(enabled=False), uploads(10), 404, 200),
    Row("files.enabled", files(enabled=False), uploads(10), 404, 200),
    Row("files.path", files(path="elsewhere"), in_folder("elsewhere"), 1, 0),
    Row("files.max_bytes", files(max_bytes="1KiB"), uploads(2000), 413, 200),
    # A form is some two hundred bytes longer than its file.
    Row("files.max_tenant_bytes", files(max_tenant_bytes="4KiB"), uploads(2000, 2000), 400, 200),
    Row("files.max_tenant_files", files(max_tenant_files=1), uploads(10, 10), 400, 200),
    Row("files.max_age", files(max_age="1s"), again(pause=1.1), 404, 200),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)
