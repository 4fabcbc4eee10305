"""A set of tables, and the way to it from each earlier version."""

from __future__ import annotations

import logging
from dataclasses import dataclass

log = logging.getLogger(__name__)


def log_migration(where: object, before: int, version: int) -> None:
    """What was new has not been migrated."""
    if before:
        log.info(
            "%s: its tables were migrated from version %d to %d. Tollgates that know only version %d do not read it "
            "any more; docs/upgrading.md tells the way back",
            where,
            before,
            version,
            before,
        )


def too_new(version: int, known: int) -> str:
    return (
        f"its tables have version {version}, this program knows {known}: a later Tollgate has migrated them. Start "
        "that one, or restore the backup from before (docs/upgrading.md)"
    )


@dataclass(frozen=True, slots=True)
class Migrations:
    """In SQLite a set has a file of its own, in PostgreSQL a table ``<name>_version`` in the schema they all share."""

    name: str
    steps: tuple[tuple[str, ...], ...]
    """The statements that lead from each version to the next, the first from none at all. Other sets than the ledger's
    are written in the SQL that both databases have."""
    snapshot: bool = False
    """Whether a change on a PostgreSQL server sees all as it was when it began. Without it each statement sees what
    was changed before it, and changes of one set follow one another."""

    @property
    def version(self) -> int:
        return len(self.steps)

    @property
    def scripts(self) -> dict[int, str]:
        """For SQLite: what leads from each earlier version to this one."""
        return {
            version: ";\n".join(statement for step in self.steps[version:] for statement in step)
            for version in range(self.version)
        }
