"""The process as it is, over its socket."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.sidecar.api import SidecarBusy, SidecarDown, SidecarError, SidecarLoading
from gateway.sidecar.client import SidecarClient
from gateway.sidecar.config import CONFIG, SidecarConfig
from tests.fakes import within
from tests.sidecars import ROOT, SidecarProcess

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(sidecar: SidecarProcess) -> AsyncIterator[SidecarClient]:
    client = sidecar.client()
    yield client
    await client.aclose()


@pytest.fixture(scope="module")
def small() -> Iterator[SidecarProcess]:
    """With a head of its own, ``whole``, for a mean and a maximum; and with narrow bounds."""
    with tempfile.TemporaryDirectory(prefix="tg-") as name:
        folder = Path(name)
        write_head(folder / "heads" / "whole.npz", ["mean2", "max6"])
        write_head(folder / "heads" / "other.npz", ["mean6"])
        write_head(folder / "heads" / "foreign.npz", ["mean12"])
        (folder / "heads" / "broken.npz").write_bytes(b"no head")
        process = SidecarProcess(folder, heads=str(folder / "heads"), max_queue=24, max_windows=4)
        process.start()
        yield process
        process.kill()


def write_head(path: Path, pools: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    width = 384 * len(pools)
    rng = np.random.default_rng(1)
    np.savez(
        path,
        pools=np.array(pools),
        labels=np.array(["one", "two"]),
        mean=np.zeros(width, np.float16),
        scale=np.ones(width, np.float16),
        w0=rng.normal(0, 0.1, (width, 2)).astype(np.float16),
        b0=np.zeros(2, np.float16),
    )


@pytest.fixture
async def own(small: SidecarProcess) -> AsyncIterator[SidecarClient]:
    client = small.client()
    yield client
    await client.aclose()


def dot(a: bytes, b: bytes) -> float:
    one, other = (struct.unpack(f"<{len(x) // 4}f", x) for x in (a, b))
    return sum(x * y for x, y in zip(one, other, strict=True))


async def settled(client: SidecarClient) -> dict[str, Any]:
    async with asyncio.timeout(300):
        while (status := await client.status())["queue"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return dict(status)


async def test_like_sentences_have_like_embeddings_of_length_one(client: SidecarClient) -> None:
    cat, kitten, tax = await client.embed(["A cat sleeps.", "A kitten is asleep.", "Taxes are due in April."])
    assert len(cat) == 4 * 384
    assert dot(cat, cat) == pytest.approx(1, abs=1e-5)
    assert dot(cat, kitten) > 0.6 > 0.3 > dot(cat, tax)


async def test_company_in_a_batch_changes_next_to_nothing(
    sidecar: SidecarProcess, client: SidecarClient
) -> None:
    texts = [f"Sentence number {n} " + "goes on " * n for n in range(12)]
    alone = [(await client.embed([text]))[0] for text in texts]
    # The same words but for the case, which the model does not see: no encoding of before will do.
    together = await client.embed([text.upper() for text in texts])
    assert min(dot(one, other) for one, other in zip(alone, together, strict=True)) > 0.9999


async def test_a_long_text_has_the_embedding_of_its_beginning(client: SidecarClient) -> None:
    long = "The river rises in the hills and runs north. " * 40
    one, other = await client.embed([long, long + "Taxes are due in April. " * 300])
    assert dot(one, other) > 0.9999


async def test_texts_of_all_callers_share_forward_passes(own: SidecarClient, small: SidecarProcess) -> None:
    before = await settled(own)
    other = small.client()
    async with asyncio.TaskGroup() as group:
        for n in range(10):
            group.create_task(own.embed([f"shared by both {n}", f"of one alone {n}"]))
            group.create_task(other.embed([f"shared by both {n}"]))
    after = await settled(own)
    await other.aclose()
    assert after["encoded"] - before["encoded"] == 20
    assert after["batches"] - before["batches"] <= 5


async def test_embedding_and_all_heads_cost_one_pass(own: SidecarClient) -> None:
    before = await settled(own)
    text = "What is said of a text once need not be worked out again."
    await own.embed([text])
    for head in ("whole", "other"):
        ((scored,),) = await own.score(head, [text])
        assert (scored.start, scored.end) == (0, len(text))
        assert set(scored.scores) == {"one", "two"}
        assert all(0 < score < 1 for score in scored.scores.values())
    after = await settled(own)
    assert after["encoded"] - before["encoded"] == 1


async def test_heads_that_cannot_judge_say_so(own: SidecarClient) -> None:
    with pytest.raises(SidecarError, match="no head 'nosuch'; there are: foreign, other, whole"):
        await own.score("nosuch", ["x"])
    with pytest.raises(SidecarError, match="'foreign' needs the embedder 'builtin'"):
        await own.score("foreign", ["x"])


async def test_long_texts_are_judged_window_by_window(own: SidecarClient) -> None:
    text = "Each of these sentences has ten words and a stop. " * 50
    (windows,) = await own.score("whole", [text])
    assert len(windows) == 3
    assert (windows[0].start, windows[-1].end) == (0, len(text))
    for before, after in pairwise(windows):
        assert before.start < after.start < before.end < after.end
        assert text[after.start - 1] == " " != text[after.start]


async def test_a_text_too_long_to_be_judged_in_full_is_not_judged_in_part(own: SidecarClient) -> None:
    for times in (300, 100_000):
        with pytest.raises(SidecarError, match="the text is too long"):
            await own.score("whole", ["quite a few words " * times])


@pytest.mark.parametrize("text", ["", " ", "\n" * 500, "x" * 5000, "\ud800", "각" * 200, "😀" * 300, "\0"])
async def test_odd_texts_are_judged_from_end_to_end(own: SidecarClient, text: str) -> None:
    (windows,) = await own.score("whole", [text])
    assert (windows[0].start, windows[-1].end) == (0, len(text))
    assert len(await own.embed([text])) == 1


async def test_a_full_queue_is_said_at_once(own: SidecarClient) -> None:
    async with within(1):
        with pytest.raises(SidecarBusy, match="24 are the limit"):
            await own.embed([f"one of many {n}" for n in range(25)])
    assert len(await own.embed(["there is room again"])) == 1


async def test_more_windows_than_the_queue_has_room_for_are_judged_in_slices(own: SidecarClient) -> None:
    texts = [f"text {n} of many that come in one request" for n in range(40)]
    assert len(await own.score("whole", texts)) == 40


async def test_a_short_text_does_not_wait_behind_all_of_a_long_one(own: SidecarClient) -> None:
    long = [f"{n} " + "words without an end " * 60 for n in range(24)]
    scoring = asyncio.create_task(own.score("whole", long))
    while not (await own.status())["queue"]:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await own.score("whole", ["a short one"])
    assert not scoring.done()
    await scoring


async def test_cancelled_work_is_not_done(own: SidecarClient) -> None:
    before = await settled(own)
    long = [f"{n} " + "texts that go on and on " * 60 for n in range(24)]
    task = asyncio.create_task(own.embed(long))
    while (await own.status())["encoded"] == before["encoded"]:
        assert not task.done(), "nobody saw it begin"
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.2)
    after = await settled(own)
    # A busy machine may have got some way before it is told.
    assert after["encoded"] - before["encoded"] < len(long) - 8


async def test_names_in_texts_of_any_length(client: SidecarClient) -> None:
    short, name = "My name is Beatrix Holloway.", "Beatrix Holloway"
    long = f"{'Nothing is said here. ' * 120}{short} {'Nor is it here. ' * 120}"
    found = await client.entities([short, "", long], language="en", entities=["PERSON", "ADDRESS"])
    assert [
        [(it.label, text[it.start : it.end]) for it in own if it.score >= 0.5]
        for text, own in zip((short, "", long), found, strict=True)
    ] == [[("PERSON", name)], [], [("PERSON", name)]]


async def test_what_it_was_started_without_it_says(own: SidecarClient) -> None:
    for asked in (
        own.entities(["x"], language="en", entities=["ES_PASSPORT"]),
        own.look_up("p", "q", budget=0.05, floor=0),
        own.classify("some/model", ["x"]),
    ):
        with pytest.raises(SidecarError, match=r"did not need|no guard of the policy"):
            await asked


async def test_status_tells_of_each_model(client: SidecarClient) -> None:
    status = await client.status()
    assert status["models"]["embedder"] == "ready"
    assert "loading" not in status["models"].values()


async def test_entities_come_from_presidio(client: SidecarClient) -> None:
    asked = await client.entities(
        ["Mail me at jo@example.com", ""], language="en", entities=["EMAIL_ADDRESS"]
    )
    assert [[(f.label, f.start, f.end) for f in found] for found in asked] == [
        [("EMAIL_ADDRESS", 11, 25)],
        [],
    ]
    with pytest.raises(SidecarError, match="NO_SUCH"):
        await client.entities(["x"], language="en", entities=["NO_SUCH"])


async def test_answers_are_remembered_found_and_forgotten(own_sidecar: SidecarProcess) -> None:
    asked = "How do I change the oil of a motor boat?"
    async with aclosing(own_sidecar.client()) as client:
        assert (await client.look_up("p", asked, budget=0.05, floor=0)).reason == "empty"
        await client.remember("p", asked, b"\xff\0 payload", key="k", ttl=60)
        look = await client.look_up("p", asked, budget=0.05, floor=0)
        assert look.hit is not None
        assert look.hit.payload == b"\xff\0 payload"
        assert look.hit.similarity == pytest.approx(1, abs=1e-3)
        assert (await client.status())["entries"] == 1
        assert (await client.look_up("other", asked, budget=0.05, floor=0)).hit is None
        await client.forget("p", "k")
        assert (await client.look_up("p", asked, budget=0.05, floor=0)).hit is None


async def test_killed_in_the_middle_all_under_way_ends_at_once_and_it_works_again(
    own_sidecar: SidecarProcess,
) -> None:
    client = own_sidecar.client()
    await client.embed(["before"])
    texts = ["words without an end " * 40 + str(n) for n in range(50)]
    tasks = [asyncio.create_task(client.embed([text])) for text in texts]
    while not (await client.status())["queue"]:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    own_sidecar.kill()
    async with within(0.5):
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, SidecarDown | list) for end in ends)
    assert sum(isinstance(end, SidecarDown) for end in ends) >= 40
    await asyncio.to_thread(own_sidecar.start)
    async with asyncio.timeout(300):
        while True:
            try:
                assert len(await client.embed(["after"])) == 1
                break
            except SidecarDown:  # the client's pause between attempts
                await asyncio.sleep(0.05)
    await client.aclose()


async def test_while_models_load_it_answers_and_says_so() -> None:
    with tempfile.TemporaryDirectory(prefix="tg-") as folder:
        process = SidecarProcess(Path(folder))
        starting = asyncio.create_task(asyncio.to_thread(process.start))
        client = process.client()
        loading = 0
        while not starting.done():
            try:
                await client.embed(["x"])
            except SidecarLoading as error:
                assert "'embedder' is still being loaded" in str(error)
                loading += 1
            except SidecarDown:
                pass
            await asyncio.sleep(0.02)
        await starting
        assert loading
        await client.aclose()
        process.kill()


async def test_without_its_packages_it_stays_and_says_what_to_install() -> None:
    with tempfile.TemporaryDirectory(prefix="tg-") as folder:
        hidden = Path(folder) / "torch"
        hidden.mkdir()
        (hidden / "__init__.py").write_text(
            "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
        )
        process = SidecarProcess(Path(folder), env={"PYTHONPATH": folder})
        await asyncio.to_thread(process.start)
        client = process.client()
        with pytest.raises(SidecarLoading, match=r"No module named 'torch'; .*pip install .*\[guards\]'"):
            await client.embed(["x"])
        assert process.log.read_text().count("pip install") == 1
        assert "Traceback" not in process.log.read_text()
        await client.aclose()
        process.kill()


def test_sigterm_ends_it_and_its_socket() -> None:
    with tempfile.TemporaryDirectory(prefix="tg-") as folder:
        process = SidecarProcess(Path(folder), embedder=None)
        process.start()
        assert process.process is not None
        process.process.terminate()
        assert process.process.wait(300) == 0
        assert not process.path.exists()


@pytest.mark.parametrize("config", [None, "{", '{"socket": "/x", "surprise": 1}'])
def test_started_by_hand_it_says_who_starts_it(config: str | None) -> None:
    environment = {**os.environ, **({CONFIG: config} if config else {})}
    command = [sys.executable, "-m", "gateway.sidecar.worker"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert "started by 'tollgate serve'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_config_survives_its_json() -> None:
    config = SidecarConfig(socket="/s", classifiers=("a", "b"), spacy={"en": "x"}, redis="redis://h/0")
    assert SidecarConfig.from_json(config.to_json()) == config


def test_a_model_that_cannot_be_loaded_is_named() -> None:
    with tempfile.TemporaryDirectory(prefix="tg-") as folder:
        process = SidecarProcess(
            Path(folder),
            embedder="nobody/nothing",
            classifiers=("/not/there",),
            spacy={"en": "en_none"},
            entities=True,
        )
        process.start()
        states = (process._status() or {})["models"]
        process.kill()
        log = process.log.read_text()
    assert states["embedder"].startswith("failed: 'nobody/nothing'")
    assert states["/not/there"] == "failed: there is no folder '/not/there'"
    assert "python -m spacy download en_none" in states["entities"]
    assert "Traceback" not in log
    assert len(log.splitlines()) == 3
