from __future__ import annotations

import time

import pytest

from gateway.cascade.confidence import is_refusal


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, but I can’t assist with that request.",
        "I am really sorry, but I cannot provide that.",
        "Sorry, I can't do that.",
        "I cannot assist with this.",
        "I can't answer that question.",
        "I won't help you with this.",
        "I'm unable to access the internet.",
        "I am not able to browse the web.",
        "I'm not comfortable writing that.",
        "Unfortunately, I cannot complete this task.",
        "I apologize, but I cannot fulfill this request.",
        "As an AI language model, I cannot provide medical advice.",
        "As an AI, I don't have the ability to see images.",
        "While I understand your curiosity, I can't share that.",
        "I must decline.",
        "I have to respectfully decline.",
        "  **I'm sorry, but I can't help with that.**",
        "<think>The user wants something bad.</think>\n\nI cannot help with that.",
    ],
)
def test_a_refusal(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Sure, here it is.",
        "I'm sorry to hear that you are ill.",
        "I'm sorry for the confusion: the answer is 4.",
        "I can't believe how easy this one is: 4.",
        "I cannot overstate how important sleep is.",
        "I can help with that.",
        "I can assist you.",
        "I will provide a summary.",
        "Sorry for the delay. Here is the list.",
        "Unfortunately, the train was late.",
        "Unfortunately I lost my keys. Write a note to the landlord.",
        "The answer is 4. I cannot help with anything else.",
        "As an AI researcher, I work on language models.",
        "You can say: 'I'm sorry, but I can't help with that.'",
        "<think>I cannot help with that? I can.</think>The answer is 4.",
        "<think>I cannot",
    ],
)
def test_no_refusal(text: str) -> None:
    assert not is_refusal(text)


def test_hostile_text_takes_no_time() -> None:
    start = time.process_time()
    for text in (
        "While I understand " * 50_000,
        "as an ai " + "a " * 100_000,
        "<think>" * 100_000,
        " " * 10**6,
    ):
        is_refusal(text)
    assert time.process_time() - start < 0.5
