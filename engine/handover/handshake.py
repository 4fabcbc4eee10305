"""Both engines prove that they know the secret, and find out whether the other's blocks are of use to them.

    asks    HELLO      a random number
    gives   CHALLENGE  another, and its proof over both
    asks    PROOF      its own proof, and what its blocks depend on
    gives   WELCOME    how its blocks come, and what that needs; or REFUSED

Who asks learns first that it speaks to an engine of its own: before that it says nothing of its model or of anybody's
prompt. Keys of the digests of all later frames come of the secret and both numbers, one for each direction.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import StartupError
from engine.handover.wire import BrokenFrame, Kind, Wire, read_json

VERSION = 1
VARIABLE = "TOLLGATE_HANDOVER_SECRET"
_LEAST = 16
"""Bytes of a secret."""

Fingerprint = Mapping[str, object]


class Unfit(BrokenFrame):
    """The other engine is no use: it has another secret, model or layout. Asking again changes nothing."""


def read_secret(path: Path | None, environment: Mapping[str, str]) -> bytes:
    """Raises ``StartupError``."""
    if path is not None:
        try:
            secret = path.read_bytes().strip()
            everybody = path.stat().st_mode & 0o007
        except OSError as error:
            raise StartupError(
                f"--handover-secret-file {path} cannot be read: {error.strerror or error}."
            ) from None
        if everybody:  # a group may: a Secret of Kubernetes is mounted for one
            raise StartupError(
                f"--handover-secret-file {path} can be read by everybody here: chmod o= {path}"
            )
        where = f"--handover-secret-file {path}"
    else:
        secret, where = environment.get(VARIABLE, "").encode(), VARIABLE
        if not secret:
            raise StartupError(
                f"--role needs a secret that all engines of the model share, as KV blocks are what people wrote: give "
                f"--handover-secret-file FILE or set {VARIABLE}. Make one with: openssl rand -hex 32"
            )
    if len(secret) < _LEAST:
        raise StartupError(f"The secret of {where} has {len(secret)} bytes: give it {_LEAST} or more.")
    return secret


def ask(
    wire: Wire, secret: bytes, fingerprint: Fingerprint, carriers: Sequence[str], deadline: float
) -> dict[str, Any]:
    """The side that asks for blocks. ``carriers``: ways in which they may come beside the connection. Returns the
    chosen one (``carrier``; empty: none), and what belongs to it. Raises ``BrokenFrame``, ``Unfit``."""
    mine = secrets.token_bytes(32)
    wire.say(Kind.HELLO, version=VERSION, number=mine.hex())
    said = wire.expect(Kind.CHALLENGE, deadline)
    theirs = _number(said)
    if not hmac.compare_digest(_proof(secret, b"gives", mine, theirs), _bytes(said.get("proof"))):
        raise Unfit("it does not know the secret of this engine")
    wire.say(
        Kind.PROOF,
        proof=_proof(secret, b"asks", mine, theirs).hex(),
        fingerprint=dict(fingerprint),
        carriers=list(carriers),
    )
    _set_keys(wire, secret, mine, theirs, b"asks", b"gives")
    kind, body = wire.receive(deadline=deadline)
    if kind is Kind.REFUSED:
        raise Unfit(body.decode("utf-8", "replace"))
    if kind is not Kind.WELCOME:
        raise BrokenFrame(f"{kind.name} came in place of WELCOME")
    return read_json(body)


def answer(
    wire: Wire,
    secret: bytes,
    fingerprint: Fingerprint,
    offers: Mapping[str, Mapping[str, object]],
    deadline: float,
) -> str:
    """The side that gives. ``offers``: by carrier, the best first, what the other side needs for it. Returns the chosen
    one; empty: none. Raises ``BrokenFrame``, ``Unfit``."""
    said = wire.expect(Kind.HELLO, deadline)
    if said.get("version") != VERSION:
        wire.say(Kind.REFUSED, message=f"it speaks version {VERSION} of the protocol")
        raise Unfit(f"it speaks version {said.get('version')!r} of the protocol, not {VERSION}")
    theirs, mine = _number(said), secrets.token_bytes(32)
    wire.say(Kind.CHALLENGE, number=mine.hex(), proof=_proof(secret, b"gives", theirs, mine).hex())
    said = wire.expect(Kind.PROOF, deadline)
    if not hmac.compare_digest(_proof(secret, b"asks", theirs, mine), _bytes(said.get("proof"))):
        raise Unfit("it does not know the secret of this engine")
    _set_keys(wire, secret, theirs, mine, b"gives", b"asks")
    other = said.get("fingerprint")
    if message := difference(fingerprint, other if isinstance(other, dict) else {}):
        wire.send(Kind.REFUSED, message.encode())
        raise Unfit(message)
    known = said.get("carriers")
    chosen = next((name for name in offers if isinstance(known, list) and name in known), "")
    wire.say(Kind.WELCOME, carrier=chosen, **offers.get(chosen, {}))
    return chosen


def difference(mine: Fingerprint, other: Fingerprint) -> str:
    """What makes blocks useless to the other, in words; empty: nothing."""
    names = [name for name in {**mine, **other} if mine.get(name) != other.get(name)]
    if not names:
        return ""
    told = ", ".join(f"{name} ({mine.get(name)!r} and {other.get(name)!r})" for name in sorted(names))
    return f"the engines differ in {told}: give both the same model and flags"


def _set_keys(wire: Wire, secret: bytes, asks: bytes, gives: bytes, own: bytes, other: bytes) -> None:
    wire.sends = _proof(secret, b"frames of who " + own, asks, gives)
    wire.receives = _proof(secret, b"frames of who " + other, asks, gives)


def _proof(secret: bytes, role: bytes, asks: bytes, gives: bytes) -> bytes:
    return hmac.digest(secret, role + asks + gives, "sha256")


def _number(said: Mapping[str, object]) -> bytes:
    number = _bytes(said.get("number"))
    if len(number) != 32:
        raise BrokenFrame("its random number has a wrong size")
    return number


def _bytes(value: object) -> bytes:
    try:
        return bytes.fromhex(str(value))
    except ValueError:
        raise BrokenFrame("what it said is no hexadecimal number") from None
