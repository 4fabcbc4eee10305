"""The database that the policy names for the ledger, which has the tables of other things, too."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gateway.databases.database import Database, DatabaseError
from gateway.databases.migrations import Migrations
from gateway.databases.postgres import PostgresDatabase
from gateway.databases.sqlite import SqliteDatabase
from gateway.policy.schema import LedgerSettings


def open_database(config: LedgerSettings, state_dir: Path) -> Database:
    """Connects at the first need only."""
    if config.store == "sqlite":
        return SqliteDatabase(state_dir / config.path)
    return PostgresDatabase(config.store, partial(_password, config.password_file))


def open_tables(tables: Migrations, config: LedgerSettings, state_dir: Path) -> Database:
    """Other tables than the ledger's, where the ledger is: on its server, or in a file of their own on this machine.

    Connects at the first need only.
    """
    if config.store == "sqlite":
        return SqliteDatabase(state_dir / f"{tables.name}.sqlite", tables.scripts)
    return PostgresDatabase(config.store, partial(_password, config.password_file), tables)


def _password(file: str | None) -> str | None:
    """Read anew for each connection: it may be rotated."""
    if file is None:
        return None
    try:
        return Path(file).read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DatabaseError(f"password_file '{file}' cannot be read: {error}") from error
