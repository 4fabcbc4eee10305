"""Reads a batch's input: its lines become rows, or it fails with a list of what is wrong with which line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gateway.batches.batch import MOST_NUMBER
from gateway.batches.input_lines import InputLine, LineError
from gateway.batches.line import Line
from gateway.types import Json

MOST_ERRORS = 1000
"""That are listed; the rest only fail the batch."""
MOST_INPUTS = 50_000
"""Texts to embed, of all lines together."""
CHUNK = 2**20
"""Bytes that are checked, and written, at once; more where one line is longer."""
LONGEST_LINE = 32 * 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Parse = Callable[[bytes, str], Awaitable[list[InputLine | LineError | None]]]
"""``read_lines``, in another process."""
Keep = Callable[[Sequence[Line]], Awaitable[object]]
Refusal = Callable[[str], LineError | None]
"""Why a model may not be used; None where it may."""


@dataclass(slots=True)
class Checked:
    """What an input came to."""

    lines: int = 0
    models: set[str] = field(default_factory=set)
    errors: list[dict[str, Json]] = field(default_factory=list)

    def add_error(self, line: int | None, error: LineError) -> None:
        if len(self.errors) < MOST_ERRORS:
            value = {"code": error.code, "line": line, "message": error.message, "param": error.param}
            self.errors.append(value)


class Validation:
    """Of one input. ``keep`` is given good lines as they are found, until one is bad."""

    def __init__(self, endpoint: str, *, most_lines: int, parse: Parse, keep: Keep, refusal: Refusal) -> None:
        self._endpoint = endpoint
        self._most_lines = most_lines
        self._parse = parse
        self._keep = keep
        self._refusal = refusal
        self._refusals: dict[str, LineError | None] = {}
        self._ids: dict[str, int] = {}
        self._inputs = 0
        self._number = 0
        self._found = Checked()

    async def of(self, parts: AsyncIterator[bytes]) -> Checked:
        """Read ``parts``, the file."""
        found = self._found
        async for lines in _whole_lines(parts):
            if lines is None:
                found.add_error(
                    self._number + 1,
                    LineError("invalid_json_line", f"This line has more than {LONGEST_LINE:,} bytes."),
                )
                return found
            good = [
                line
                for one in await self._parse(lines, self._endpoint)
                if (line := self._checked(one)) is not None
            ]
            if found.lines > self._most_lines or self._number > MOST_NUMBER or self._inputs > MOST_INPUTS:
                found.add_error(None, self._too_many())
                return found
            if good and not found.errors:
                await self._keep(good)
        if not found.lines and not found.errors:
            found.add_error(None, LineError("empty_file", "The input file has no lines."))
        return found

    def _checked(self, one: InputLine | LineError | None) -> Line | None:
        self._number += 1
        found, number = self._found, self._number
        if one is None:
            return None
        found.lines += 1
        if isinstance(one, LineError):
            found.add_error(number, one)
            return None
        before = self._ids.setdefault(one.custom_id, number)
        if before != number:
            error = LineError("duplicate_custom_id", f"Line {before} has the same custom_id.", "custom_id")
            found.add_error(number, error)
            return None
        if one.model not in self._refusals:
            self._refusals[one.model] = self._refusal(one.model) if one.model else None
        if (refusal := self._refusals[one.model]) is not None:
            found.add_error(number, refusal)
            return None
        found.models.add(one.model)
        self._inputs += one.inputs
        return Line(number, one.custom_id, one.model, one.prefix, one.body)

    def _too_many(self) -> LineError:
        if self._number > MOST_NUMBER:
            return LineError(
                "too_many_tasks", f"The file has more than {MOST_NUMBER:,} lines, most of them empty."
            )
        if self._found.lines > self._most_lines:
            return LineError(
                "too_many_tasks", f"The input has more than {self._most_lines:,} lines. Make several batches."
            )
        return LineError(
            "too_many_tasks",
            f"The input has more than {MOST_INPUTS:,} texts to embed. Make several batches.",
        )


async def _whole_lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes | None]:
    """Lines, many at once; None, and no more, where one is too long."""
    waiting: list[bytes] = []
    size, first = 0, True
    async for part in parts:
        if first:
            part, first = part.removeprefix(_BYTE_ORDER_MARK), False
        waiting.append(part)
        size += len(part)
        if size > CHUNK and b"\n" in part:
            data = b"".join(waiting)
            end = data.rindex(b"\n") + 1
            yield data[:end]
            waiting, size = [data[end:]], len(data) - end
        elif size > LONGEST_LINE + CHUNK:
            yield None
            return
    if size:
        yield b"".join(waiting)
