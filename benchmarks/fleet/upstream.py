"""One server that stands for any number of engines: it answers at every address of the machine.

python -m benchmarks.fleet.upstream PORT [--lifelike SECONDS_A_TOKEN SECONDS_TO_FIRST]
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from benchmarks.load import Static, _whole

STATE = _whole(
    b'{"running":3,"waiting":0,"max_num_seqs":256,"kv_cache":{"usage":0.2},"prefill_tokens_per_second":9000,'
    b'"decode_tokens_per_second":900}'
)


class Engine(Static):
    """Also tells an engine's state."""

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET ") and data.endswith(b"\r\n\r\n"):
            self.transport.write(STATE)  # type: ignore[attr-defined]
        else:
            super().data_received(data)


def main() -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Engine, "0.0.0.0", int(sys.argv[1]), backlog=4096)
        await server.serve_forever()

    uvloop.run(serve())


if __name__ == "__main__":
    main()
