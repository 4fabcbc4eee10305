"""The system in one package: what flows through the gateway, and the one shape every part of it has.

A ``Handler`` turns a ``Call`` into an async stream of ``Chunk``; a ``Stage`` makes a handler out of the next one, and
``backends.dispatch`` one out of all backends. An answer that is not streamed is the same stream, read to its end before
anything is sent, or, where no stage needs a stream, a list of chunks (``WholeHandler``).
"""

from __future__ import annotations

from gateway.policy.schema import HOUSE
from gateway.types.call import Allowance, Arm, BatchLine, Call, Candidate, EstimatesTokens
from gateway.types.chat_request import ChatRequest, Native
from gateway.types.chunk import Chunk, Chunks
from gateway.types.handlers import AnswersWhole, Backend, CountsTokens, Handler, PassesOn, Stage, WholeHandler
from gateway.types.json_value import Json
from gateway.types.principal import EVALUATION, Principal
from gateway.types.receipt import NOT_STORED, Notes, Receipt
from gateway.types.sink import Sink
from gateway.types.usage import MOST_TOKENS, Purpose, TokenEstimate, UpstreamUsage, Usage

__all__ = [
    "EVALUATION",
    "HOUSE",
    "MOST_TOKENS",
    "NOT_STORED",
    "Allowance",
    "AnswersWhole",
    "Arm",
    "Backend",
    "BatchLine",
    "Call",
    "Candidate",
    "ChatRequest",
    "Chunk",
    "Chunks",
    "CountsTokens",
    "EstimatesTokens",
    "Handler",
    "Json",
    "Native",
    "Notes",
    "PassesOn",
    "Principal",
    "Purpose",
    "Receipt",
    "Sink",
    "Stage",
    "TokenEstimate",
    "UpstreamUsage",
    "Usage",
    "WholeHandler",
]
