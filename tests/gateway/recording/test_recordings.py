"""Recordings through a gateway: what is kept of whom, how it is masked, and what crashes and faults leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.databases.opening import open_tables
from gateway.databases.sqlite import SqliteDatabase
from gateway.files.blobs import BlobError
from gateway.files.folder import FolderBlobs
from gateway.lab.traffic.ledger import read_ledger
from gateway.observe.ended import Ended
from gateway.policy.schema import LedgerSettings, Policy
from gateway.recording.archive import Archive
from gateway.recording.data_keys import DataKeys, KeyNotOurs
from gateway.recording.opening import RecordingPlaces
from gateway.recording.operator_secret import SecretError, operator_secret
from gateway.recording.recorded_request import RecordedRequest
from gateway.recording.recording_table import RECORDINGS, RecordingTable
from gateway.recording.segment import SegmentFile
from gateway.recording.shipping import Shipping
from gateway.recording.snapshot import Snapshot
from gateway.types import Call, ChatRequest, Principal, Receipt
from tests.fakes import FakeUpstream, answer_events, completion, reply, stream
from tests.ports import free_port
from tests.postgres_server import PostgresServer
from tests.recordings import at_once, recorded
from tests.s3_server import BUCKET, S3Server
from tests.serving import KEY, OTHER_KEY, Gateway, key, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)


@asynccontextmanager
async def a_gateway(folder: Path, url: str, record: dict[str, Any], **more: Any) -> AsyncIterator[Gateway]:
    policy = {
        "version": 1,
        "backends": {"up": {"kind": "openai", "base_url": url}},
        "models": {"m": {"targets": [{"backend": "up", "model": "x"}], "retry": {"attempts": 1}}},
        "prices": {"x": {"input": 1.0, "output": 2.0}},
        "keys": [key(KEY, "one", tenant="acme"), key(OTHER_KEY, "two", tenant="rival")],
        "record": {"enabled": True, "rotate": "50ms", **record},
        **more,
    }
    async with serving(folder / "policies", policy) as gateway:
        yield gateway


async def ask(gateway: Gateway, content: Any = "Hello", **body: Any) -> int:
    asked = {"model": "m", "messages": [{"role": "user", "content": content}], **body}
    return (await gateway.http.post("/v1/chat/completions", json=asked)).status_code


async def test_a_request_is_kept_with_what_was_decided_and_what_it_took(tmp_path: Path) -> None:
    quotas = {"acme": {"quotas": {"requests_per_minute": 2}}}
    events = stream(*answer_events("Hello ", "there"))
    async with (
        FakeUpstream(reply(completion()), events) as up,
        a_gateway(tmp_path, up.base_url, {}, tenants=quotas) as gateway,
    ):
        assert await ask(gateway, user="ann@example.com", max_tokens=9) == 200
        assert await ask(gateway, "x" * 600, stream=True) == 200
        assert await ask(gateway) == 429
        whole, streamed, refused = await recorded(tmp_path, 3)
    assert (whole.tenant, whole.key, whole.api, whole.model, whole.answered) == (
        "acme",
        "one",
        "chat",
        "m",
        "m",
    )
    assert (whole.backend, whole.target, whole.max_tokens, whole.finish_reason) == ("up", "x", 9, "stop")
    assert whole.user and "ann" not in whole.user and whole.cost > 0 and whole.generation == 1
    assert whole.ttft and whole.duration and whole.ttft <= whole.duration
    assert (whole.outcome, whole.text, whole.stream, streamed.stream) == ("completed", None, False, True)
    assert len(streamed.blocks) == 2 and streamed.finish_reason == "stop" and streamed.completion_tokens > 0
    assert (refused.outcome, refused.status, refused.answered) == ("refused", 429, "")
    assert refused.code == "rate_limit_exceeded" and refused.prompt_tokens > 0
    earlier = read_ledger(SqliteDatabase(tmp_path / "state" / "ledger.sqlite"))
    for ours, theirs in zip((whole, streamed, refused), earlier, strict=True):
        for name in (
            "at",
            "request_id",
            "tenant",
            "key",
            "model",
            "answered",
            "backend",
            "target",
            "outcome",
            "ttft",
        ):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert (ours.status, ours.code, ours.cost) == (theirs.status, theirs.code, theirs.cost)
        assert (ours.completion_tokens, ours.finish_reason) == (
            theirs.completion_tokens,
            theirs.finish_reason,
        )
    assert len({whole.prompt_key, streamed.prompt_key, refused.prompt_key}) == 3


async def test_a_request_for_an_unknown_model_is_kept_for_a_policy_that_has_it(tmp_path: Path) -> None:
    async with (
        FakeUpstream(reply(completion())) as up,
        a_gateway(tmp_path, up.base_url, {"texts": "masked", "tenants": ["acme"]}) as gateway,
    ):
        assert await ask(gateway, "write to ann@example.com", model="new", max_tokens=9) == 404
        count = {"model": "new", "messages": [{"role": "user", "content": "Hi"}]}
        assert (await gateway.http.post("/v1/messages/count_tokens", json=count)).status_code == 404
        of_rival = await gateway.http.post(
            "/v1/chat/completions", json=count, headers={"authorization": f"Bearer {OTHER_KEY}"}
        )
        assert of_rival.status_code == 404
        assert await ask(gateway) == 200
        unknown, known = await recorded(tmp_path, 2)
    assert (unknown.tenant, unknown.key, unknown.api, unknown.model) == ("acme", "one", "chat", "new")
    assert (unknown.outcome, unknown.status, unknown.code) == ("refused", 404, "model_not_found")
    assert (unknown.answered, unknown.backend, unknown.cost, unknown.max_tokens) == ("", "", 0.0, 9)
    assert unknown.prompt_tokens > 0 and unknown.prompt_key
    assert unknown.text and "write to" in unknown.text and "ann@" not in unknown.text
    assert known.outcome == "completed"


async def test_texts_are_masked_whatever_the_policys_guards_do(tmp_path: Path) -> None:
    """Its own guard finds what no other does, and only flags; what it is not told to find is found all the same."""
    ours = {
        "kind": "pii",
        "action": "flag",
        "entities": ["EMAIL_ADDRESS"],
        "patterns": {"STAFF": "S-[0-9]{4}"},
    }
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    content = [{"type": "text", "text": "S-1234, 4012888888881881, ann@example.com"}, picture]
    answers = [
        reply(completion("Ask bob@example.com or S-9999.")),
        stream(*answer_events("bob@exa", "mple.com")),
    ]
    async with (
        FakeUpstream(*answers) as up,
        a_gateway(tmp_path, up.base_url, {"texts": "masked"}, guards={"staff": ours}) as gateway,
    ):
        assert await ask(gateway, content) == 200
        assert await ask(gateway, "Who?", stream=True) == 200
        assert await ask(gateway, "Not this one", store=False) == 200
        whole, streamed, unstored = await recorded(tmp_path, 3)
    assert whole.text is not None and streamed.text is not None
    assert json.loads(whole.text) == {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<STAFF_1>, <CREDIT_CARD_1>, <EMAIL_ADDRESS_1>"},
                    {"type": "text", "text": "[image]"},
                ],
            }
        ],
        "answers": [{"role": "assistant", "content": "Ask <EMAIL_ADDRESS_2> or <STAFF_2>."}],
        "params": {},
    }
    assert json.loads(streamed.text)["answers"] == [{"role": "assistant", "content": "<EMAIL_ADDRESS_1>"}]
    assert (unstored.text, unstored.blocks, unstored.prompt_key) == (None, (), "")


async def test_a_text_that_cannot_be_judged_is_not_kept(tmp_path: Path) -> None:
    """There is no sidecar here that finds names."""
    names = {"kind": "pii", "action": "flag", "entities": ["PERSON"]}
    async with (
        FakeUpstream() as up,
        a_gateway(tmp_path, up.base_url, {"texts": "masked"}, guards={"names": names}) as gateway,
    ):
        assert await ask(gateway, "I am Ann") == 200
        (one,) = await recorded(tmp_path, 1)
        assert one.text is None and one.prompt_key
        metrics = await gateway.metrics()
        assert metrics['tollgate_recorded_requests_total{outcome="without_text"}'] == 1


async def test_requests_are_masked_by_the_generation_that_they_began_under(tmp_path: Path) -> None:
    guard = {
        "kind": "pii",
        "action": "flag",
        "entities": ["EMAIL_ADDRESS"],
        "patterns": {"STAFF": "S-[0-9]{4}"},
    }
    held = asyncio.Event()
    async with (
        FakeUpstream((held, *reply(completion()))) as up,
        a_gateway(tmp_path, up.base_url, {"texts": "masked"}, guards={"staff": guard}) as gateway,
    ):
        asked = asyncio.create_task(ask(gateway, "S-1234"))
        async with asyncio.timeout(300):
            while not up.requests:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        text = (gateway.folder / "gateway.yaml").read_text()
        gateway.write(text.replace("S-[0-9]{4}", "T-[0-9]{4}"))
        await gateway.generation(2)
        held.set()
        assert await asked == 200
        (one,) = await recorded(tmp_path, 1)
    assert one.text is not None and "<STAFF_1>" in one.text and one.generation == 1


# Without a gateway: segments on their way, in both databases.


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest) -> LedgerSettings:
    if request.param == "sqlite":
        return LedgerSettings()
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return LedgerSettings(store=server.url(server.new_database()))


def opened(ledger: LedgerSettings, folder: Path) -> RecordingPlaces:
    table = RecordingTable(open_tables(RECORDINGS, ledger, folder))
    return RecordingPlaces(table, FolderBlobs(folder / "kept"), folder / "kept" / "open", lambda: "s" * 40)


def shipping(places: RecordingPlaces, **more: Any) -> Shipping:
    given = {"retention": 1e11, "max_bytes": 2**40, "sweeps": True, **more}
    return Shipping(places.spool, places.table, places.blobs, **given)


def some(tenant: str, *times: float) -> list[RecordedRequest]:
    return [RecordedRequest(at=at, tenant=tenant, request_id=f"{tenant}-{at:g}") for at in times]


def kept(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.joinpath("kept").iterdir() if one.is_file())


def test_what_was_added_is_listed_read_and_deleted_by_tenant(ledger: LedgerSettings, tmp_path: Path) -> None:
    places = opened(ledger, tmp_path)
    archive = Archive(places)
    assert archive.listed() == [] and list(archive.read()) == [] and archive.delete("acme") == 0
    assert archive.add([*some("acme", 1.0, 5.0), *some("rival", 3.0)]) == 3
    assert archive.add(some("rival", 9.0)) == 1
    assert [(one.tenant, one.requests, one.segments) for one in archive.listed()] == [
        ("acme", 2, 1),
        ("rival", 2, 2),
    ]
    assert [one.request_id for one in archive.read(["rival"])] == ["rival-3", "rival-9"]
    assert [one.at for one in archive.read(since=3.0, until=9.0)] == [5.0, 3.0]
    copies = {name: (tmp_path / "kept" / name).read_bytes() for name in kept(tmp_path)}
    assert archive.delete("rival") == 2
    assert [one.request_id for one in archive.read()] == ["acme-1", "acme-5"]
    assert len(kept(tmp_path)) == 1  # the other held nothing else
    # Who still has a copy, and the secret, reads nothing of it: a key that comes later is another one.
    archive.add(some("rival", 20.0))
    for name, copy in copies.items():
        (tmp_path / "kept" / name).write_bytes(copy)
    assert [one.request_id for one in Archive(places).read(["rival"])] == ["rival-20"]


def test_a_store_that_is_away_loses_nothing_and_another_process_goes_on(
    ledger: LedgerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = opened(ledger, tmp_path)
    keys = DataKeys(places.table, places.secret)
    segment = SegmentFile.create(places.spool)
    segment.append(keys.of("acme"), some("acme", 1.0))
    now = [1000.0]
    mine = shipping(places, clock=lambda: now[0])
    mine.put(segment)

    def away(name: str) -> None:
        raise BlobError("it is away")

    with monkeypatch.context() as patched:
        patched.setattr(FolderBlobs, "delete", lambda self, name: away(name))
        mine.turn()
        assert mine.waiting == 1 and kept(tmp_path) == []
    mine.turn()
    assert mine.waiting == 1  # it is not asked all the time
    mine.release()  # this process ends
    other = shipping(places)
    other.turn()
    assert other.waiting == 0 and len(kept(tmp_path)) == 1 and list(places.spool.iterdir()) == []
    assert [one.at for one in Archive(places).read()] == [1.0]


def test_an_open_segment_of_a_process_that_is_gone_is_put_away_with_what_it_holds(
    ledger: LedgerSettings, tmp_path: Path
) -> None:
    places = opened(ledger, tmp_path)
    keys = DataKeys(places.table, places.secret)
    segment = SegmentFile.create(places.spool)
    segment.append(keys.of("acme"), some("acme", 1.0, 2.0))
    size = segment.size
    segment.append(keys.of("acme"), some("acme", 3.0))
    shipping(places).turn()
    assert segment.path.exists()  # it is written to
    segment.release()
    with segment.path.open("r+b") as file:
        file.truncate(size + 10)
    (places.spool / "odd.segment").write_bytes(b"no segment of ours, by any means")
    shipping(places).turn()
    assert [one.at for one in Archive(places).read()] == [1.0, 2.0]
    assert [one.name for one in places.spool.iterdir()] == ["odd.damaged"]


def test_the_oldest_go_when_their_time_is_over_or_there_are_too_many(
    ledger: LedgerSettings, tmp_path: Path
) -> None:
    places = opened(ledger, tmp_path)
    archive, mine = Archive(places), shipping(places)
    for at in (100.0, 200.0, 300.0):
        segment = SegmentFile.create(places.spool)
        segment.append(DataKeys(places.table, places.secret).of("acme"), some("acme", at))
        mine.put(segment)
    mine.turn()
    shipping(places, retention=150.0, clock=lambda: 320.0).turn()
    assert [one.at for one in archive.read()] == [200.0, 300.0]
    (size, _) = ((tmp_path / "kept" / name).stat().st_size for name in kept(tmp_path))
    shipping(places, max_bytes=size + 10).turn()
    assert [one.at for one in archive.read()] == [300.0]
    assert len(kept(tmp_path)) == 1


def test_the_age_of_what_was_imported_counts_from_then(ledger: LedgerSettings, tmp_path: Path) -> None:
    places = opened(ledger, tmp_path)
    Archive(places).add(some("acme", 1.0))
    shipping(places, retention=86_400.0).turn()
    assert [one.at for one in Archive(places).read()] == [1.0]


def test_two_gateways_have_the_same_data_key_and_one_with_another_secret_none(
    ledger: LedgerSettings, tmp_path: Path
) -> None:
    places = opened(ledger, tmp_path)
    first, second = DataKeys(places.table, places.secret), DataKeys(places.table, places.secret)
    assert first.of("acme") == second.of("acme") == first.of("acme")
    with pytest.raises(KeyNotOurs, match=r"'record.key_file'"):
        DataKeys(places.table, lambda: "t" * 40).of("acme")


def test_a_key_that_was_deleted_is_used_for_a_moment_at_most(ledger: LedgerSettings, tmp_path: Path) -> None:
    places = opened(ledger, tmp_path)
    now = [0.0]
    keys = DataKeys(places.table, places.secret, lambda: now[0])
    before = keys.of("acme")
    places.table.forget("acme")
    assert keys.of("acme") == before
    now[0] = 31.0
    after = keys.of("acme")
    assert after.id != before.id
    segment = SegmentFile.create(places.spool)
    segment.append(before, some("acme", 1.0))
    mine = shipping(places)
    mine.put(segment)
    mine.turn()
    assert kept(tmp_path) == [] and mine.waiting == 0  # what the deleted key sealed is not kept


def test_the_secret_is_made_once_and_one_that_is_none_is_said(tmp_path: Path) -> None:
    made = operator_secret(None, tmp_path)
    assert len(made) == 64 and operator_secret(None, tmp_path) == made
    assert (tmp_path / "record.key").stat().st_mode & 0o077 == 0
    (tmp_path / "short").write_text("abc\n")
    with pytest.raises(SecretError, match="holds 3 characters"):
        operator_secret(str(tmp_path / "short"), tmp_path)
    with pytest.raises(SecretError, match=r"record\.key_file"):
        operator_secret(str(tmp_path / "none"), tmp_path)


async def lost_or_waiting(gateway: Gateway, name: str) -> None:
    async with asyncio.timeout(300):
        while not (await gateway.metrics()).get(name):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_where_nothing_can_be_written_requests_are_answered_and_the_loss_is_counted(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("no folder")
    async with (
        FakeUpstream() as up,
        a_gateway(tmp_path, up.base_url, {"path": str(tmp_path / "file" / "recordings")}) as gateway,
    ):
        assert await ask(gateway) == 200
        await lost_or_waiting(gateway, 'tollgate_recorded_requests_total{outcome="lost"}')
        assert await ask(gateway) == 200


async def test_segments_wait_for_a_bucket_that_is_away_and_go_there(
    s3_server: S3Server, tmp_path: Path
) -> None:
    """The next gateway puts away what the one before could not."""
    s3_server.empty()
    where = {"access_key_id": "k", "secret_access_key": "s"}
    async with FakeUpstream() as up:
        away = {"store": f"s3://{BUCKET}/t", "s3": {"endpoint": f"http://127.0.0.1:{free_port()}", **where}}
        async with a_gateway(tmp_path, up.base_url, {}, files=away) as gateway:
            assert await ask(gateway) == 200
            await lost_or_waiting(gateway, "tollgate_recordings_waiting")
            assert await ask(gateway) == 200
        assert s3_server.keys() == []
        there = {**away, "s3": {"endpoint": s3_server.url, **where}}
        async with a_gateway(tmp_path, up.base_url, {}, files=there) as gateway:
            assert len(await recorded(tmp_path, 1)) >= 1
            names = s3_server.keys()
            assert names and all(name.startswith("t/recordings/") for name in names)


async def test_what_the_responses_api_is_not_to_store_is_not_kept(tmp_path: Path) -> None:
    async with FakeUpstream() as up, a_gateway(tmp_path, up.base_url, {"texts": "masked"}) as gateway:
        for store in (True, False):
            asked = {"model": "m", "input": "Hello", "store": store}
            assert (await gateway.http.post("/v1/responses", json=asked)).status_code == 200
        stored, unstored = await recorded(tmp_path, 2)
    assert (stored.api, unstored.api) == ("responses", "responses")
    assert stored.text is not None and stored.prompt_key
    assert (unstored.text, unstored.prompt_key) == (None, "")


async def test_what_is_to_stay_in_another_region_is_not_kept_in_the_bucket(
    s3_server: S3Server, tmp_path: Path
) -> None:
    """Where the gateway is allowed to keep nothing of a content, figures are kept all the same."""
    s3_server.empty()
    bucket = {
        "store": f"s3://{BUCKET}/local",
        "s3": {"endpoint": s3_server.url, "access_key_id": "k", "secret_access_key": "s"},
    }
    async with FakeUpstream() as up:
        local = {"up": {"kind": "openai", "base_url": up.base_url, "local": True}}
        tenants = {"acme": {"local_only": True}}
        async with a_gateway(
            tmp_path, up.base_url, {"texts": "masked"}, files=bucket, tenants=tenants, backends=local
        ) as gateway:
            assert await ask(gateway, "x" * 600) == 200
            (one,) = await recorded(tmp_path, 1)
    assert (one.text, one.blocks, one.prompt_key) == (None, (), "") and one.completion_tokens > 0


def test_what_waits_is_bounded_by_its_size_pictures_included() -> None:
    principal = Principal("one", "acme")
    picture = {"type": "image_url", "image_url": {"url": "x" * 100_000}}
    sizes = []
    for content in ("Hello", [picture]):
        request = ChatRequest("m", messages=({"role": "user", "content": content},))
        policy = Policy.model_validate(
            {
                "version": 1,
                "backends": {"up": {"kind": "fake", "script": [{"reply": "Hi"}]}},
                "models": {"m": {"targets": [{"backend": "up", "model": "x"}]}},
            }
        )
        call = Call("r", principal, request, policy, Receipt("r", 0.0), 0.0)
        sizes.append(Snapshot.of(call, Ended(call), generation=1, has_content=True, answer=None).size)
    assert sizes[1] - sizes[0] > 100_000
