"""Builds an engine's part in handing blocks over, as its ``--role`` says."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.core.scheduler import Scheduler
from engine.core.tiers.remote import HandoverState
from engine.errors import StartupError
from engine.handover.address import parse_address
from engine.handover.arena import Arena
from engine.handover.fetching import Fetcher
from engine.handover.handshake import Fingerprint, read_secret
from engine.handover.links import Links
from engine.handover.nixl_agent import NixlAgent
from engine.handover.server import Server
from engine.handover.serving import Serving

log = logging.getLogger("engine.handover")


@dataclass(slots=True)
class Handover:
    """What the loop has of it."""

    state: HandoverState
    serving: Serving | None
    fetcher: Fetcher | None
    address: str
    """Where it gives; empty: it does not."""

    @property
    def busy(self) -> bool:
        """Whether the loop has to look after it now and then."""
        return self.serving is not None and self.serving.busy

    def tick(self) -> None:
        if self.serving is not None:
            self.serving.tick()

    def close(self) -> None:
        if self.serving is not None:
            self.serving.close()
        if self.fetcher is not None:
            self.fetcher.close()


def open_handover(
    config: EngineConfig,
    scheduler: Scheduler,
    arena: Arena,
    fingerprint: Fingerprint,
    ring: Callable[[], None],
    *,
    vocab_size: int,
    environment: Mapping[str, str] = os.environ,
) -> Handover:
    """Raises ``StartupError``."""
    if scheduler.tiers is None:
        raise ValueError("blocks are handed over through tiers of memory")
    secret = read_secret(config.handover_secret_file, environment)
    state = HandoverState()
    nixl = NixlAgent(arena) if config.handover_transport == "nixl" else None
    serving = fetcher = None
    address = ""
    if config.handover_address is not None:
        try:
            server = Server(parse_address(config.handover_address), secret, fingerprint, arena, ring, nixl)
        except OSError as error:
            raise StartupError(
                f"--handover-address {config.handover_address} cannot be listened at: {error.strerror or error}."
            ) from None
        address = str(server.address)
        serving = Serving(server, scheduler, scheduler.tiers, arena, state, vocab_size=vocab_size)
        log.info("hands KV blocks over at %s", address)
    if config.role != "prefill":
        links = Links(secret, fingerprint, arena, ring, timeout=config.handover_timeout, nixl=nixl)
        fetcher = Fetcher(
            links,
            scheduler.tiers,
            state,
            config.block_size,
            config.handover_min_tokens,
            [parse_address(one) for one in config.prefill_from],
        )
        scheduler.ask(fetcher)
    return Handover(state, serving, fetcher, address)
