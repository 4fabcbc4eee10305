"""Tasks for OpenAI's Agents SDK."""

from __future__ import annotations

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from benchmarks.agents.task import CHAT, Bench, Task, holds

set_tracing_disabled(True)
NAME = "Agents SDK"
SETTINGS = ModelSettings(temperature=0, max_tokens=200)
TURNS = 6
"""A model that repeats itself ends here."""


def model_of(bench: Bench) -> Model:
    of = OpenAIChatCompletionsModel if bench.api == CHAT else OpenAIResponsesModel
    return of(model=bench.model, openai_client=bench.client)


async def read_file(bench: Bench) -> None:
    @function_tool
    def read_file(path: str) -> str:
        """Read a text file.

        Args:
            path: The file's path.
        """
        bench.calls.append(("read_file", path))
        return "service: billing\nport: 8443\nreplicas: 3\n" if path == "deploy.yaml" else "No such file."

    agent = Agent(
        name="Reader",
        instructions="Answer questions about files. Read a file before you answer.",
        tools=[read_file],
        model=model_of(bench),
        model_settings=SETTINGS,
    )
    result = await Runner.run(agent, "Which port does the service in deploy.yaml use?", max_turns=TURNS)
    holds(bench.calls == [("read_file", "deploy.yaml")], f"calls: {bench.calls}")
    holds("8443" in result.final_output, result.final_output)


async def two_in_a_row(bench: Bench) -> None:
    @function_tool
    def find_customer(name: str) -> str:
        """Find a customer's id by name."""
        bench.calls.append(("find_customer", name))
        return "C-4711"

    @function_tool
    def get_balance(customer_id: str) -> str:
        """Get the balance of a customer in euros. Needs the customer's id."""
        bench.calls.append(("get_balance", customer_id))
        return "129.50 EUR"

    agent = Agent(
        name="Clerk",
        instructions="Use the tools. Find the customer's id first, then get the balance by that id.",
        tools=[find_customer, get_balance],
        model=model_of(bench),
        model_settings=SETTINGS,
    )
    result = await Runner.run(agent, "What is the balance of Ada Lovelace?", max_turns=TURNS)
    wanted = [("find_customer", "Ada Lovelace"), ("get_balance", "C-4711")]
    holds(bench.calls == wanted, f"calls: {bench.calls}")
    holds("129.5" in result.final_output, result.final_output)


async def handoff(bench: Bench) -> None:
    @function_tool
    def refund(order_id: str) -> str:
        """Refund an order."""
        bench.calls.append(("refund", order_id))
        return "Refunded 20 EUR."

    model = model_of(bench)
    refunds = Agent(
        name="Refunds",
        handoff_description="Handles refunds of orders.",
        instructions="Refund the order by the tool, then say what was refunded.",
        tools=[refund],
        model=model,
        model_settings=SETTINGS,
    )
    desk = Agent(
        name="Desk",
        instructions="Transfer a customer who wants a refund to the refunds agent.",
        handoffs=[refunds],
        model=model,
        model_settings=SETTINGS,
    )
    result = await Runner.run(desk, "Please refund my order A-17.", max_turns=TURNS)
    holds(result.last_agent is refunds, f"ended at {result.last_agent.name}: {result.final_output}")
    holds(bench.calls == [("refund", "A-17")], f"calls: {bench.calls}")
    holds("20" in result.final_output, result.final_output)


async def parallel_streamed(bench: Bench) -> None:
    degrees = {"Oslo": 4, "Rome": 21}

    @function_tool
    def temperature(city: str) -> int:
        """The temperature in a city, in degrees Celsius."""
        bench.calls.append(("temperature", city))
        return degrees[city]

    agent = Agent(
        name="Weather",
        instructions="Call the tool for every city of the question at once, then answer in one sentence.",
        tools=[temperature],
        model=model_of(bench),
        model_settings=SETTINGS,
    )
    run = Runner.run_streamed(agent, "How warm is it in Oslo and in Rome?", max_turns=TURNS)
    seen: list[str] = []
    text = ""
    async for event in run.stream_events():
        if event.type == "run_item_stream_event":
            seen.append(event.name)
        elif event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    holds(sorted(bench.calls) == [("temperature", "Oslo"), ("temperature", "Rome")], f"calls: {bench.calls}")
    holds(seen.count("tool_called") == 2 and seen.count("tool_output") == 2, f"events: {seen}")
    holds(len(run.raw_responses) == 2, f"{len(run.raw_responses)} answers, so the calls were not parallel")
    holds(
        run.final_output and text.endswith(run.final_output),
        f"streamed {text!r}, ended with {run.final_output!r}",
    )
    holds("4" in text and "21" in text, text)


async def memory(bench: Bench) -> None:
    @function_tool
    def add_to_list(item: str) -> str:
        """Put an item on the shopping list."""
        bench.calls.append(("add_to_list", item))
        return f"{item} is on the list."

    agent = Agent(
        name="Shopping",
        instructions="Keep a shopping list by the tool. Be brief.",
        tools=[add_to_list],
        model=model_of(bench),
        model_settings=SETTINGS,
    )
    session = SQLiteSession("shopping")
    await Runner.run(agent, "My name is Ada. Put milk on the list.", session=session, max_turns=TURNS)
    await Runner.run(agent, "Now put bread on the list, too.", session=session, max_turns=TURNS)
    result = await Runner.run(
        agent, "What is my name, and what is on the list now?", session=session, max_turns=TURNS
    )
    session.close()
    wanted = [("add_to_list", "milk"), ("add_to_list", "bread")]
    holds([(name, item.lower()) for name, item in bench.calls] == wanted, f"calls: {bench.calls}")
    said = result.final_output.lower()
    holds(all(word in said for word in ("ada", "milk", "bread")), result.final_output)


TASKS = (
    Task("one tool: read a file, answer from it", NAME, read_file),
    Task("two tools, the second with the first one's result", NAME, two_in_a_row),
    Task("handoff to a second agent, which uses its tool", NAME, handoff),
    Task("two parallel calls, the run's events streamed", NAME, parallel_streamed),
    Task("three turns with memory (SQLiteSession)", NAME, memory),
)
