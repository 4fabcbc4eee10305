"""Tools as many programs have them, with the ways in which users ask for them."""

from __future__ import annotations

from dataclasses import dataclass

import engine.demo.corpus.facts as facts
import engine.demo.corpus.values as values
from engine.demo.corpus.values import Draw


@dataclass(frozen=True, slots=True)
class UsualTool:
    """A tool as many programs have it. Questions have values by position; ``?`` marks what may be left out."""

    names: list[str]
    about: list[str]
    parameters: list[tuple[list[str], str, Draw]]
    questions: list[str]


USUAL_TOOLS = [
    UsualTool(["get_weather", "get_weather", "get_current_weather", "weather", "getWeather", "fetch_weather", "lookup_weather"],
           ["Get the weather of a city.", "Get the current weather", "Get the current weather in a given location", "Weather for a place", "Get weather"],
           [(["city", "city", "location", "location", "place"], "string", values.place)],
           ["What is the weather in {0}?", "What's the weather in {0}?", "What's the weather like in {0}?", "What is the weather like in {0} today?",
            "How is the weather in {0}?", "Weather in {0}?", "Tell me the weather in {0}.", "Is it raining in {0}?", "How warm is it in {0}?",
            "What is the temperature in {0}?", "Do I need an umbrella in {0}?", "Get the weather for {0}.", "Use the tool to get the weather in {0}.",
            "weather {0}", "What's the weather in {0} right now?", "What is the weather in {0} now? Use the tool.", "Check the weather in {0}."]),
    UsualTool(["get_time", "current_time", "time", "get_current_time", "getTime"], ["The time in a city.", "Get the current time"],
           [(["city", "location", "timezone", "place"], "string", values.place)],
           ["What time is it in {0}?", "What is the time in {0}?", "Time in {0}?", "Tell me the time in {0}.", "How late is it in {0}?"]),
    UsualTool(["calculator", "calculate", "calc", "evaluate", "math"], ["Computes an expression.", "A calculator", "Evaluate a sum"],
           [(["expression", "expr", "input", "formula"], "string", values.sum_)],
           ["What is {0}?", "Calculate {0}.", "Compute {0}", "Use the calculator: {0}", "How much is {0}?", "{0}"]),
    UsualTool(["add", "add_numbers", "sum", "plus"], ["Add two numbers", "The sum of two numbers."],
           [(["a", "x", "first"], "integer", values.whole), (["b", "y", "second"], "integer", values.whole)],
           ["Add {0} and {1}.", "What is {0} plus {1}?", "What is {0}+{1}?", "What is {0} + {1}?", "The sum of {0} and {1}?"]),
    UsualTool(["multiply", "mul", "times", "product"], ["Multiply two numbers"],
           [(["a", "x", "first"], "number", values.number), (["b", "y", "second"], "number", values.number)],
           ["Multiply {0} by {1}.", "What is {0} times {1}?", "What is {0} x {1}?", "The product of {0} and {1}?"]),
    UsualTool(["search", "web_search", "search_web", "google", "find", "lookup"], ["Search the web.", "Find pages"],
           [(["query", "q", "text", "search"], "string", values.phrase)],
           ["Search for {0}.", "Search the web for {0}", "Find {0}.", "Look up {0}.", "Google {0}", "What can you find about {0}?"]),
    UsualTool(["send_email", "sendEmail", "email", "send_mail"], ["Send an email", "Sends a mail."],
           [(["to", "recipient", "address"], "string", values.mail), (["subject", "body", "text"], "string", values.phrase)],
           ["Send an email to {0} about {1}.", "Write to {0}: {1}", "Email {0} about {1}.", "Mail {0} that {1}"]),
    UsualTool(["get_user", "find_user", "lookup_user", "get_customer"], ["Find a user by name", "Get a user."],
           [(["name", "user", "username"], "string", values.name)],
           ["Who is {0}?", "Find the user {0}.", "Get the customer {0}", "Look up {0}.", "Show me {0}'s account."]),
    UsualTool(["get_order", "order_status", "track_order", "get_order_status"], ["The state of an order", "Track an order."],
           [(["order_id", "id", "order", "number"], "string", values.code)],
           ["Where is my order {0}?", "Track order {0}.", "What is the status of order {0}?", "Order {0}?", "Has {0} been shipped?"]),
    UsualTool(["get_stock_price", "stock_price", "quote", "get_price"], ["The price of a share", "Get a stock price"],
           [(["symbol", "ticker", "stock"], "string", values.symbol)],
           ["What is the price of {0}?", "Stock price of {0}?", "How is {0} doing?", "What does {0} cost?", "Get the price for {0}."]),
    UsualTool(["book_flight", "find_flights", "search_flights", "flights"], ["Book a flight", "Find flights between two cities."],
           [(["from", "origin", "start"], "string", values.place), (["to", "destination", "end"], "string", values.place)],
           ["Book a flight from {0} to {1}.", "Flights from {0} to {1}?", "I want to fly from {0} to {1}.", "Find a flight from {0} to {1}"]),
    UsualTool(["set_timer", "timer", "start_timer"], ["Start a timer", "Set a timer for some minutes."],
           [(["minutes", "duration", "length"], "integer", values.whole)],
           ["Set a timer for {0} minutes.", "Timer {0} minutes", "Wake me in {0} minutes.", "Start a timer of {0} minutes."]),
    UsualTool(["read_file", "open_file", "cat", "view"], ["Read a file", "Shows a file."],
           [(["path", "file", "filename", "file_path"], "string", lambda rng: f"{values.word(rng)}.{rng.choice(['txt', 'py', 'md', 'json'])}")],
           ["Read {0}.", "Open the file {0}", "What is in {0}?", "Show me {0}", "Print {0}."]),
    UsualTool(["get_capital", "capital", "country_info"], ["About a country."],
           [(["country", "name"], "string", lambda rng: rng.choice(facts.rows(facts.COUNTRIES))[0])],
           ["What is the capital of {0}?", "Look up {0}.", "Capital of {0}?", "Use the tool to find the capital of {0}."]),
    UsualTool(["echo", "say", "print", "record", "respond", "final_answer", "answer"], ["Say something", "Return the answer."],
           [(["text", "message", "value", "answer", "word"], "string", values.phrase)],
           ["Say {0}.", "Repeat {0}", "Echo {0}", "Print {0}.", "Answer with {0}."]),
    UsualTool(["remember", "set_name", "save_name", "extract_person", "add_user"], ["Save a person"],
           [(["name", "person"], "string", values.name), (["age", "years"], "integer", lambda rng: rng.randrange(1, 100))],
           ["{0} is {1} years old.", "My name is {0} and I am {1}.", "I am {0}, {1} years old.", "Save {0}, aged {1}."]),
]  # fmt: skip
