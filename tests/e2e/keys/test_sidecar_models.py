"""What those keys do that need the sidecar: of the semantic cache, of guards with models, of ``sidecar`` itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.keys.conftest import Folders
from tests.e2e.keys.harness import Site, a_site, on, shows, status
from tests.serving import KEY, OTHER_KEY, key
from tests.sidecars import SidecarProcess

pytestmark = pytest.mark.anyio

QUESTION, SAME, ALIKE = (
    "How do I reset my password?",
    "how do i reset my password",
    "How can I reset my password?",
)
LONG = {"backends": {"script": {"script": [{"reply": "word " * 600}]}}}
VECTORS = {"backends": {"vectors": {"kind": "sidecar"}}, "models": {"vectors": on("vectors")}}
_numbers = count()

See = Callable[[Site, bool], Awaitable[bool]]


def semantic(**more: Any) -> dict[str, Any]:
    """For a tenant that nobody has heard of: two experiments share no answers."""
    tenant = f"tenant-{next(_numbers)}"
    keys = [key(KEY, "one", tenant=tenant), key(OTHER_KEY, "two", tenant=tenant)]
    return {"caches": {"semantic": more}, "keys": keys}


async def is_cached(site: Site, words: str, expected: bool, token: str = KEY) -> bool:
    """Whether an answer is there; it is kept beside the one that was given, and looked for in a tenth of a second.
    What is ``expected`` may take its time on a busy machine."""
    for _ in range(100 if expected else 6):
        answer = await site.ask(words, token=token, headers={"cache-control": "only-if-cached"})
        if answer.headers.get("x-tollgate-cache") in ("exact", "semantic"):
            return True
        await asyncio.sleep(0.1)
    return False


async def kept(site: Site, words: str) -> None:
    """An answer to ``words`` is asked for, and there."""
    await site.ask(words)
    assert await is_cached(site, words, True), (words, site.folder.name)


def answered(asked: str = SAME, first: str = QUESTION, pause: float = 0.0, token: str = KEY) -> See:
    """Whether ``asked`` is answered by what is kept of ``first``."""

    async def look(site: Site, expected: bool) -> bool:
        await site.ask(first)
        await asyncio.sleep(pause)
        return await is_cached(site, asked, expected, token)

    return look


CACHED: list[tuple[str, Mapping[str, Any], Mapping[str, Any], See, bool]] = [
    # key, given, without, what is looked at, what is seen given the key: the contrary is seen without it
    ("caches.semantic", {}, {"mode": "off"}, answered(), True),
    ("caches.semantic.mode", {"mode": "shadow"}, {"mode": "on"}, answered(), False),
    ("caches.semantic.error_budget", {"error_budget": 0.0}, {"error_budget": 0.5}, answered(ALIKE), False),
    (
        "caches.semantic.threshold",
        {"error_budget": 0.5, "threshold": 1.0},
        {"error_budget": 0.5},
        answered(ALIKE),
        False,
    ),
    ("caches.semantic.ttl", {"ttl": "50ms"}, {}, answered(pause=0.3), False),
    ("caches.semantic.per", {"per": "key"}, {}, answered(token=OTHER_KEY), False),
    (
        "caches.semantic.time_sensitive_ttl",
        {"time_sensitive_ttl": "1h"},
        {},
        answered("what is the weather in oslo today", "What is the weather in Oslo today?"),
        True,
    ),
]


@shows(*(case[0] for case in CACHED))
@pytest.mark.parametrize(
    ("name", "given", "without", "look", "sees"), CACHED, ids=[case[0] for case in CACHED]
)
async def test_the_semantic_cache(
    name: str, given: Any, without: Any, look: See, sees: bool, tmp_path: Path, models: SidecarProcess
) -> None:
    for settings, expected in ((given, sees), (without, not sees)):
        policy = semantic(**settings)
        async with a_site(tmp_path / str(expected), policy, sidecar=models.path) as site:
            assert await look(site, expected) is expected, (name, settings)


@shows("caches.semantic.max_entry")
async def test_longer_answers_are_not_kept(tmp_path: Path, models: SidecarProcess) -> None:
    for size, expected in (("1KiB", False), ("1MiB", True)):
        policy = LONG | semantic(max_entry=size)
        async with a_site(tmp_path / size, policy, sidecar=models.path) as site:
            assert await answered()(site, expected) is expected


@shows("caches.semantic.max_entries", "caches.semantic.max_bytes")
async def test_the_room_of_the_sidecar(tmp_path: Path, models: SidecarProcess, tight: SidecarProcess) -> None:
    """The first of three small answers makes room for the third; the first of two for one that is large."""
    reply = [{"match": "whale", "reply": "w" * 9000}, {"reply": "short"}]
    script = {"backends": {"script": {"script": reply}}}
    others = ("Who wrote Hamlet?", "What do penguins eat?")
    for process, stays in ((models, True), (tight, False)):
        async with a_site(tmp_path / f"entries-{stays}", script | semantic(), sidecar=process.path) as site:
            for words in (QUESTION, *others):
                await kept(site, words)
            assert await is_cached(site, QUESTION, stays) is stays
        async with a_site(tmp_path / f"bytes-{stays}", script | semantic(), sidecar=process.path) as site:
            for words in (QUESTION, "How large is a whale?"):
                await kept(site, words)
            assert await is_cached(site, QUESTION, stays) is stays


def computed(process: SidecarProcess) -> int:
    """Batches that it has computed."""
    state = process._status()
    assert state is not None
    return int(state["batches"])


@shows("sidecar", "sidecar.max_queue", "sidecar.max_batch")
async def test_what_waits_there(tmp_path: Path, models: SidecarProcess, tight: SidecarProcess) -> None:
    """One request's texts go together, as far as they may; of many requests at once the room is for few."""
    for process, batches, refuses in ((models, 1, False), (tight, 2, True)):
        async with a_site(tmp_path / str(batches), VECTORS, sidecar=process.path) as site:

            async def embed(*texts: str, site: Site = site) -> int:
                body = {"model": "vectors", "input": list(texts)}
                return (await site.post("/v1/embeddings", body)).status_code

            before = computed(process)
            assert await embed("north", "south") == 200
            assert computed(process) - before == batches
            assert (503 in await asyncio.gather(*(embed(f"{n} apples") for n in range(40)))) is refuses


def named(folders: Folders, **more: Any) -> dict[str, Any]:
    guard = {"kind": "pii", "action": "block", "entities": ["PERSON"], "timeout": "60s", **more}
    return {"guards": {"it": guard}, "sidecar": {"spacy": folders.spacy}}


@shows("guards.<name>.languages (pii)", "guards.<name>.threshold (pii)", "sidecar.spacy")
async def test_names(tmp_path: Path, models: SidecarProcess, folders: Folders) -> None:
    """The model of English knows Ann, with a score of 0.85; that of German does not."""
    for more, expected in (({}, 400), ({"languages": ["de"]}, 200), ({"threshold": 0.99}, 200)):
        async with a_site(tmp_path / str(more), named(folders, **more), sidecar=models.path) as site:
            assert await status("Is it Ann?")(site) == expected, more


@pytest.mark.parametrize("kind", ["injection", "toxicity"])
@shows(
    *(
        f"guards.<name>.classifier{key} ({kind})"
        for kind in ("injection", "toxicity")
        for key in ("", ".model", ".unsafe")
    )
)
async def test_a_classifier_of_ones_own(
    kind: str, tmp_path: Path, models: SidecarProcess, folders: Folders
) -> None:
    """It is a third sure of each of its labels, whatever it reads."""
    here, both = str(folders.classifier), ["rude", "vile"]
    for classifier, expected in (
        ({"model": here, "unsafe": both}, 400),
        ({"model": here, "unsafe": ["rude"]}, 200),
        ({"model": "/no/such/model", "unsafe": both}, 503),
        (None, 200),
    ):
        guard = {
            "kind": kind,
            "action": "block",
            "checks": ["model"],
            "timeout": "60s",
            "classifier": classifier,
        }
        policy = {"guards": {"it": {name: value for name, value in guard.items() if value is not None}}}
        async with a_site(tmp_path / f"{expected}-{classifier is None}", policy, sidecar=models.path) as site:
            assert await status("Hello there.")(site) == expected, classifier
