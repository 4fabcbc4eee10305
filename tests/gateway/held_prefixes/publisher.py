"""A publisher of KV events as vLLM's is: PUB, and a ROUTER that repeats batches from a number on."""

from __future__ import annotations

import threading
from typing import Any, Self

import msgpack
import zmq

END = (-1).to_bytes(8, "big", signed=True)


class EventServer:
    def __init__(self, host: str = "127.0.0.1", port: int = 0, replay_port: int = 0) -> None:
        """At free ports, where none are given."""
        self.topic = b""
        self.number = 0
        self._host, self._port, self._replay_port = host, port, replay_port
        self._told: list[bytes] = []
        self.start()

    @property
    def endpoint(self) -> str:
        return f"tcp://{self._host}:{self._port}"

    @property
    def replay(self) -> str:
        return f"tcp://{self._host}:{self._replay_port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def replay_port(self) -> int:
        return self._replay_port

    def start(self) -> None:
        """At the ports that it had, and with nothing to repeat."""
        self._context: zmq.Context[Any] = zmq.Context()
        self._pub: zmq.Socket[bytes] = self._context.socket(zmq.PUB)
        self._router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._pub.linger = self._router.linger = 0
        self._port = _bind(self._pub, self._host, self._port)
        self._replay_port = _bind(self._router, self._host, self._replay_port)
        self.number, self._told = 0, []
        self._lock = threading.Lock()
        self._ending = False
        self._thread = threading.Thread(target=self._repeat)
        self._thread.start()

    def stop(self) -> None:
        self._ending = True
        self._thread.join()
        self._context.destroy(0)

    def publish(self, *events: Any, silently: bool = False) -> None:
        """``silently``: only who asks for it again gets it."""
        with self._lock:
            payload = msgpack.packb([float(self.number), list(events), 0])
            if not silently:
                self._pub.send_multipart((self.topic, self.number.to_bytes(8, "big"), payload))
            self._told.append(payload)
            self.number += 1

    def send(self, frames: list[bytes]) -> None:
        self._pub.send_multipart(frames)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _repeat(self) -> None:
        while not self._ending:
            if not self._router.poll(20):
                continue
            client, empty, first = self._router.recv_multipart()
            with self._lock:
                for number in range(int.from_bytes(first, "big"), len(self._told)):
                    self._router.send_multipart(
                        (client, empty, number.to_bytes(8, "big"), self._told[number])
                    )
                self._router.send_multipart((client, empty, END, b""))


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> int:
    if port:
        socket.bind(f"tcp://{host}:{port}")
        return port
    return socket.bind_to_random_port(f"tcp://{host}")
