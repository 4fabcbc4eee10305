"""The loop of an engine process that serves an embedding model or a reranker: receive → batch → run → send."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from engine.channel import Channel
from engine.config import EngineConfig
from engine.errors import DeadlineUnreachable, QueueFull, StartupError
from engine.messages import Abort, Refusal
from engine.pooling.messages import PooledText, PoolingOutputs, PoolingReady, PoolingStep, SubmitTexts
from engine.pooling.spec import PoolingSpec
from engine.pooling.text_queue import Picked, TextQueue
from engine.refusals import to_refusal
from engine.startup import Stopwatch, describe
from engine.weights.digest import check_digests

if TYPE_CHECKING:
    from engine.pooling.model import PoolingModel

log = logging.getLogger("engine.process")


class PoolingCore:
    def __init__(self, config: EngineConfig, spec: PoolingSpec, channel: Channel) -> None:
        """Loads the model. Raises ``StartupError``."""
        check_flags(config)
        self._channel = channel
        self._model, self.ready = _load(config, spec)
        self._queue = TextQueue(
            max_num_seqs=self.ready.max_num_seqs,
            max_batched_tokens=self.ready.max_batched_tokens,
            max_waiting=config.max_waiting,
            priority_ageing=config.priority_ageing,
        )
        self._refusals: list[Refusal] = []
        """To be sent with the next message."""
        self._out_of_memory = 0

    def run(self) -> None:
        """Until the HTTP process is gone: then raises ``EOFError``."""
        while True:
            for message in self._channel.receive(0.0 if len(self._queue) else None):
                self._handle(message)
            for request_id, needed in self._queue.expired(time.monotonic()):
                self._refusals.append(to_refusal(request_id, DeadlineUnreachable(needed, 0.0)))
            if batch := self._queue.batch():
                self._compute(batch)
            else:
                self._send([], [], 0.0, [])

    def _handle(self, message: SubmitTexts | Abort) -> None:
        match message:
            case SubmitTexts():
                try:
                    self._queue.submit(message, time.monotonic())
                except (QueueFull, DeadlineUnreachable) as error:
                    self._refusals.append(to_refusal(message.request_id, error))
            case Abort(request_ids):
                for request_id in request_ids:
                    self._queue.remove(request_id)

    def _compute(self, batch: list[Picked]) -> None:
        import torch

        began = time.monotonic()
        messages = [request.message for request, _ in batch]
        rows = [request.message.rows[index] for request, index in batch]
        firsts = [request.message.firsts[index] for request, index in batch]
        reason = ""
        try:
            values = self._model.run(rows, firsts, [message.size for message in messages])
        except torch.OutOfMemoryError as error:
            reason = str(error) or "out of memory"
        if reason:
            # Outside the except block: the exception references the batch's frames, and they its tensors.
            if self._model.device.type == "cuda":
                torch.cuda.empty_cache()
            self._abandon(batch, sum(map(len, rows)), reason)
            self._send([], [], time.monotonic() - began, [])
            return
        seconds = time.monotonic() - began
        texts = [
            PooledText(message.request_id, index, value.numpy().astype("<f4").tobytes())
            for message, (_, index), value in zip(messages, batch, values, strict=True)
        ]
        begun = self._queue.done(batch, seconds)
        self._send(texts, rows, seconds, [began - request.message.submitted for request in begun])

    def _abandon(self, batch: list[Picked], tokens: int, reason: str) -> None:
        """The batch had no effect. The next is half as large; a text that is alone is refused, with its request."""
        self._out_of_memory += 1
        if len(batch) > 1:
            self._queue.max_batched_tokens = tokens // 2
            log.warning(
                "a batch of %d tokens ran out of memory: batches now have %d at most (--max-batched-tokens): %s",
                tokens,
                tokens // 2,
                reason,
            )
            return
        request = batch[0][0].message.request_id
        log.warning(
            "a text of %d tokens ran out of memory: request %d is refused: %s", tokens, request, reason
        )
        self._queue.remove(request)
        self._refusals.append(Refusal(request, "OutOfMemory", reason=reason))

    def _send(
        self, texts: list[PooledText], rows: list[list[int]], seconds: float, queued: list[float]
    ) -> None:
        running = self._queue.running
        step = PoolingStep(
            seconds=seconds,
            sequences=len(texts),
            tokens=sum(map(len, rows)),
            running=running,
            waiting=len(self._queue) - running,
            queued=queued,
            out_of_memory=self._out_of_memory,
        )
        self._channel.send(PoolingOutputs(texts, self._refusals, step))
        self._refusals = []


def check_flags(config: EngineConfig) -> None:
    """Raises ``StartupError`` for what only a model that generates text can have."""
    for flag, given in {
        "--adapter": bool(config.adapters) or config.max_adapters > 0,
        "--speculation": config.speculation != "off",
        "--tensor-parallel": config.tensor_parallel > 1,
        "--pipeline-parallel": config.pipeline_parallel > 1,
        "--role": config.role is not None,
        "--context-cap": bool(config.context_caps),
        "--kv-cache-dtype": config.kv_cache_dtype != "auto",
    }.items():
        if given:
            raise StartupError(
                f"{flag} is for models that generate text, and {config.model.name} makes embeddings or ranks: leave it "
                "out."
            )


def _load(config: EngineConfig, spec: PoolingSpec) -> tuple[PoolingModel, PoolingReady]:
    watch = Stopwatch()
    check_digests(config.model, config.digests)
    if config.kernels is not None:
        os.environ["TOLLGATE_KERNELS"] = config.kernels
    # Imported here: nothing else in this module needs torch, and it takes a second.
    import torch

    from engine.pooling.model import PoolingModel
    from engine.worker.device import check_kernels, gpu_uuids, pick_device, pick_dtype, pick_threads
    from engine.worker.memory import check_room, predict_weights, taken

    device = pick_device(config.device)
    check_kernels(device)
    config = config.on(device.type)
    dtype = pick_dtype(config.dtype, config.model, device)
    watch.lap("imports")
    predicted = predict_weights(config.model, dtype, config.quantization)
    check_room(predicted, device, config.quantization)
    torch.set_num_threads(config.threads or pick_threads(config.model))
    before = taken(device)
    model = PoolingModel(
        config.model,
        spec,
        device,
        dtype,
        max_model_len=config.max_model_len or spec.max_tokens,
        quantization=config.quantization,
        invariant=config.deterministic,
    )
    watch.lap("model")
    weights = taken(device) - before
    positions = model.encoder.max_positions
    if config.max_model_len and config.max_model_len > positions:
        raise StartupError(
            f"--max-model-len {config.max_model_len} is more than the {positions} positions that the model supports."
        )
    model.run([[0]], [1], [None])
    watch.lap("warm-up")
    log.info("started in %s", watch)
    memory = {
        "weights_predicted": predicted,
        "weights": weights,
        "kv_cache": 0,
        "states": 0,
        "process": taken(device),
    }
    log.info("memory on %s: %s", device, describe(memory))
    ready = PoolingReady(
        max_model_len=config.max_model_len or min(spec.max_tokens or positions, positions),
        vocab_size=model.encoder.vocab_size,
        width=model.width,
        max_num_seqs=config.max_num_seqs or 1,
        max_batched_tokens=config.max_batched_tokens or 1,
        max_waiting=config.max_waiting,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        gpus=gpu_uuids(device),
        startup=watch.laps,
        memory=memory,
    )
    return model, ready
