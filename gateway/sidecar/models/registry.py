"""The models of the sidecar's process, and the operations that they serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gateway import packages
from gateway.findings import Finding, joined
from gateway.pii.entities import is_tagged
from gateway.sidecar.api import SidecarBusy, SidecarError
from gateway.sidecar.batcher import Batcher, LengthBatcher, text_cost
from gateway.sidecar.config import SidecarConfig
from gateway.sidecar.fair_thread import FairThread
from gateway.sidecar.models.model_handle import ModelHandle, fill, naming, required
from gateway.sidecar.server import Response

if TYPE_CHECKING:
    from gateway.sidecar.models.classifier import TextClassifier
    from gateway.sidecar.models.embedder import Embedder, Floats
    from gateway.sidecar.models.entities import Entities
    from gateway.sidecar.models.heads import Head
    from gateway.sidecar.models.tagger import Tagger
    from gateway.sidecar.semantic.index import SemanticIndex

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_TEXTS = 1024
"""In one request."""
_CUT_INLINE = 2048
"""Characters that are cut into windows on the event loop, in a millisecond: waiting for a thread could take longer."""
_HEADS_AT_ONCE = 16
"""Encodings that a head scores at once."""


class ModelRegistry:
    """Loads the models that ``config`` names, in the background, and serves requests with those that are ready."""

    def __init__(self, config: SidecarConfig) -> None:
        self._config = config
        self._slots: dict[str, ModelHandle[Any]] = {}
        self._embedder: ModelHandle[Embedder] | None = self._slot("embedder") if config.embedder else None
        self._entities: ModelHandle[Entities] | None = self._slot("entities") if config.entities else None
        self._index: ModelHandle[SemanticIndex] | None = self._slot("index") if config.index else None
        self._classifiers: dict[str, ModelHandle[TextClassifier]] = {
            name: self._slot(name) for name in config.classifiers
        }
        self._heads: dict[str, Head] = {}
        self._short, self._long = (ThreadPoolExecutor(1, f"{name} texts") for name in ("short", "long"))
        """One forward pass of each at a time; torch parallelizes within it."""
        self._presidio = FairThread("presidio", config.max_queue)
        self._cutting = FairThread("cutting", 4 * config.max_queue)
        """Cuts long texts into windows, which must not wait for a forward pass."""
        self._encodings: LengthBatcher[Floats] = self._batched(lambda texts: self._embedding().encode(texts))
        self._tagger: Tagger | None = None
        self._tagged: LengthBatcher[list[Finding]] = self._batched(self._tag)
        self._classified: dict[str, LengthBatcher[Mapping[str, float]]] = {
            name: self._batched(partial(_classify, slot)) for name, slot in self._classifiers.items()
        }
        self._loading: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._ops: Mapping[str, Callable[..., Awaitable[Response]]] = {
            "embed": self._op_embed,
            "score": self._op_score,
            "classify": self._op_classify,
            "entities": self._op_entities,
            "look_up": self._op_look_up,
            "remember": self._op_remember,
            "forget": self._op_forget,
            "status": self._op_status,
        }

    def start(self) -> None:
        self._loading = asyncio.create_task(self._load(), name="load models")

    async def aclose(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            with suppress(asyncio.CancelledError):
                await self._loading
        batchers: list[LengthBatcher[Any]] = [self._encodings, self._tagged, *self._classified.values()]
        for batcher in batchers:
            await batcher.aclose()
        if self._index is not None and self._index.state == "ready":
            await self._index.get().aclose()
        for thread in (self._short, self._long, self._presidio.thread, self._cutting.thread):
            thread.shutdown(wait=False, cancel_futures=True)

    async def handle(self, op: str, arguments: Mapping[str, Any], payload: bytes) -> Response:
        """Answer a request. Raises ``SidecarError``."""
        if op not in self._ops:
            raise SidecarError(f"the sidecar knows no '{op}'")
        if payload:
            arguments = {**arguments, "payload": payload}
        return await self._ops[op](**arguments)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Sentence embeddings."""
        embedder = self._embedding()
        _check_count(texts)
        parts = await self._cut(texts, embedder.beginning)
        return [embedder.sentence(encoding) for encoding in await self._encodings.get(parts)]

    def _batched(self, compute: Callable[[Sequence[str]], Sequence[T]]) -> LengthBatcher[T]:
        config = self._config
        short, long = (
            Batcher(compute, thread, cost=text_cost, max_batch=config.max_batch, max_queue=config.max_queue)
            for thread in (self._short, self._long)
        )
        return LengthBatcher(short, long)

    def _slot(self, name: str) -> ModelHandle[Any]:
        self._slots[name] = slot = ModelHandle[Any](name)
        return slot

    async def _load(self) -> None:
        jobs = list(self._jobs())

        def failed() -> None:
            for slot, _, _ in jobs:
                slot.fail("its packages could not be installed")

        await packages.provide({module for _, needed, _ in jobs for module in needed}, failed=failed)
        await asyncio.gather(*(fill(*job, turn=self._one_at_a_time) for job in jobs))
        if all(slot.state == "ready" for slot in self._slots.values()):
            log.info("ready: %s", ", ".join(self._slots) or "nothing to load")

    def _jobs(self) -> Iterator[tuple[ModelHandle[Any], tuple[str, ...], Callable[[], Any]]]:
        """Handles to fill, the modules that each needs, and its loader, in the order of loading."""
        if self._embedder is not None:
            yield self._embedder, _packages_of(self._config), self._load_embedder
        for name, slot in self._classifiers.items():
            yield slot, packages.CLASSIFIER, partial(_load_classifier, name)
        if self._index is not None:
            yield self._index, packages.INDEX, self._load_index
        if self._entities is not None:
            yield self._entities, packages.ENTITIES, self._load_entities

    def _load_embedder(self) -> Embedder:
        if self._config.engine:
            return self._reach_engine(self._config.engine)
        from gateway.sidecar.models import embedder, heads
        from gateway.sidecar.models.tagger import WEIGHTS, Tagger

        _set_threads(self._config.threads)
        name = self._config.embedder or "builtin"
        with naming(name):
            loaded = embedder.load(name)
        loaded.encode(["A first text takes longer than all others."])
        for path in sorted(self._config.heads_folder().glob("*.npz")):
            try:
                self._heads[path.stem] = heads.Head.load(path)
            except (OSError, KeyError, ValueError) as error:
                log.error("%s is no head: %s", path, error)
        path = self._config.heads_folder() / WEIGHTS.name
        if name == "builtin" and path.is_file():
            try:
                self._tagger = Tagger.load(path)
            except (OSError, KeyError, ValueError) as error:
                log.error("%s is no tagger: %s", path, error)
        return loaded

    def _reach_engine(self, url: str) -> Embedder:
        from gateway.sidecar.models.engine_embedder import EngineEmbedder

        embedder = EngineEmbedder(url, self._config.embedder or "")
        embedder.encode(["Does it answer?"])
        return embedder

    def _tag(self, texts: Sequence[str]) -> list[list[Finding]]:
        tagger = self._tagger
        if tagger is None:
            raise SidecarError(
                "there is no tagger for names; it needs the embedder 'builtin' and its own head"
            )
        seen = self._embedding().words(texts, tagger.layers)
        return [tagger.find(text, *one) for text, one in zip(texts, seen, strict=True)]

    def _load_entities(self) -> Entities:
        from gateway.sidecar.models.entities import Entities

        return Entities(self._config.spacy)

    def _load_index(self) -> SemanticIndex:
        from gateway.sidecar.models import embedder, engine_embedder
        from gateway.sidecar.semantic.index import SemanticIndex

        config = self._config
        name = config.embedder or "builtin"
        if config.engine:
            engine_embedder.EngineEmbedder(config.engine, name).check_is_minilm()
        made_by = engine_embedder.SPACE if config.engine else embedder.space(name)
        return SemanticIndex(
            self.embed, config.redis, config.index_bytes, config.index_entries, space=made_by
        )

    def _embedding(self) -> Embedder:
        return required(self._embedder, "an embedder").get()

    async def _op_embed(self, texts: Sequence[str]) -> Response:
        return {}, b"".join(await self.embed(texts))

    async def _op_score(self, head: str, texts: Sequence[str]) -> Response:
        from gateway.sidecar.models.heads import vectors

        embedder = self._embedding()
        judge = self._heads.get(head)
        if judge is None:
            raise SidecarError(f"there is no head '{head}'; there are: {', '.join(self._heads) or 'none'}")
        if not set(judge.pools) <= set(embedder.pools):
            raise SidecarError(f"the head '{head}' needs the embedder 'builtin'")

        async def judged(parts: list[str]) -> list[dict[str, float]]:
            encodings = await self._encodings.get(parts)
            scores: list[list[float]] = []
            for at in range(0, len(encodings), _HEADS_AT_ONCE):
                some = encodings[at : at + _HEADS_AT_ONCE]
                scores += judge(vectors(some, embedder.pools, judge.pools)).tolist()
                await asyncio.sleep(0)
            return [dict(zip(judge.labels, row, strict=True)) for row in scores]

        return await self._by_window(texts, embedder.windows, judged)

    async def _op_classify(self, model: str, texts: Sequence[str]) -> Response:
        slot = self._classifiers.get(model)
        if slot is None:
            raise SidecarError(f"no guard of the policy has the classifier '{model}'")
        return await self._by_window(texts, slot.get().windows, self._classified[model].get)

    async def _by_window(
        self,
        texts: Sequence[str],
        windows: Callable[[str, int], list[tuple[int, int]]],
        judged: Callable[[list[str]], Awaitable[Sequence[Mapping[str, float]]]],
    ) -> Response:
        _check_count(texts)
        most = self._config.max_windows
        spans = await self._cut(texts, lambda text: windows(text, most))
        parts = [text[start:end] for text, ranges in zip(texts, spans, strict=True) for start, end in ranges]
        # In slices, so that a long text neither fills the queue nor delays what came after it.
        size = min(self._config.max_batch, self._config.max_queue)
        scored: list[Mapping[str, float]] = []
        for at in range(0, len(parts), size):
            scored += await judged(parts[at : at + size])
        scores = iter(scored)
        return {"scores": [[(start, end, next(scores)) for start, end in ranges] for ranges in spans]}, b""

    async def _cut(self, texts: Sequence[str], cut: Callable[[str], T]) -> list[T]:
        """``cut`` each text; short ones do not wait for the thread in which long ones are cut."""
        if sum(map(len, texts)) <= _CUT_INLINE:
            return [cut(text) for text in texts]
        return [await self._cutting.run(1, cut, text, cost=len(text)) for text in texts]

    async def _op_entities(self, texts: Sequence[str], language: str, entities: Sequence[str]) -> Response:
        _check_count(texts)
        tagged = frozenset(one for one in entities if is_tagged(one, language, self._config.spacy))
        others = [one for one in entities if one not in tagged]
        found: list[list[Finding]] = [[] for _ in texts]
        if others:
            finder = required(self._entities, "Presidio").get()

            def find(text: str) -> list[Finding]:
                return finder.find(text, language, others)

            try:
                found = [await self._presidio.run(1, find, text, cost=len(text)) for text in texts]
            except ValueError as error:  # an entity that cannot be found
                raise SidecarError(str(error)) from None
        if tagged:
            for own, names in zip(found, await self._names(texts), strict=True):
                own += [one for one in names if one.label in tagged]
        return {"found": [[(f.label, f.start, f.end, f.score) for f in of_text] for of_text in found]}, b""

    async def _names(self, texts: Sequence[str]) -> list[list[Finding]]:
        """The tagger's findings. Windows of a long text overlap: what one cuts off the next has whole."""
        embedder, most = self._embedding(), self._config.max_windows
        ranges = await self._cut(texts, lambda text: embedder.windows(text, most))
        parts = [text[start:end] for text, spans in zip(texts, ranges, strict=True) for start, end in spans]
        size = min(self._config.max_batch, self._config.max_queue)
        tagged: list[list[Finding]] = []
        for at in range(0, len(parts), size):
            tagged += await self._tagged.get(parts[at : at + size])
        each = iter(tagged)
        return [
            joined(
                Finding(one.label, start + one.start, start + one.end, one.score)
                for start, _ in spans
                for one in next(each)
            )
            for spans in ranges
        ]

    async def _op_look_up(
        self, partition: str, question: str, budget: float, floor: float, projects: bool = False
    ) -> Response:
        index = required(self._index, "a semantic cache").get()
        look = await index.look_up(partition, question, budget=budget, floor=floor, projects=projects)
        hit = look.hit
        return {
            "hit": None if hit is None else (hit.similarity, hit.confidence, hit.age),
            "reason": look.reason,
            "similarity": look.similarity,
            **({"projection": look.projection} if projects else {}),
        }, b"" if hit is None else hit.payload

    async def _op_remember(
        self, partition: str, question: str, key: str, ttl: float, payload: bytes = b""
    ) -> Response:
        index = required(self._index, "a semantic cache").get()
        await index.remember(partition, question, payload, key=key, ttl=ttl)
        return {}, b""

    async def _op_forget(self, partition: str, key: str) -> Response:
        await required(self._index, "a semantic cache").get().forget(partition, key)
        return {}, b""

    async def _op_status(self) -> Response:
        return {
            "models": {name: slot.state for name, slot in self._slots.items()},
            "heads": list(self._heads),
            "queue": len(self._encodings)
            + len(self._tagged)
            + self._presidio.waiting
            + sum(len(batcher) for batcher in self._classified.values()),
            "entries": len(self._index.get()) if self._index and self._index.state == "ready" else 0,
            "batches": self._encodings.batches,
            "encoded": self._encodings.computed,
        }, b""


def _classify(slot: ModelHandle[TextClassifier], texts: Sequence[str]) -> list[Mapping[str, float]]:
    return slot.get().classify(texts)


def _check_count(texts: Sequence[str]) -> None:
    if len(texts) > _MAX_TEXTS:
        raise SidecarBusy(f"{len(texts)} texts at once; at most {_MAX_TEXTS} are accepted")


def _packages_of(config: SidecarConfig) -> tuple[str, ...]:
    """What its embedder needs."""
    if config.engine:
        return packages.ENGINE_EMBEDDER
    return packages.EMBEDDER if config.embedder == "builtin" else packages.OTHER_EMBEDDER


def _load_classifier(name: str) -> TextClassifier:
    from gateway.sidecar.models.classifier import TextClassifier

    with naming(name):
        return TextClassifier(name)


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
