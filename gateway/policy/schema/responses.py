"""``responses``: what ``/v1/responses`` keeps, for ``previous_response_id`` and to be fetched again."""

from __future__ import annotations

from gateway.policy.schema.values import Frozen, Size, Timeout


class ResponseSettings(Frozen):
    """Responses and their input are kept where ``store`` says, for their tenant alone."""

    enabled: bool = True
    """``false`` keeps nothing, whatever a request asks for."""
    ttl: Timeout = 86_400.0
    """From when it was given, or continued."""
    max_bytes: Size = 64 * 2**20
    """In memory, of each worker; a Redis store has bounds of its own."""
    max_entry: Size = 8 * 2**20
    """Of one response and its own input; longer ones are not kept."""
