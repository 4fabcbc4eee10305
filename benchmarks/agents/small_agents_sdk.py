"""Tasks for OpenAI's Agents SDK as one writes them for a small model: one tool each, which is there once; forced where
it must be called; steps in code."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from agents import Agent, ModelSettings, RunContextWrapper, Runner, function_tool
from agents.agent import AgentBase
from benchmarks.agents.agents_sdk import NAME, SETTINGS, TURNS, model_of
from benchmarks.agents.task import Bench, Task, holds

CALLS = SETTINGS.resolve(ModelSettings(tool_choice="required"))
"""The SDK asks for one call and then leaves the choice to the model (``reset_tool_choice``)."""
Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


def not_called(context: RunContextWrapper[Bench], agent: AgentBase[Bench]) -> bool:
    """A tool that is not offered again once it has answered."""
    return not context.context.calls


async def look_up(bench: Bench) -> None:
    @function_tool(is_enabled=not_called)
    def opening_hours(context: RunContextWrapper[Bench], day: Day) -> str:
        """When the shop is open on a day of the week."""
        bench.calls.append(("opening_hours", day))
        return "closed" if day == "sunday" else "09:00-13:00" if day == "saturday" else "09:00-18:30"

    agent = Agent[Bench](
        name="Shop",
        instructions="You answer customers of a shop. Answer in one sentence, from what the tool says.",
        tools=[opening_hours],
        model=model_of(bench),
        model_settings=CALLS,
    )
    question = "Until when are you open on Saturday?"
    result = await Runner.run(agent, question, context=bench, max_turns=TURNS)
    holds(bench.calls == [("opening_hours", "saturday")], f"calls: {bench.calls}")
    said = result.final_output.lower()
    holds("13:00" in said or "1 pm" in said or "1:00 pm" in said, said)


async def line_of_a_file(bench: Bench) -> None:
    lines = {"hosts.txt": ["10.0.0.1 gate", "10.0.0.7 mail", "10.0.0.9 printer", "10.0.0.12 backup"]}

    @function_tool
    def read_line(path: str, line: int) -> str:
        """Read one line of a text file. Lines count from 1."""
        bench.calls.append(("read_line", path, line))
        return lines[path][line - 1]

    agent = Agent(
        name="Reader",
        instructions="Read the line that the user asks for.",
        tools=[read_line],
        tool_use_behavior="stop_on_first_tool",
        model=model_of(bench),
        model_settings=CALLS,
    )
    result = await Runner.run(agent, "Show me line 3 of hosts.txt.", max_turns=TURNS)
    holds(bench.calls == [("read_line", "hosts.txt", 3)], f"calls: {bench.calls}")
    holds(result.final_output == "10.0.0.9 printer", result.final_output)


async def calculate(bench: Bench) -> None:
    @function_tool(is_enabled=not_called)
    def price(context: RunContextWrapper[Bench], pieces: int, euros_each: float) -> str:
        """The price of an order in euros."""
        bench.calls.append(("price", pieces, euros_each))
        return f"{pieces * euros_each:.2f} EUR"

    agent = Agent[Bench](
        name="Sales",
        instructions="Work out prices with the tool, never by yourself. Then tell the price in one sentence.",
        tools=[price],
        model=model_of(bench),
        model_settings=CALLS,
    )
    question = "What do 48 boxes cost at 19.50 euros each?"
    result = await Runner.run(agent, question, context=bench, max_turns=TURNS)
    holds(bench.calls == [("price", 48, 19.5)], f"calls: {bench.calls}")
    holds("936" in result.final_output, result.final_output)


async def chain(bench: Bench) -> None:
    """Three agents in a row, each with one thing to do."""

    @function_tool
    def find_customer(name: str) -> str:
        """Find a customer's id by name."""
        bench.calls.append(("find_customer", name))
        return "C-4711"

    @function_tool
    def get_balance(customer_id: str) -> str:
        """Get the balance of a customer by id."""
        bench.calls.append(("get_balance", customer_id))
        return "129.50 EUR"

    question = "What is the balance of Ada Lovelace?"
    model = model_of(bench)
    finder = Agent(
        name="Finder",
        instructions="Find the id of the customer that the user names.",
        tools=[find_customer],
        tool_use_behavior="stop_on_first_tool",
        model=model,
        model_settings=CALLS,
    )
    clerk = Agent(
        name="Clerk",
        instructions="Get the balance of the customer.",
        tools=[get_balance],
        tool_use_behavior="stop_on_first_tool",
        model=model,
        model_settings=CALLS,
    )
    writer = Agent(
        name="Writer",
        instructions="Answer the question in one sentence from the facts that are given.",
        model=model,
        model_settings=SETTINGS,
    )
    customer = (await Runner.run(finder, question, max_turns=TURNS)).final_output
    balance = (await Runner.run(clerk, f"The customer's id is {customer}.", max_turns=TURNS)).final_output
    result = await Runner.run(writer, f"Question: {question}\nFacts: the balance is {balance}.")
    wanted = [("find_customer", "Ada Lovelace"), ("get_balance", "C-4711")]
    holds(bench.calls == wanted, f"calls: {bench.calls}")
    holds("129.5" in result.final_output and "Lovelace" in result.final_output, result.final_output)


class Sorted(BaseModel):
    """Where a customer's mail belongs."""

    department: Literal["billing", "technical", "shipping"]


MAILS = {
    "I was charged twice for my subscription in October.": "billing",
    "The app crashes as soon as I open the settings.": "technical",
    "My parcel should have been here on Monday. Where is it?": "shipping",
    "Please send the invoice to our new address in Graz.": "billing",
}


async def classify(bench: Bench) -> None:
    agent = Agent(
        name="Mailroom",
        instructions=(
            "Sort mails of customers. billing: charges, invoices, refunds. technical: the app, errors, "
            "passwords. shipping: parcels and deliveries."
        ),
        output_type=Sorted,
        model=model_of(bench),
        model_settings=SETTINGS,
    )
    found = {mail: (await Runner.run(agent, mail)).final_output.department for mail in MAILS}
    holds(found == MAILS, f"{[(mail, found[mail]) for mail in MAILS if found[mail] != MAILS[mail]]}")


TASKS = (
    Task("look up by a tool, and answer from it", NAME, look_up),
    Task("a line of a file", NAME, line_of_a_file),
    Task("a price by a tool, and a sentence", NAME, calculate),
    Task("two tools and an answer: three agents in a row", NAME, chain),
    Task("classify four mails (output_type)", NAME, classify),
)
