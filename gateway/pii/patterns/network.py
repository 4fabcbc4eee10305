"""Addresses of machines: IPv4, IPv6, MAC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv6Address

from gateway.findings import Finding
from gateway.pii.patterns.pattern import ContextWords, Pattern

_V4 = re.compile(
    r"\d(?<![\w.]\d)(?:(?<=[1-9])\d|(?<=1)\d\d|(?<=2)(?:[0-4]\d|5[0-5]))?(?:\.(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)){3}"
    r"(?![\w]|\.\d|-[A-Za-z])",
    re.ASCII,
)
_V6 = re.compile(r":(?<![A-Za-z0-9_]{5}:)[0-9A-Fa-f:.]{1,39}", re.ASCII)
_V4_CONTEXT = ContextWords(
    r"""
    ips?\b ipv4 address host server dns\b ping subnet gateway client ssh\b router network localhost proxy
    firewall remote resolver connect block
    """,
    r"""
    v(?:er(?:sion)?)?\.?s?\b version release build upgrade update firmware section chapter § clause
    paragraph python chrome windows driver patch kernel figure table
    """,
)


def find_ip(text: str) -> Iterator[Finding]:
    if text.count(".") >= 3:
        yield from _v4(text)
    if text.count(":") >= 2:
        yield from _v6(text)


def _v4(text: str) -> Iterator[Finding]:
    surroundings = _V4_CONTEXT.of(text)
    for match in _V4.finditer(text):
        context = surroundings(match.start(), match.end())
        # Four small numbers are as often a version or a heading.
        small = all(len(part) == 1 for part in match[0].split("."))
        port_or_range = text[match.end() : match.end() + 1] in (":", "/") and not context
        score = 0.95 if context > 0 or port_or_range else 0.2 if context < 0 else 0.4 if small else 0.85
        yield Finding("IP_ADDRESS", match.start(), match.end(), score)


_GLOBAL = re.compile(
    r"(?:[23][0-9a-f]{3}|f[cd][0-9a-f]{2}|fe80|ff0[0-9a-f]|64:ff9b|2[0-9a-f]{3}):|::(?:1\Z|ffff:)", re.I
)


def _v6(text: str) -> Iterator[Finding]:
    done = 0
    for match in _V6.finditer(text):
        start = match.start()
        while start > done and start > match.start() - 4 and text[start - 1] in "0123456789abcdefABCDEF":
            start -= 1
        if start < done or (start and (text[start - 1].isalnum() or text[start - 1] in "_:.")):
            continue
        end = match.end()
        if end < len(text) and (text[end].isalnum() or text[end] == "_"):
            continue
        address = text[start:end].rstrip(".") if text[start:end].endswith(".") else text[start:end]
        if address.endswith(":") and not address.endswith("::"):
            address = address[:-1]
        if address.count(":") < 2:
            continue
        try:
            IPv6Address(address)
        except AddressValueError:
            continue
        # Programs are full of a::b, and of slices with a step.
        if address.count(":") >= 4 or _GLOBAL.match(address):
            done = start + len(address)
            yield Finding("IP_ADDRESS", start, done, 0.9)


_MAC = re.compile(
    r"(?<![\w:-])(?:[0-9A-F]{2}([:-])(?:[0-9A-F]{2}\1){4}[0-9A-F]{2}|[0-9A-F]{4}\.[0-9A-F]{4}\.[0-9A-F]{4})(?![\w:]|-\w)",
    re.IGNORECASE | re.ASCII,
)


def find_mac(text: str) -> Iterator[Finding]:
    for match in _MAC.finditer(text):
        if len(set(match[0].upper()) - set(":-.")) > 1:
            yield Finding("MAC_ADDRESS", match.start(), match.end(), 0.9 if match[1] else 0.6)


IP_ADDRESS = Pattern("IP_ADDRESS", 45 + ContextWords.BEFORE, find_ip)
MAC_ADDRESS = Pattern("MAC_ADDRESS", 17, find_mac)
