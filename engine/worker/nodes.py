"""Ranks on other hosts: what rank 0 asks before it tells them anything, and what they answer."""

from __future__ import annotations

from pathlib import Path

from engine.config import EngineConfig
from engine.errors import ModelUnavailable, StartupError
from engine.nodes.proof import read_secret
from engine.nodes.remote_rank import RemoteRank
from engine.nodes.sealed_channel import SealedChannel
from engine.version import version
from engine.weights.digest import model_digest
from engine.weights.weight_cache import cache_home
from engine.worker.pulse import PATIENCE, Pulse


def reach(config: EngineConfig) -> list[RemoteRank]:
    """The nodes, in their order, of which each has the same engine and model. Raises ``StartupError``."""
    if not config.nodes or config.nodes_secret is None:
        return []
    secret = read_secret(config.nodes_secret, "--nodes-secret")
    mine = (version(), digest(config.model))
    found: list[RemoteRank] = []
    try:
        for address in config.nodes:
            found.append(RemoteRank(address, secret))
            found[-1].send(mine)
        for node in found:
            if (answer := node.receive(PATIENCE)) != "":
                raise StartupError(f"The node{node.where} cannot take part. {answer}")
    except BaseException as error:
        for node in found:
            node.close()
        if isinstance(error, EOFError):
            raise StartupError("A node has closed the connection: its log says why.") from error
        if isinstance(error, TimeoutError):
            raise StartupError(f"A node gave no sign of life for {PATIENCE:.0f} s: is it stopped?") from error
        raise
    return found


def answer(channel: SealedChannel, model: Path) -> bool:
    """A node's side: whether it takes part."""
    (theirs,) = channel.receive()
    pulse = Pulse(channel)  # of large files digests take minutes
    complaint = _complaint(theirs, model)
    pulse.send(complaint)
    pulse.end()
    return not complaint


def _complaint(theirs: tuple[str, str], model: Path) -> str:
    if theirs[0] != version():
        return f"It has the engine {version()}, and rank 0 has {theirs[0]}: install the same."
    try:
        mine = digest(model)
    except ModelUnavailable as error:
        return error.message
    if theirs[1] != mine:
        return f"Its model {model} is another than rank 0's: copy config.json and the weights again."
    return ""


def digest(model: Path) -> str:
    """Raises ``ModelUnavailable``."""
    root = cache_home()
    try:
        return model_digest(model, root / "digests" if root else None)
    except OSError as error:
        raise ModelUnavailable(f"{model} cannot be read: {error}.") from error
