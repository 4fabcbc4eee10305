"""Addresses of wallets: Bitcoin with its checksums, Ethereum by form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256

from gateway.findings import Finding
from gateway.pii.patterns.pattern import Pattern

_ADDRESS = re.compile(
    r"(?<!\w)(?:(?P<base58>[13][1-9A-HJ-NP-Za-km-z]{25,34})|(?P<bech32>(?:bc1[02-9ac-hj-np-z]{11,71}|BC1[02-9AC-HJ-NP-Z]{11,71}))"
    r"|(?P<hex>0x[0-9a-fA-F]{40}))(?!\w)",
    re.ASCII,
)
_BASE58 = {
    sign: value for value, sign in enumerate("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz")
}
_BECH32 = {sign: value for value, sign in enumerate("qpzry9x8gf2tvdw0s3jn54khce6mua7l")}
_GENERATORS = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)


def find(text: str) -> Iterator[Finding]:
    for match in _ADDRESS.finditer(text):
        address = match[0]
        if match["hex"] or (base58(address) if match["base58"] else bech32(address.lower())):
            yield Finding("CRYPTO", match.start(), match.end(), 0.8 if match["hex"] else 1.0)


def base58(address: str) -> bool:
    """Whether the last four bytes are the double SHA-256 of the others (Base58Check)."""
    number = 0
    for sign in address:
        number = number * 58 + _BASE58[sign]
    if number >> 200:
        return False
    data = number.to_bytes(25, "big")
    return sha256(sha256(data[:-4]).digest()).digest()[:4] == data[-4:]


def bech32(address: str) -> bool:
    """Whether the checksum of BIP 173 or of BIP 350 is right. ``address`` in lower case."""
    prefix, _, data = address.rpartition("1")
    values = [ord(sign) >> 5 for sign in prefix] + [0] + [ord(sign) & 31 for sign in prefix]
    check = 1
    for value in values + [_BECH32[sign] for sign in data]:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate(_GENERATORS):
            check ^= generator if top >> bit & 1 else 0
    return check in (1, 0x2BC830A3)


CRYPTO = Pattern("CRYPTO", 74, find)
