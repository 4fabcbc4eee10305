"""Two engines without their processes: one whose loop runs in a thread and gives, and one that asks."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.channel import Bell
from engine.config import EngineConfig
from engine.handover.handshake import VARIABLE
from engine.handover.role import Handover, open_handover
from engine.offline import OfflineEngine
from engine.worker.tiers.block_copier import BlockCopier
from engine.worker.tiers.start import handover_fingerprint

SECRET = {VARIABLE: "a secret of at least sixteen bytes"}


def config_of(model: Path, **options: object) -> EngineConfig:
    given: dict[str, object] = {
        "kv_cache_blocks": 60,
        "threads": 1,
        "dtype": "float32",
        "host_kv_memory": 2**22,
        "handover_min_tokens": 16,
        "handover_timeout": 60.0,
        **options,
    }
    return EngineConfig(model=model, **given)  # type: ignore[arg-type]


class Engine:
    def __init__(
        self,
        config: EngineConfig,
        *,
        secret: dict[str, str] = SECRET,
        ring: Callable[[], None] = lambda: None,
    ) -> None:
        self.offline = OfflineEngine(config, prefix_caching=True)
        assert self.offline.tiers is not None
        assert isinstance(self.offline.tiers.copier, BlockCopier)
        self.copier = self.offline.tiers.copier
        self.handover: Handover = open_handover(
            config,
            self.offline.scheduler,
            self.copier,
            handover_fingerprint(config, self.offline.runner),
            ring,
            vocab_size=self.offline.runner.model.vocab_size,
            environment=secret,
        )

    def close(self) -> None:
        self.handover.close()
        self.offline.close()


class Giver(Engine):
    """Its loop goes on until it is closed; ``pause`` before each step lets a test do something in the middle."""

    def __init__(self, config: EngineConfig, *, pause: Callable[[], None] = lambda: None, **more) -> None:
        self._bell = Bell()
        super().__init__(config, ring=self._bell.ring, **more)
        self._pause = pause
        self._stop = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def address(self) -> str:
        return self.handover.address

    @property
    def scheduler(self):
        return self.offline.scheduler

    def close(self) -> None:
        self._stop = True
        self._thread.join()
        super().close()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop:
                self._bell.hush()
                self.handover.tick()
                if self.scheduler.idle:
                    time.sleep(0.001)
                else:
                    self._pause()
                    self.offline._step()
                self.scheduler.check_integrity()
            while self.handover.busy:
                self.handover.tick()
                time.sleep(0.001)
            self.scheduler.check_integrity()
        except BaseException as error:
            self.error = error


@contextmanager
def engines(*made: Engine) -> Iterator[None]:
    try:
        yield
    finally:
        for one in made:
            one.close()


class Cable:
    """Between an engine that asks and one that gives by TCP: cuts, or changes a byte of, what the latter sends."""

    def __init__(self, target: str, *, cut: int | None = None, flip: int | None = None) -> None:
        """``cut`` and ``flip``: which byte; after a flip all goes on as it is."""
        self._target, self._cut, self._flip = target, cut, flip
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        for sock in list(self._sockets):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in list(self._threads):
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        host, _, port = self._target.removeprefix("tcp://").partition(":")
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection((host, int(port)))
            self._sockets += [near, far]
            self._start(self._pump, near, far, None, None)
            self._start(self._pump, far, near, self._cut, self._flip)

    def _pump(self, source: socket.socket, sink: socket.socket, cut: int | None, flip: int | None) -> None:
        passed = 0
        try:
            while data := bytearray(source.recv(4096)):
                if flip is not None and passed <= flip < passed + len(data):
                    data[flip - passed] ^= 1
                if cut is not None and passed + len(data) > cut:
                    sink.sendall(data[: max(0, cut - passed)])
                    break
                passed += len(data)
                sink.sendall(data)
        except OSError:
            pass
        for sock in (source, sink):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
