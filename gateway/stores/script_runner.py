"""Runs Lua scripts in Redis by their names, and loads them where a server has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import asyncio as redis
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)

from gateway.stores.redis_link import RedisLink
from gateway.stores.script import Command, Script

_NOT_ITS_OWN = (AskError, ClusterDownError, MasterDownError, MovedError, ReadOnlyError, TryAgainError)
"""Errors of a server that has no say in these keys any more, or not yet."""


class ScriptRunner:
    """On one server, by its ``link``."""

    def __init__(self, link: RedisLink, scripts: Sequence[Script]) -> None:
        self._link = link
        self._scripts = scripts
        self._loaded = False
        """Whether the scripts were loaded since the server was last down."""

    def forget(self) -> None:
        """Another server may answer from now on, or the same without scripts."""
        self._loaded = False

    async def run(self, commands: Sequence[Command], seconds: float, *, probing: bool = False) -> list[Any]:
        """One round trip; an answer may be an error of its own command. Raises ``StoreDown``."""
        load = () if self._loaded else self._scripts

        async def request(client: redis.Redis) -> list[Any]:
            async with client.pipeline(transaction=False) as pipe:
                for script in load:
                    pipe.execute_command("SCRIPT LOAD", script.text)
                for command in commands:
                    pipe.evalsha(command.script.sha, len(command.keys), *command.keys, *command.args)
                answers = (await pipe.execute(raise_on_error=False))[len(load) :]
            self._loaded = True
            if any(isinstance(answer, NoScriptError) for answer in answers):
                self._loaded = False
                raise RedisError("it was restarted")  # and may have lost all else with its scripts
            for answer in answers:
                if isinstance(answer, _NOT_ITS_OWN):
                    raise answer
            return answers

        return await self._link.ask(request, seconds, probing=probing)
