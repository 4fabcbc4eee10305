"""A supportive reply to somebody who speaks of self-harm, in place of a refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.guards.texts.request_texts import RequestText
from gateway.types import Call, Chunk, Json, Usage

SELF_HARM = "self_harm"
"""The label of such findings."""
HEADER = "x-tollgate-guard"
MESSAGE = """\
I'm really sorry that you are going through this, and I'm glad that you said it. You don't have to carry it alone.

If you might act on these thoughts, or are hurt already, please call your local emergency number now, or go to the \
nearest emergency department. If you can, let someone stay with you, and keep away from anything that could hurt you.

Otherwise, please talk to somebody today: a person you trust, a doctor or therapist, or a crisis line, where people \
listen at any hour. Searching for "crisis line" and the name of your country finds one.

If I misunderstood you, please tell me in other words what you need."""
"""Names no telephone number: none is right in every country. An operator who knows where callers are writes it in."""


@dataclass(frozen=True, slots=True)
class Support:
    """The whole answer to a request: no model is asked, and no token is counted."""

    guard: str
    message: str

    def chunks(self, call: Call) -> Iterator[Chunk]:
        """An ordinary answer in each choice, and the header that tells it apart."""
        call.reply_headers[HEADER] = f"{self.guard}; action=support; category={SELF_HARM}"
        # A client that wants JSON would fail at a text; in ``refusal`` it expects one.
        field = "refusal" if _wants_json(call) else "content"
        last = call.request.choices - 1
        for index in range(last + 1):
            yield Chunk(index, {"role": "assistant", field: self.message}, more=True)
            yield Chunk(index, {}, "stop", usage=Usage(0, 0) if index == last else None, more=index < last)


def calls_for_support(texts: Sequence[RequestText], harmful: Sequence[int], message: str) -> bool:
    """Whether a user speaks of self-harm in a text that was not answered with ``message`` yet.

    ``harmful`` has the indexes of the texts that do. A conversation goes on after that answer; in what tools and
    documents say nobody asks for help.
    """
    said = message.strip()
    answered = max(
        (at for at, one in enumerate(texts) if one.origin == "assistant" and one.text.strip() == said),
        default=-1,
    )
    return any(at > answered and texts[at].origin == "user" for at in harmful)


def _wants_json(call: Call) -> bool:
    wanted: Json = call.request.params.get("response_format")
    return (
        call.request.native is None
        and isinstance(wanted, Mapping)
        and wanted.get("type") in ("json_schema", "json_object")
    )
