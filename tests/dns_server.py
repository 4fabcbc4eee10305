"""A DNS server on a free port of this machine, for names that a test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class DnsServer(asyncio.DatagramProtocol):
    """``records``: by name, and by kind (``A``, ``SRV`` …), what they say, as in a zone file. A name that is not there
    does not exist; while ``refuses`` is set, nothing is answered but that."""

    def __init__(self) -> None:
        self.records: dict[str, Mapping[str, Sequence[str]]] = {}
        self.refuses = False
        self.asked = 0
        self.port = 0
        self._transport: Any = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, where: tuple[str | Any, int]) -> None:
        query = dns.message.from_wire(data)
        (question,) = query.question
        self.asked += 1
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.AA
        name, kind = str(question.name).rstrip("."), dns.rdatatype.to_text(question.rdtype)
        if self.refuses:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif name not in self.records:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif found := self.records[name].get(kind):
            answer.answer.append(dns.rrset.from_text(question.name, 0, "IN", kind, *found))
        self._transport.sendto(answer.to_wire(), where)


@asynccontextmanager
async def dns_server() -> AsyncIterator[DnsServer]:
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(
        DnsServer, local_addr=("127.0.0.1", 0)
    )
    try:
        yield server
    finally:
        transport.close()
