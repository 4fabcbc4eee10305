"""Tasks for pydantic-ai."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, ModelSettings, UsageLimits
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.agents.task import CHAT, Bench, Task, holds

NAME = "pydantic-ai"
SETTINGS = ModelSettings(temperature=0, max_tokens=200)
LIMITS = UsageLimits(request_limit=6)
"""A model that repeats itself ends here."""


def model_of(bench: Bench) -> Model:
    of = OpenAIChatModel if bench.api == CHAT else OpenAIResponsesModel
    return of(bench.model, provider=OpenAIProvider(openai_client=bench.client))


async def retry(bench: Bench) -> None:
    agent = Agent(
        model_of(bench),
        instructions="Answer by the tool. If a call fails, correct it and call again.",
        model_settings=SETTINGS,
        retries=2,
    )

    @agent.tool_plain
    def stock(sku: str) -> int:
        """How many pieces of a product are in stock."""
        bench.calls.append(("stock", sku))
        if sku != "SKU-0042":
            raise ModelRetry(
                "Unknown product. A sku is written as SKU- and four digits, for example SKU-0007."
            )
        return 17

    result = await agent.run("How many pieces of product 42 are in stock?", usage_limits=LIMITS)
    holds(len(bench.calls) > 1, f"no retry: {bench.calls}, {result.output}")
    holds(bench.calls[-1] == ("stock", "SKU-0042"), f"calls: {bench.calls}")
    holds("17" in result.output, result.output)


class Ticket(BaseModel):
    """A ticket made of a customer's message."""

    product: str
    severity: Literal["low", "medium", "high"]
    affected_users: int
    steps: list[str]


async def structured(bench: Bench) -> None:
    agent = Agent(model_of(bench), output_type=Ticket, model_settings=SETTINGS)
    result = await agent.run(
        "Make a ticket: The Billing app is down for all 250 users, this is very urgent. "
        "Steps: open the app, click Pay, see error 500.",
        usage_limits=LIMITS,
    )
    ticket = result.output
    holds(ticket.severity == "high" and ticket.affected_users == 250, repr(ticket))
    holds("billing" in ticket.product.lower() and len(ticket.steps) == 3, repr(ticket))


class Address(BaseModel):
    street: str
    city: str
    zip: str


class Line(BaseModel):
    product: str
    quantity: int


async def nested(bench: Bench) -> None:
    agent = Agent(model_of(bench), instructions="Place the order by the tool.", model_settings=SETTINGS)

    @agent.tool_plain
    def place_order(lines: list[Line], ship_to: Address, gift: bool) -> str:
        """Place an order."""
        bench.calls.append(("place_order", lines, ship_to, gift))
        return "Order 9031 is placed."

    result = await agent.run(
        "Order 2 notebooks and 5 pencils as a gift, to 12 Mill Road, Cambridge, CB1 2AD. "
        "Tell me the order's number.",
        usage_limits=LIMITS,
    )
    holds(len(bench.calls) == 1, f"calls: {bench.calls}")
    _, lines, ship_to, gift = bench.calls[0]
    ordered = [(line.product.lower().rstrip("s"), line.quantity) for line in lines]
    holds(ordered == [("notebook", 2), ("pencil", 5)] and gift is True, f"calls: {bench.calls}")
    holds(ship_to == Address(street="12 Mill Road", city="Cambridge", zip="CB1 2AD"), f"calls: {bench.calls}")
    holds("9031" in result.output, result.output)


async def german(bench: Bench) -> None:
    agent = Agent(
        model_of(bench),
        instructions="Du rechnest nie selbst, sondern immer mit dem Werkzeug. Antworte auf Deutsch, in einem Satz.",
        model_settings=SETTINGS,
    )

    @agent.tool_plain
    def rechne(a: float, operation: Literal["+", "-", "*", "/"], b: float) -> float:
        """Rechnet zwei Zahlen zusammen."""
        bench.calls.append(("rechne", a, operation, b))
        return {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else 0.0}[operation]

    result = await agent.run(
        "Eine Schraube kostet 0,37 Euro. Was kosten 4128 Schrauben?", usage_limits=LIMITS
    )
    holds(len(bench.calls) == 1, f"calls: {bench.calls}")
    _, a, operation, b = bench.calls[0]
    holds(operation == "*" and {a, b} == {0.37, 4128}, f"calls: {bench.calls}")
    holds("1527,36" in result.output.replace(".", "") or "1527.36" in result.output, result.output)
    holds("Euro" in result.output or "€" in result.output, result.output)


async def masked(bench: Bench) -> None:
    agent = Agent(
        model_of(bench), instructions="Send mails by the tool, then say to whom.", model_settings=SETTINGS
    )

    @agent.tool_plain
    def send_mail(to: str, text: str) -> str:
        """Send a mail to an address."""
        bench.calls.append(("send_mail", to, text))
        return f"Sent to {to}."

    result = await agent.run(
        "Write to grace.hopper@example.org that the meeting is at 10.", usage_limits=LIMITS
    )
    holds([call[1] for call in bench.calls] == ["grace.hopper@example.org"], f"calls: {bench.calls}")
    holds("10" in bench.calls[0][2], f"calls: {bench.calls}")
    holds("grace.hopper@example.org" in result.output, result.output)


TASKS = (
    Task("a tool's error, and a call that is corrected", NAME, retry),
    Task("structured output (output_type)", NAME, structured),
    Task("nested arguments: lines and an address", NAME, nested),
    Task("German: a calculator", NAME, german),
    Task("a mail to an address that the guard masks (pii)", NAME, masked, guarded=True),
)
