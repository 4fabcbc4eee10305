"""What a ``pii`` guard is to let pass: the operator's own domains and networks, test cards, certain texts."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from gateway.guards.scanners.normalised import plain
from gateway.pii.test_cards import TEST_CARDS
from gateway.policy.schema.guards import PiiAllow

_SEPARATORS = str.maketrans("", "", " .-/()\u00a0")


class Allowed:
    """Asked by a finding's label and text."""

    def __init__(self, config: PiiAllow) -> None:
        self._domains = tuple(domain.lower().strip(".") for domain in config.domains)
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(each) for each in config.networks]
        self._test_cards = config.test_cards
        self._texts = frozenset(_bare(text) for text in config.texts)
        self.is_empty = not (self._domains or self._networks or self._test_cards or self._texts)

    def __call__(self, label: str, text: str) -> bool:
        text = plain(text)
        if self._texts and _bare(text) in self._texts:
            return True
        if label == "CREDIT_CARD":
            return self._test_cards and text.translate(_SEPARATORS) in TEST_CARDS
        return any(self._is_own(host) for host in _hosts(label, text))

    def _is_own(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return any(host == domain or host.endswith(f".{domain}") for domain in self._domains)
        return any(address in network for network in self._networks)


def _bare(text: str) -> str:
    return plain(text).translate(_SEPARATORS).casefold()


def _hosts(label: str, text: str) -> Iterator[str]:
    """The one host that an e-mail address, a URL or an address of a machine names."""
    if label == "IP_ADDRESS":
        yield text
    elif label == "EMAIL_ADDRESS":
        yield text.rpartition("@")[2].lower()
    elif label == "URL":
        try:
            yield (urlsplit(text if "://" in text else f"//{text}").hostname or "").rstrip(".")
        except ValueError:
            return
