"""Tasks for pydantic-ai as one writes them for a small model: outputs by a schema, functions whose call ends the run,
and tools that are not offered again."""

from __future__ import annotations

import datetime
from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.tools import ToolDefinition

from benchmarks.agents.pydantic_agents import LIMITS, NAME, SETTINGS, model_of
from benchmarks.agents.task import Bench, Task, holds


async def not_answered(ctx: RunContext[None], tool: ToolDefinition) -> ToolDefinition | None:
    """A tool that is not offered again once it has answered."""
    parts = [part for message in ctx.messages for part in message.parts]
    return None if any(isinstance(part, ToolReturnPart) for part in parts) else tool


class Invoice(BaseModel):
    """What an invoice says."""

    number: str
    issued: datetime.date
    seller: str
    total: float
    currency: Literal["EUR", "USD", "GBP"]


async def extract(bench: Bench) -> None:
    agent = Agent(
        model_of(bench),
        instructions="Take the data of the invoice from the text.",
        output_type=Invoice,
        model_settings=SETTINGS,
    )
    text = (
        "Harbour Tools Ltd. Invoice 2026-0318, 3 November 2026. 4 clamps 36.00, 1 vice 89.50, "
        "delivery 12.00. Total due 137.50 GBP within 30 days."
    )
    found = (await agent.run(text, usage_limits=LIMITS)).output
    holds(found.number.endswith("2026-0318") and found.issued == datetime.date(2026, 11, 3), repr(found))
    holds("Harbour Tools" in found.seller, repr(found))
    holds((found.total, found.currency) == (137.5, "GBP"), repr(found))


async def convert(bench: Bench) -> None:
    def to_euros(amount: float, currency: Literal["USD", "GBP", "CHF"]) -> str:
        """Convert an amount of money to euros."""
        bench.calls.append(("to_euros", amount, currency))
        return f"{amount * {'USD': 0.9, 'GBP': 1.15, 'CHF': 1.05}[currency]:.2f} EUR"

    agent = Agent(
        model_of(bench),
        instructions="Convert what the user asks for.",
        output_type=to_euros,
        model_settings=SETTINGS,
    )
    result = await agent.run("How much are 250 Swiss francs in euros?", usage_limits=LIMITS)
    holds(bench.calls == [("to_euros", 250, "CHF")], f"calls: {bench.calls}")
    holds(result.output == "262.50 EUR", result.output)


async def german(bench: Bench) -> None:
    def termin(titel: str, tag: datetime.date, uhrzeit: datetime.time) -> str:
        """Trägt einen Termin in den Kalender ein."""
        bench.calls.append(("termin", titel, tag, uhrzeit))
        return f"{titel}: {tag:%d.%m.%Y}, {uhrzeit:%H:%M} Uhr"

    agent = Agent(
        model_of(bench),
        instructions="Trage die Termine des Benutzers ein. Der Titel ist kurz.",
        output_type=termin,
        model_settings=SETTINGS,
    )
    result = await agent.run("Ich habe am 14. März 2027 um 9:30 Uhr einen Termin beim Zahnarzt.")
    holds(len(bench.calls) == 1, f"calls: {bench.calls}")
    _, title, day, time = bench.calls[0]
    holds("zahnarzt" in title.lower(), f"calls: {bench.calls}")
    holds(
        (day, time.replace(tzinfo=None)) == (datetime.date(2027, 3, 14), datetime.time(9, 30)),
        f"calls: {bench.calls}",
    )
    holds(result.output.endswith("14.03.2027, 09:30 Uhr"), result.output)


async def stock(bench: Bench) -> None:
    agent = Agent(
        model_of(bench),
        instructions="Look up products with the tool. Then answer in one short sentence from what it said.",
        model_settings=SETTINGS,
    )

    @agent.tool_plain(prepare=not_answered)
    def in_stock(sku: str) -> str:
        """How many pieces of a product are in stock."""
        bench.calls.append(("in_stock", sku))
        return "17 pieces"

    result = await agent.run("How many pieces of SKU-0042 do we have in stock?", usage_limits=LIMITS)
    holds(bench.calls == [("in_stock", "SKU-0042")], f"calls: {bench.calls}")
    holds("17" in result.output, result.output)


class Todo(BaseModel):
    """A task on a list."""

    task: str
    priority: Literal["low", "high"] = Field(description="high if it is said to be urgent, else low")


async def todos(bench: Bench) -> None:
    agent = Agent(
        model_of(bench),
        instructions="Make a list of the tasks in the message, in their order.",
        output_type=list[Todo],
        model_settings=SETTINGS,
        retries=2,
    )

    @agent.output_validator
    def short(found: list[Todo]) -> list[Todo]:
        if any(len(one.task) > 60 for one in found):
            raise ModelRetry("Each task has at most 60 characters.")
        return found

    found = (
        await agent.run(
            "Today: water the plants, book the train to Graz (urgent!), and answer Tom's mail.",
            usage_limits=LIMITS,
        )
    ).output
    holds(len(found) == 3, repr(found))
    words = all(
        word in one.task.lower() for word, one in zip(("plants", "train", "mail"), found, strict=True)
    )
    holds(words, repr(found))
    holds([one.priority for one in found] == ["low", "high", "low"], repr(found))


TASKS = (
    Task("extract an invoice (output_type)", NAME, extract),
    Task("convert money (output function)", NAME, convert),
    Task("German: an appointment (output function)", NAME, german),
    Task("look up stock, and answer from it (prepare)", NAME, stock),
    Task("a list of tasks (output_type, validator)", NAME, todos),
)
