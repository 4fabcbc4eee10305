"""Java's own HTTP client, which LangChain4j and Spring AI build on: it offers HTTP/2 with its first request."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import orjson
import pytest

from tests.serving import KEY, Gateway, chat

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("javac") is None, reason="there is no JDK on this machine"),
]

PROGRAM = Path(__file__).parent / "clients" / "Ask.java"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_its_offer_costs_no_body(gateway: Gateway, tmp_path: Path, streamed: bool) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(orjson.dumps(chat(stream=streamed)))
    java = await asyncio.create_subprocess_exec(
        *("java", "-XX:TieredStopAtLevel=1", PROGRAM, f"{gateway.url}/v1/chat/completions", KEY, body),
        stdout=asyncio.subprocess.PIPE,
    )
    heard, _ = await java.communicate()
    answers = heard.decode().split("HTTP_1_1 ")[1:]
    assert len(answers) == 4
    for answer in answers:
        assert answer.startswith("200 ")
        if streamed:
            assert answer.endswith("data: [DONE]\n")
        else:
            assert orjson.loads(answer[4:])["choices"][0]["message"]["content"] == "one two three"
