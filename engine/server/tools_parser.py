"""Tool calls parsed from a model's text, incrementally."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.server.detokenizer import overlap
from engine.server.tools import MISTRAL, Format
from engine.server.tools_source import Broken, Reading, Source, decoded, is_held, is_object
from engine.server.tools_unmarked import UnmarkedCalls, offered
from engine.server.tools_xml import CLOSING, read_name, read_parameters

_LONGEST_NAME = 256


@dataclass(slots=True)
class CallDelta:
    """More of one call."""

    index: int
    """Which of the answer's calls."""
    id: str | None = None
    """Set in the first part of a call only, as is the name."""
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class Parsed:
    text: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class ToolParser:
    """Extracts calls from text. What turns out not to be a call is passed on as text, unchanged.

    A call is streamed: its name is emitted once its arguments begin, and they follow as they come. With ``whole`` a
    call is emitted when it is complete, so that an incomplete one can be passed on as text; a stream that has emitted
    the beginning of a call passes what does not belong to it on as text. White space before a call is dropped.
    """

    def __init__(
        self,
        format: Format,
        names: Collection[str],
        *,
        whole: bool = False,
        only: int | None = None,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        unmarked: bool = True,
        distinct: bool = False,
        strict: Collection[str] = (),
    ) -> None:
        """``names``: of the tools, which distinguish a call without a marker from an answer in JSON.
        ``only``: calls after which the rest is dropped. ``schemas``: tools' parameters, which distinguish text from
        JSON. ``unmarked``: whether an answer may be calls without their format's marker (``tools_unmarked``).
        ``distinct``: a call that was made before ends the answer; one that begins like it is held back. ``strict``:
        tools that are called only where a grammar holds their arguments; without a marker that is not everywhere."""
        self._schemas = schemas or {}
        self._format = format
        self._names = names
        self._whole = whole
        self._only = only
        self._distinct = distinct
        self._made: dict[tuple[str, str], str] = {}
        """Names and arguments of the calls emitted completely, and these as ``_compact`` has them."""
        self._repeated = False
        """Whether a call was made twice."""
        self.complete = 0
        """Calls emitted completely."""
        self._strict = strict
        self._unmarked = (
            UnmarkedCalls(names, alone=not format.bare, strict=strict) if unmarked and names else None
        )
        """While the answer may be such calls; then nothing else has been read yet."""
        self._text = ""
        """Not emitted yet, as a marker may begin in it."""
        self._spoken = False
        """Whether anything but white space was emitted as text."""
        self._out = Parsed()
        self._reading: Reading | None = None
        self._raw: list[str] = []
        """What was read of a call that has not been emitted."""
        self._source = Source()
        self._name: str | None = None
        self._arguments: list[str] | None = None
        """Arguments not emitted yet; ``None`` outside of a call's arguments."""
        self._read_arguments: list[str] = []
        self._emitted = False
        self._end = 0
        """Where the arguments end in what was read, once they have."""
        self._put = 0
        """The same of the last argument, where arguments come in tags."""
        self._marked = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must be decoded, special tokens or not."""
        return self._format.markers

    @property
    def done(self) -> bool:
        """Whether the rest is ignored."""
        return self._repeated or (self._only is not None and self.complete >= self._only)

    def push(self, text: str) -> Parsed:
        if self._unmarked is not None:
            if self._unmarked.push(text):
                return Parsed()
            text, self._unmarked = self._unmarked.held, None
        self._text += text
        while self._text and not self.done and self._step():
            pass
        self._tell()
        return self._release()

    def finish(self, *, cut: bool) -> Parsed:
        """The rest. ``cut``: the answer is incomplete; a call that has begun is emitted as far as it goes."""
        if self._unmarked is not None:
            if calls := self._unmarked.finish()[: self._only]:
                self.complete = len(calls)
                return Parsed(calls=[self._whole_call(i, *call) for i, call in enumerate(calls)])
            self._text, self._unmarked = self._unmarked.held, None
        if self._reading is not None:
            if cut and self._arguments is not None and self._name is not None:
                self._whole = False
                if not self._emitted and self._may_repeat(self._name):
                    self._reset()
                else:
                    self._tell()
            self._give_up(cut=cut)
        rest = self._text.lstrip()
        behind = self.complete and not self._spoken
        nothing = behind and (not rest or (cut and self._format.end.startswith(rest)))
        if not self.done and not nothing:
            self._say(self._text)
        self._text = ""
        return self._release()

    def _whole_call(self, index: int, name: str, arguments: str) -> CallDelta:
        return CallDelta(index, self._format.new_id(), name, arguments)

    def _release(self) -> Parsed:
        out, self._out = self._out, Parsed()
        return out

    def _say(self, text: str) -> None:
        self._out.text += text
        self._spoken = self._spoken or bool(text.strip())

    def _step(self) -> bool:
        """Whether there was progress."""
        return self._look() if self._reading is None else self._read()

    def _look(self) -> bool:
        """Emits text up to where a call begins."""
        text, form = self._text, self._format
        rest = text.lstrip()
        space = text[: len(text) - len(rest)]
        if self.complete and not self._spoken:
            # Between calls, or after the last.
            for sign in (form.end, ";" if form.bare else ""):
                if sign and rest.startswith(sign):
                    self._text = rest[len(sign) :]
                    return True
        if form.bare and not self._spoken and rest.startswith("{"):
            self._begin(space, rest, marked=False)
            return True
        begins = (form.begin, *form.others)
        places = [(text.find(sign), sign) for sign in begins if sign in text]
        if places:
            place, begin = min(places)
            before = text[:place]
            self._say(before.rstrip())
            self._begin(before[len(before.rstrip()) :] + begin, text[place + len(begin) :], marked=True)
            return True
        signs = (*begins, form.end) if self.complete and form.end else begins
        keep = max(overlap(text, sign) for sign in signs)
        certain = text[: len(text) - keep].rstrip()
        self._say(certain)
        self._text = text[len(certain) :]
        return False

    def _begin(self, raw: str, rest: str, *, marked: bool) -> None:
        self._raw, self._text, self._marked = [raw], rest, marked
        if self._format.layout == "xml":
            self._reading = self._read_tags(opened=raw.endswith(self._format.others))
        elif self._format.layout == "channel":
            self._reading = self._read_args("", "<|message|>")
        else:
            self._reading = self._read_one() if self._format.layout == "object" else self._read_several()
        next(self._reading)

    def _read(self) -> bool:
        assert self._reading is not None
        for place, char in enumerate(self._text):
            self._raw.append(char)
            try:
                self._reading.send(char)
            except StopIteration:
                self._reading = None
                self._text = self._text[place + 1 :]
                return True
            except Broken:
                self._raw.pop()
                self._text = self._text[place:]
                self._give_up()
                return True
            if self.done:
                break
        self._text = ""
        return False

    def _give_up(self, *, cut: bool = False) -> None:
        """The call ends here; what was not emitted of it is text."""
        self._reading = None
        self._source.pushed_back = ""
        at = self._end or self._put
        behind = "".join(self._raw[at:]) if at else ""
        if at and not self._end and CLOSING.startswith(behind.strip()):
            # All is there but the last tag.
            self._arguments_sink("}")
            self._complete()
            return
        if self._end and self._name is not None and not behind.strip("} \t\r\n"):
            # All is there but the last brace, of two perhaps.
            self._complete()
            return
        if not self._emitted:
            self._say("".join(self._raw))
        else:
            self._say("".join(self._arguments or ()) + ("" if cut and not self._end else behind))
        self._reset()

    def _reset(self) -> None:
        self._raw.clear()
        self._read_arguments.clear()
        self._name, self._arguments, self._emitted, self._end, self._put = None, None, False, 0, 0

    # Below: coroutines that parse a call character by character.

    def _read_one(self) -> Reading:
        yield from self._source.sign("{")
        return (yield from self._read_fields())

    def _read_several(self) -> Reading:
        """A list of calls, or a name and arguments: models of one family write either."""
        char = yield from self._source.sign()
        if char != "[" and self._format.begin != MISTRAL.begin:
            raise Broken
        if char != "[":
            return (yield from self._read_args(char, "[ARGS]"))
        while True:
            yield from self._source.sign("{")
            yield from self._read_fields()
            if (yield from self._source.sign(",", "]")) == "]":
                return ""

    def _read_args(self, name: str, sign: str) -> Reading:
        """name[ARGS]{…}, or name[CALL_ID]…[ARGS]{…} as templates print past calls; in channels name<|message|>{…}, or
        more of a header between. ``sign``: what stands before the arguments."""
        while not name.endswith(sign):
            name += yield from self._source.next()
            if len(name) > _LONGEST_NAME:
                raise Broken
        name = name.removesuffix(sign)
        name = name.split("[CALL_ID]")[0] if sign == "[ARGS]" else re.split(r"[\s<]", name)[0]
        self._name = self._known(name.strip())
        yield from self._read_arguments_of((yield from self._source.sign("{")))
        self._complete()
        return ""

    def _read_tags(self, *, opened: bool) -> Reading:
        self._name = self._known((yield from read_name(self._source.next, opened=opened)))
        self._arguments = []
        yield from read_parameters(self._source.next, self._schemas.get(self._name, {}), self._put_argument)
        self._end = len(self._raw)
        self._complete()
        return ""

    def _put_argument(self, text: str) -> None:
        self._arguments_sink(text)
        self._put = len(self._raw)

    def _read_fields(self, *, inner: bool = False) -> Reading:
        """The fields of a call's object after its first brace, in any order."""
        char = yield from self._source.sign('"', "}", "{")
        doubled = char == "{"
        if doubled:
            char = yield from self._source.sign('"')
        seen, held, before, name = False, False, "", ""
        while char != "}":
            written = yield from self._source.value('"')
            key = decoded(written)
            yield from self._source.sign(":")
            char = yield from self._source.sign()
            if key == "name" and char == '"' and self._name is None:
                name = yield from self._source.value(char)
                self._name = self._known(decoded(name))
            elif key in ("arguments", "parameters") and not seen:
                seen, held = True, self._marked or is_held(before, name, written, char)
                if not held and self._name in self._strict:
                    raise Broken
                yield from self._read_arguments_of(char)
            elif key == "function" and char == "{" and not inner:
                yield from self._read_fields(inner=True)
            elif self._marked or key in ("type", "id"):
                yield from self._source.value(char)
            else:
                raise Broken
            before = written
            if seen and not held and self._name in self._strict:
                raise Broken
            if (char := (yield from self._source.sign(",", "}"))) == ",":
                char = yield from self._source.sign('"')
        if doubled:
            yield from self._source.sign("}")
        if not inner:
            self._complete()
        return ""

    def _known(self, name: str) -> str:
        known = offered(name, self._names)
        if not name or (known is None and not self._marked):
            raise Broken
        return known or name

    def _read_arguments_of(self, char: str) -> Reading:
        self._arguments = []
        if char == "{":
            yield from self._source.value(char, self._arguments_sink)
        elif char == '"':
            # Some models write the object as a string, as OpenAI's API does.
            self._arguments_sink(decoded((yield from self._source.value(char))))
        elif (yield from self._source.value(char)) == "null":
            self._arguments_sink("{}")
        else:
            raise Broken
        if not is_object("".join(self._read_arguments)):
            self._arguments.pop()  # the sign that shows it, which is text as what follows
            raise Broken
        self._end = len(self._raw)
        return ""

    def _arguments_sink(self, text: str) -> None:
        assert self._arguments is not None
        self._arguments.append(text)
        self._read_arguments.append(text)

    def _complete(self) -> None:
        if self._name is None:
            raise Broken
        if self._arguments is None:
            self._arguments = ["{}"]
        if self._distinct:
            read = "".join(self._read_arguments) or "{}"
            call = self._name, json.dumps(json.loads(read), sort_keys=True)
            if call in self._made:
                self._repeated = True
                self._reset()
                return
            self._made[call] = _compact(read)
        self._tell(complete=True)
        self.complete += 1
        self._spoken = False
        self._reset()

    def _tell(self, *, complete: bool = False) -> None:
        """Emits what is new of the call that is being read, if allowed."""
        if self._name is None or not self._arguments or (self._whole and not complete):
            return
        if not complete and not self._emitted and self._may_repeat(self._name):
            return
        delta = CallDelta(self.complete, arguments="".join(self._arguments))
        if not self._emitted:
            delta.id, delta.name = self._format.new_id(), self._name
        self._emitted = True
        self._arguments = []
        self._out.calls.append(delta)

    def _may_repeat(self, name: str) -> bool:
        """Whether the call being read begins like one that was made."""
        read = _compact("".join(self._read_arguments)) if self._made else ""
        return any(made == name and begun.startswith(read) for (made, _), begun in self._made.items())


def _compact(arguments: str) -> str:
    """Without white space, in which repetitions may differ."""
    return "".join(arguments.split())
