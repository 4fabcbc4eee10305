"""A server's errors quote keys, hosts and files: does a caller read them?"""

from __future__ import annotations

from benchmarks.attacks.frame import MALLORY, Rig, must
from tests.fakes import FakeUpstream, Script, delta, reply, sse, stream

POINT = "D.24"
TRIED = "9 errors that quote our key, its ends, other keys, hosts or files, as status, body, first and later event"
HOLDS = "none of it reaches the caller, and messages are bounded"

KEY = "sk-proj-Qw3rTyUiOpAsDfGhJkLz"
WORDS = {
    f"Incorrect API key provided: {KEY}.": KEY,
    "Incorrect API key provided: sk-proj-*****************JkLz.": "JkLz",
    "no such key: sk-…JkLz": "JkLz",
    "key sk-ant-api03-abcdefgh1234 is not known": "abcdefgh1234",
    "'Authorization: Bearer abcDEF1234567890' is wrong": "abcDEF1234567890",
    "HTTPConnectionPool(host='decode-3.prod.internal', port=8000): Max retries exceeded": "decode-3",
    "cannot reach http://10.2.3.4:8000/v1": "10.2.3.4",
    'File "/opt/llm/secret.py", line 3': "/opt/llm",
    "word " * 10_000: "word " * 1000,
}


async def attack(rig: Rig) -> str:
    tried = 0
    async with FakeUpstream() as server:
        backend = {
            "kind": "openai",
            "base_url": server.base_url,
            "api_key": KEY,
            "breaker": {"failures": 10**6},
        }
        models = {"m": {"targets": [{"backend": "up", "model": "a"}], "retry": {"attempts": 1}}}
        gateway = await rig.gateway(rig.policy(backends={"up": backend}, models=models))
        for said, secret in WORDS.items():
            for way, script in ways(said).items():
                server.scripts = [script]
                answer = await gateway.chat(MALLORY, stream="event" in way)
                must(secret not in answer.text, f"{secret[:20]!r} got through by way of {way}")
                tried += 1
    return f"{tried} of {tried} held back"


def ways(said: str) -> dict[str, Script]:
    error = {"error": {"message": said, "type": said[:60], "code": said[:60], "param": said[:60]}}
    return {
        "status 400": reply(error, status=400),
        "status 500": reply(error, status=500),
        "a body of 200": reply(error),
        "the first event": stream(sse(error)),
        "a later event": stream(sse(delta("Hi")), sse(error)),
    }
