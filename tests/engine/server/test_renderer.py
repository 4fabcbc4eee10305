"""Hostile chat templates, each run for real in its process: what they may take is bounded, and others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidRequest, ModelUnavailable
from engine.server.chat_template import ChatTemplate
from engine.server.renderer import Renderer
from engine.server.rendering import RenderLimits
from engine.server.template_files import Templates
from tests.engine.live import EngineServer, alive
from tests.engine.tiny import CHAT_TEMPLATE, write_model

pytestmark = pytest.mark.anyio

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
BOUNDS = RenderLimits(seconds=0.5, memory=2**28, characters=2**20)
PATIENT = replace(BOUNDS, seconds=60.0)
"""Where another limit is to be met: on a busy machine 2**28 bytes of new memory can take more than half a second."""
HARMLESS = {"role": "user", "content": "hi"}
SPELL = {"role": "user", "content": "now"}

TOO_LONG = "processor time"
TOO_MUCH = "MiB of memory"
HOSTILE = {
    "loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", TOO_LONG),
    "range": ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    "doubled": (
        "{% set n = namespace(t='ab') %}{% for i in range(40) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
        TOO_MUCH,
    ),
    "repeated": ("{{ ('a' * 10**12) | length }}", TOO_MUCH),
    "power": ("{{ (10 ** (10 ** (messages[0].content | length * 3))) % 2 }}", TOO_LONG),
    "padded": ("{{ '%1000000000d' % 1 }}", TOO_MUCH),
    "list": ("{% for x in [0] * 10**9 %}{% endfor %}", TOO_MUCH),
    "output": ("{% for i in range(99999) %}{{ messages[0].content * 99 }}{% endfor %}", "1048576 characters"),
    "recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    "words": ("{{ raise_exception('x' * 10**7) }}", "refused these messages: xxx"),
}

QUADRATIC = (
    "{% for a in messages %}{% for b in messages %}{% set c = a.content ~ b.content %}{% endfor %}{% endfor %}"
    "{{ messages | length }}"
)


@asynccontextmanager
async def started(source: str, bounds: RenderLimits = BOUNDS) -> AsyncIterator[Renderer]:
    renderer = await Renderer.start(Templates(source), TOKENS, bounds)
    try:
        yield renderer
    finally:
        await renderer.close()


def under_a_spell(source: str) -> str:
    """Harmless until the first message is the spell."""
    return "{% if messages[0].content == 'now' %}" + source + "{% endif %}<{{ messages[0].content }}>"


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_takes_too_much_is_stopped_and_the_next_is_served(name: str) -> None:
    source, reason = HOSTILE[name]
    async with started(under_a_spell(source), BOUNDS if reason == TOO_LONG else PATIENT) as renderer:
        with pytest.raises(InvalidRequest, match=reason) as found:
            await renderer.render([SPELL])
        assert found.value.param == "messages"
        assert len(found.value.message) < 3000
        assert await renderer.render([HARMLESS]) == "<hi>"


async def test_a_template_that_looks_at_each_message_for_each_is_stopped() -> None:
    async with started(QUADRATIC) as renderer:
        with pytest.raises(InvalidRequest, match=r"0\.5 s of processor time.*fewer"):
            await renderer.render([HARMLESS] * 8000)
        assert await renderer.render([HARMLESS] * 100) == "100"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for %}", "does not parse"),
        ("{{ 'a' | nothing_of_that_name }}", "does not parse"),
        ("{{ (10 ** (10 ** 8)) % 2 }}", "processor time to be compiled"),  # computed when it is compiled
        ("{% if 1 %}" * 5000 + "{% endif %}" * 5000, "does not parse"),
        ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "does not parse"),
    ],
    ids=lambda text: text[:12],
)
async def test_a_template_that_does_not_compile_fails_at_start(source: str, reason: str) -> None:
    with pytest.raises(ModelUnavailable, match=reason):
        async with started(source):
            pass


async def test_a_large_request_that_takes_long_holds_up_no_small_one() -> None:
    async with started(QUADRATIC, RenderLimits()) as renderer:
        many = [{"role": "user", "content": f"{i:0100}"} for i in range(8000)]
        large = asyncio.create_task(renderer.render(many))
        await asyncio.sleep(0)
        for _ in range(20):
            assert await renderer.render([HARMLESS]) == "1"
        assert not large.done()
        with pytest.raises(InvalidRequest, match=TOO_LONG):
            await large


async def test_a_small_request_that_takes_long_does_so_beside_the_others() -> None:
    """It begins among the small ones, and is soon sent away."""
    async with started(under_a_spell(HOSTILE["loops"][0]), RenderLimits(seconds=2.0, brief=0.05)) as renderer:
        slow = asyncio.create_task(renderer.render([SPELL]))
        await asyncio.sleep(0)
        for _ in range(20):
            assert await renderer.render([HARMLESS]) == "<hi>"
        assert not slow.done()
        with pytest.raises(InvalidRequest, match="2 s of processor time"):
            await slow


async def test_who_needs_a_little_more_than_others_gets_it() -> None:
    source = under_a_spell("{% for i in range(99999) %}{% for j in range(30) %}{% endfor %}{% endfor %}")
    async with started(source, RenderLimits(seconds=60.0, brief=0.01)) as renderer:
        assert await renderer.render([SPELL]) == "<now>"


async def test_who_leaves_gets_no_other_ones_prompt() -> None:
    async with started(under_a_spell(HOSTILE["loops"][0]), RenderLimits()) as renderer:
        left = asyncio.create_task(renderer.render([SPELL]))
        await asyncio.sleep(0.05)
        left.cancel()
        assert await renderer.render([HARMLESS]) == "<hi>"
        with pytest.raises(asyncio.CancelledError):
            await left


async def test_a_process_that_died_is_replaced_and_close_leaves_none() -> None:
    async with started("{{ messages[0].content }}") as renderer:
        pids = []
        for _ in range(2):
            process = renderer._small._process
            assert process is not None
            pids.append(process.pid)
            process.kill()
            await process.wait()
            assert await renderer.render([HARMLESS]) == "hi"
    assert len(set(pids)) == 2
    assert not any(map(alive, pids))


async def test_prompts_are_what_the_template_makes_of_them_to_the_byte() -> None:
    source = (
        "{{ bos_token }}{%- for m in messages %}\n  {%- if loop.index == 40 %}{% break %}{% endif %}\n"
        "<|{{ m.role }}|>{{ m.content | trim }}{{ m.tool_calls | tojson if m.tool_calls }}\n{% endfor %}"
        "{{ tools | tojson(indent=2) if tools }}{{ eos_token if not add_generation_prompt }}"
    )
    texts = ["é 𝄞 \u2028 \x00 \r\n", "", " <s> ", "x" * 70_000]
    calls = [{"id": "1", "function": {"name": "f", "arguments": {"n": 1.0, "m": 2**63, "t": [True, None]}}}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": text, "tool_calls": calls} for text in texts
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    here = ChatTemplate(Templates(source), TOKENS)
    async with started(source) as renderer:
        for count in (1, 3, 4):
            for ask in (False, True):
                expected = here.render(messages[:count], tools, generation_prompt=ask)
                assert await renderer.render(messages[:count], tools, generation_prompt=ask) == expected
            expected = here.render_open(messages[:count], tools)
            assert await renderer.render_open(messages[:count], tools) == expected


def test_a_server_outlives_its_template(tmp_path: Path) -> None:
    spell = "{% if messages[0].content == 'now' %}" + HOSTILE["power"][0] + "{% endif %}"
    model = write_model(tmp_path / "model", template=spell + CHAT_TEMPLATE)
    with EngineServer(model, "--kv-cache-blocks", "60", log=tmp_path / "log") as server:
        refused = server.post("/v1/chat/completions", model="model", messages=[SPELL])
        assert refused.status_code == 400
        assert "2 s of processor time" in refused.json()["error"]["message"]
        served = server.post("/v1/chat/completions", model="model", messages=[HARMLESS], max_tokens=2)
        assert served.status_code == 200
        assert "it was stopped" in server.log


def test_a_server_whose_template_cannot_be_compiled_does_not_start(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", template="{% for %}")
    with pytest.raises(RuntimeError, match="chat template does not parse"):
        EngineServer(model, log=tmp_path / "log")
