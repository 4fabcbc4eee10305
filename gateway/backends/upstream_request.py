"""What is asked of a model's server, and who reads its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gateway.backends.answer_decoder import AnswerDecoder
from gateway.backends.endpoint import Endpoint, Upload
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.errors import Rejected
from gateway.types import Chunks

DecoderOf = Callable[[bool], AnswerDecoder]
"""What reads an answer: given True, a stream, else a whole one."""


class UpstreamRequest(NamedTuple):
    endpoint: Endpoint
    headers: Mapping[str, str]
    timeouts: UpstreamTimeouts
    body: bytes | Upload
    decoder_of: DecoderOf
    owner: str = ""
    """Whose answers take turns with others' in one queue, where they take long."""
    on_headers: Callable[[Mapping[str, str]], None] | None = None
    """Called with an answer's headers before its first chunk."""
    on_send: Callable[[], None] | None = None
    """Called when it is about to be written."""
    refit: Callable[[Rejected], Chunks | None] | None = None
    """Called with a rejection that is the whole answer: its chunks, if any, are the answer then."""
