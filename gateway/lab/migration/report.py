"""What became of a configuration: what is written otherwise now, what is not, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Fate = Literal["changed", "dropped"]
_HEADINGS: dict[Fate, str] = {"changed": "Carried over in another form", "dropped": "Not carried over"}


class Note(NamedTuple):
    fate: Fate
    where: str
    """In the configuration: ``model_list[2].litellm_params.tags``."""
    what: str
    todo: str = ""


@dataclass(slots=True)
class Report:
    notes: list[Note] = field(default_factory=list)

    def changed(self, where: str, what: str, todo: str = "") -> None:
        self._add(Note("changed", where, what, todo))

    def dropped(self, where: str, what: str, todo: str = "") -> None:
        self._add(Note("dropped", where, what, todo))

    def _add(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def lines(self) -> Iterator[str]:
        """As Markdown. Notes that say the same of several places are one."""
        for fate, heading in _HEADINGS.items():
            places: dict[tuple[str, str], list[str]] = {}
            for note in self.notes:
                if note.fate == fate:
                    places.setdefault((note.what, note.todo), []).append(note.where)
            if not places:
                continue
            yield f"## {heading}"
            yield ""
            for (what, todo), where in places.items():
                shown = ", ".join(f"`{one}`" for one in where[:3])
                more = f" and {len(where) - 3} more" if len(where) > 3 else ""
                yield f"- {shown}{more}: {what}." + (f" **To do:** {todo}." if todo else "")
            yield ""
