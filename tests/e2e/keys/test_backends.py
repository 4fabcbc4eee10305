"""What the keys of ``backends`` do."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import orjson
import pytest

from tests.e2e.keys.harness import (
    OTHER,
    UP,
    Look,
    Row,
    Site,
    a_site,
    code,
    message,
    on,
    second_while_the_first_hangs,
    sent,
    shows,
    streamed,
    text,
)
from tests.fakes import Action, FakeUpstream, Script, answer_events, completion, reply, stream

pytestmark = pytest.mark.anyio

ENGINE_UP = UP.removesuffix("/v1")
FAILS = reply({"error": {"message": "no"}}, status=500)
FINE = reply(completion("from up"))
IMPATIENT = {"tiers": {"default": {"max_wait": "100ms"}}}


def backend(name: str, **more: Any) -> dict[str, Any]:
    return {"backends": {name: more}}


def up_as(kind: str, **more: Any) -> dict[str, Any]:
    """The server ``up`` as a backend of this kind."""
    return backend("up", kind=kind, base_url=UP if kind == "openai" else ENGINE_UP, **more)


def asked(count: int, pause: float = 0.0) -> Look:
    """How often the server ``up`` was asked for so many requests."""

    async def look(site: Site) -> int:
        for _ in range(count):
            await site.ask(model="up")
            await asyncio.sleep(pause)
        return len(site.up.requests)

    return look


async def path(site: Site) -> str:
    await site.ask(model="up")
    return site.up.requests[-1].path


def server_header(name: str) -> Look:
    async def look(site: Site) -> str | None:
        await site.ask(model="up")
        return site.up.requests[-1].headers.get(name)

    return look


RANKED = {"tiers": {"default": {"priority": 2}}}


async def last_role(site: Site) -> str:
    """Of the messages that ``up`` was sent to go on with."""
    await streamed(site, model="cut")
    return str(site.up.requests[-1].json()["messages"][-1]["role"])


async def last_content_role(site: Site) -> str:
    """The same where contents have the shape of Gemini's."""
    await streamed(site, model="cut")
    return str(site.up.requests[-1].json()["contents"][-1]["role"])


async def asked_to_stream(site: Site) -> bool:
    """Whether the server is asked for a stream, where the caller wants a whole answer and the model is to be quick."""
    await site.ask(model="up")
    return bool(site.up.requests[-1].json().get("stream"))


async def objective(site: Site) -> str | None:
    """The tier that a gateway of Kubernetes is told."""
    await site.ask(model="up")
    return site.up.requests[-1].headers.get("x-gateway-inference-objective")


QUICK = {"models": {"up": on("up", timeouts={"first_token": "30s"})}}


def whole(kind: str) -> Row:
    return Row(
        f"backends.<name>.streams ({kind})",
        QUICK | up_as(kind, streams=False),
        asked_to_stream,
        False,
        True,
        QUICK | up_as(kind),
    )


LOCAL = {"tenants": {"acme": {"local_only": True}}}
CUT = {
    "backends": {"short": {"kind": "fake", "script": [{"reply": "one two three", "cut_after": 1}]}},
    "models": {"cut": on("short", fallbacks=["up"])},
}
BOTH = {
    "models": {
        "pair": {
            "targets": [{"backend": "up", "model": "u"}, {"backend": "other", "model": "o"}],
            "regions": ["eu"],
        }
    }
}


BREAKER = {"failures": 2}
SILENCE = {"models": {"up": {"timeouts": {"idle": "60s"}}}}

ROWS = [
    Row(
        "backends.<name>.max_concurrency",
        {**backend("up", max_concurrency=1), **IMPATIENT},
        second_while_the_first_hangs,
        503,
        200,
        IMPATIENT,
        up=((Action.HANG,), FINE),
    ),
    Row(
        "backends.<name>.max_tokens_in_flight",
        {**backend("up", max_tokens_in_flight=1), **IMPATIENT},
        second_while_the_first_hangs,
        503,
        200,
        IMPATIENT,
        up=((Action.HANG,), FINE),
    ),
    Row(
        "backends.<name>.region",
        {**BOTH, **backend("other", region="eu")},
        text(model="pair"),
        "from the other",
        "from up",
        {**BOTH, **backend("up", region="eu")},
        up=(FINE,),
    ),
    Row("backends.<name>.breaker", backend("up", breaker=BREAKER), asked(4), 2, 4, up=(FAILS,)),
    Row(
        "backends.<name>.breaker.failures",
        backend("up", breaker={"failures": 3}),
        asked(4),
        3,
        2,
        backend("up", breaker={"failures": 2}),
        up=(FAILS,),
    ),
    Row(
        "backends.<name>.breaker.share",
        backend("up", breaker={**BREAKER, "share": 1.0}),
        asked(4),
        4,
        3,
        backend("up", breaker=BREAKER),
        up=(FAILS, FINE, FAILS),
    ),
    Row(
        "backends.<name>.breaker.window",
        backend("up", breaker={**BREAKER, "window": "50ms"}),
        asked(3, pause=0.1),
        3,
        2,
        backend("up", breaker=BREAKER),
        up=(FAILS,),
    ),
    Row(
        "backends.<name>.breaker.cooldown",
        backend("up", breaker={**BREAKER, "cooldown": "50ms"}),
        asked(3, pause=0.1),
        3,
        2,
        backend("up", breaker=BREAKER),
        up=(FAILS,),
    ),
    # kind: openai
    Row(
        "backends.<name>.kind (openai)", {}, path, "/v1/chat/completions", "/v1/messages", up_as("anthropic")
    ),
    Row(
        "backends.<name>.base_url (openai)",
        backend("up", base_url=OTHER),
        text(model="up"),
        "from the other",
        "from up",
        up=(FINE,),
    ),
    Row(
        "backends.<name>.api_key (openai)",
        backend("up", api_key="sk-1"),
        server_header("authorization"),
        "Bearer sk-1",
        None,
    ),
    Row(
        "backends.<name>.local (openai)",
        {**LOCAL, **backend("up", local=True)},
        code(model="up"),
        200,
        "local_only",
        LOCAL,
    ),
    Row(
        "backends.<name>.inference_pool (openai)",
        up_as("openai", inference_pool=True),
        objective,
        "default",
        None,
    ),
    Row(
        "backends.<name>.continues (openai)",
        {**CUT, "backends": {**CUT["backends"], "up": {"continues": True}}},
        last_role,
        "assistant",
        "user",
        CUT,
        up=(stream(*answer_events("more")),),
    ),
    Row(
        "backends.<name>.priority (openai)",
        {**RANKED, **backend("up", priority="lower_first")},
        sent("priority", priority=77, continue_final_message=True),
        -2,
        77,
        RANKED,
        up=(FINE,),
    ),
    Row(
        "backends.<name>.streams (openai)",
        {**SILENCE, **backend("up", streams=False)},
        sent("stream"),
        False,
        True,
        SILENCE,
        up=(FINE,),
    ),
    *(whole(kind) for kind in ("openai", "engine", "anthropic")),
    # kind: engine
    Row(
        "backends.<name>.kind (engine)",
        up_as("engine"),
        server_header("x-tollgate-priority"),
        "0",
        None,
    ),
    Row(
        "backends.<name>.base_url (engine)",
        up_as("engine", launch=False),
        text(model="up"),
        "from up",
        "from the other",
        backend("up", kind="engine", base_url=OTHER.removesuffix("/v1")),
        up=(FINE,),
    ),
    Row(
        "backends.<name>.local (engine)",
        {**LOCAL, **up_as("engine")},
        code(model="up"),
        200,
        "local_only",
        {**LOCAL, **up_as("engine", local=False)},
    ),
    Row(
        "backends.<name>.continues (engine)",
        {**CUT, "backends": {**CUT["backends"], **up_as("engine")["backends"]}},
        last_role,
        "assistant",
        "user",
        {**CUT, "backends": {**CUT["backends"], **up_as("engine", continues=False)["backends"]}},
        up=(stream(*answer_events("more")),),
    ),
    Row(
        "backends.<name>.streams (engine)",
        {**SILENCE, **up_as("engine", streams=False)},
        sent("stream"),
        False,
        True,
        {**SILENCE, **up_as("engine")},
        up=(FINE,),
    ),
    # kind: anthropic
    Row("backends.<name>.kind (anthropic)", up_as("anthropic"), path, "/v1/messages", "/v1/chat/completions"),
    Row(
        "backends.<name>.base_url (anthropic)",
        up_as("anthropic"),
        text(model="up"),
        "from up",
        "from the other",
        backend("up", kind="anthropic", base_url=OTHER.removesuffix("/v1")),
        up=(reply(message("from up")),),
        other=(reply(message("from the other")),),
    ),
    Row(
        "backends.<name>.api_key (anthropic)",
        up_as("anthropic", api_key="sk-ant"),
        server_header("x-api-key"),
        "sk-ant",
        None,
        up_as("anthropic"),
    ),
    Row(
        "backends.<name>.max_tokens (anthropic)",
        up_as("anthropic", max_tokens=77),
        sent("max_tokens"),
        77,
        4096,
        up_as("anthropic"),
    ),
    Row(
        "backends.<name>.local (anthropic)",
        {**LOCAL, **up_as("anthropic", local=True)},
        code(model="up"),
        200,
        "local_only",
        {**LOCAL, **up_as("anthropic")},
        up=(reply(message()),),
    ),
    Row(
        "backends.<name>.continues (anthropic)",
        {**CUT, "backends": {**CUT["backends"], **up_as("anthropic", continues=True)["backends"]}},
        last_role,
        "assistant",
        "user",
        {**CUT, "backends": {**CUT["backends"], **up_as("anthropic")["backends"]}},
        up=(reply(message()),),
    ),
    Row(
        "backends.<name>.streams (anthropic)",
        {**SILENCE, **up_as("anthropic", streams=False)},
        sent("stream"),
        None,
        True,
        {**SILENCE, **up_as("anthropic")},
        up=(reply(message()),),
    ),
]


# kind: azure

AZURE = {"base_url": UP.removesuffix("/v1"), "kind": "azure"}
DEPLOYMENT = "/openai/deployments/u/chat/completions?api-version=2024-10-21"


def azure(**more: Any) -> dict[str, Any]:
    return backend("up", **AZURE, **more)


async def asked_of_the_issuer(site: Site) -> list[Any]:
    """Where ``other`` was asked for a token, and with what."""
    await site.ask(model="up")
    fields = parse_qs(site.other.requests[0].body.decode())
    return [site.other.requests[0].path, {name: value for name, [value] in fields.items()}]


ISSUER = OTHER.removesuffix("/v1")
WHO = {"tenant_id": "t", "client_id": "c", "client_secret": "s", "authority": ISSUER}
TOKEN = (reply({"access_token": "T", "expires_in": 3600}),)
TOLD = {
    "grant_type": "client_credentials",
    "client_id": "c",
    "client_secret": "s",
    "scope": "https://cognitiveservices.azure.com/.default",
}


def by(key: str, path: str, told: Mapping[str, str], **changed: Any) -> Row:
    """An identity that differs in one key."""
    return Row(
        f"backends.<name>.entra.{key} (azure)",
        azure(entra={**WHO, **changed}),
        asked_of_the_issuer,
        [path, dict(told)],
        ["/t/oauth2/v2.0/token", TOLD],
        azure(entra=WHO),
        up=(FINE,),
        other=TOKEN,
    )


ROWS += [
    Row("backends.<name>.kind (azure)", azure(), path, "/openai/v1/chat/completions", "/v1/chat/completions"),
    Row(
        "backends.<name>.base_url (azure)",
        azure(),
        text(model="up"),
        "from up",
        "from the other",
        backend("up", **{**AZURE, "base_url": ISSUER}),
        up=(FINE,),
    ),
    Row(
        "backends.<name>.api_version (azure)",
        azure(api_version="2024-10-21"),
        path,
        DEPLOYMENT,
        "/openai/v1/chat/completions",
        azure(),
    ),
    Row(
        "backends.<name>.api_key (azure)", azure(api_key="k1"), server_header("api-key"), "k1", None, azure()
    ),
    Row(
        "backends.<name>.entra (azure)",
        azure(entra=WHO),
        server_header("authorization"),
        "Bearer T",
        None,
        azure(),
        other=TOKEN,
    ),
    by("tenant_id", "/t2/oauth2/v2.0/token", TOLD, tenant_id="t2"),
    by("client_id", "/t/oauth2/v2.0/token", {**TOLD, "client_id": "c2"}, client_id="c2"),
    by("client_secret", "/t/oauth2/v2.0/token", {**TOLD, "client_secret": "s2"}, client_secret="s2"),
    by("scope", "/t/oauth2/v2.0/token", {**TOLD, "scope": "x/.default"}, scope="x/.default"),
    by("authority", "/deeper/t/oauth2/v2.0/token", TOLD, authority=f"{ISSUER}/deeper"),
    Row(
        "backends.<name>.entra.token_file (azure)",
        azure(entra={**WHO, "client_secret": None, "token_file": __file__}),
        code(model="up"),
        200,
        "upstream_auth",
        azure(entra={**WHO, "client_secret": None, "token_file": __file__ + ".missing"}),
        up=(FINE,),
        other=TOKEN,
    ),
    Row(
        "backends.<name>.local (azure)",
        {**LOCAL, **azure(local=True)},
        code(model="up"),
        200,
        "local_only",
        {**LOCAL, **azure()},
    ),
    Row(
        "backends.<name>.continues (azure)",
        {**CUT, "backends": {**CUT["backends"], **azure(continues=True)["backends"]}},
        last_role,
        "assistant",
        "user",
        {**CUT, "backends": {**CUT["backends"], **azure()["backends"]}},
        up=(stream(*answer_events("more")),),
    ),
    Row(
        "backends.<name>.streams (azure)",
        {**SILENCE, **azure(streams=False)},
        sent("stream"),
        False,
        True,
        {**SILENCE, **azure()},
        up=(FINE,),
    ),
]

# kind: gemini

GEMINI = {"base_url": UP.removesuffix("/v1"), "kind": "gemini"}
GEMINI_FINE = reply({"candidates": [{"content": {"parts": [{"text": "from up"}]}, "finishReason": "STOP"}]})
AT_GEMINI = "/v1beta/models/u:generateContent"


def gemini(**more: Any) -> dict[str, Any]:
    return backend("up", **GEMINI, **more)


ROWS += [
    Row("backends.<name>.kind (gemini)", gemini(), path, AT_GEMINI, "/v1/chat/completions"),
    Row(
        "backends.<name>.base_url (gemini)",
        gemini(),
        text(model="up"),
        "from up",
        "from the other",
        backend("up", **{**GEMINI, "base_url": ISSUER}),
        up=(GEMINI_FINE,),
        other=(
            reply(
                {"candidates": [{"content": {"parts": [{"text": "from the other"}]}, "finishReason": "STOP"}]}
            ),
        ),
    ),
    Row(
        "backends.<name>.api_key (gemini)",
        gemini(api_key="AIza"),
        server_header("x-goog-api-key"),
        "AIza",
        None,
        gemini(),
    ),
    Row(
        "backends.<name>.local (gemini)",
        {**LOCAL, **gemini(local=True)},
        code(model="up"),
        200,
        "local_only",
        {**LOCAL, **gemini()},
        up=(GEMINI_FINE,),
    ),
    Row(
        "backends.<name>.continues (gemini)",
        {**CUT, "backends": {**CUT["backends"], **gemini(continues=True)["backends"]}},
        last_content_role,
        "model",
        "user",
        {**CUT, "backends": {**CUT["backends"], **gemini()["backends"]}},
        up=(GEMINI_FINE,),
    ),
    Row(
        "backends.<name>.streams (gemini)",
        {**SILENCE, **gemini(streams=False)},
        path,
        AT_GEMINI,
        "/v1beta/models/u:streamGenerateContent?alt=sse",
        {**SILENCE, **gemini()},
        up=(GEMINI_FINE,),
    ),
]


@shows(
    *(f"backends.<name>.vertex{key} (gemini)" for key in ("", ".project", ".location", ".credentials")),
)
async def test_vertex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    key = tmp_path / "key.json"
    key.write_bytes(orjson.dumps(user))
    asked = []
    async with FakeUpstream(reply({}), reply({})) as machine:
        machine.health = reply({"access_token": "T", "expires_in": 3600})
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{machine.port}")
        for i, vertex in enumerate(
            (
                None,
                {"project": "p"},
                {"project": "q", "location": "eu"},
                {"project": "p", "credentials": str(key)[1:]},
            )
        ):
            config = gemini(**({} if vertex is None else {"vertex": vertex}))
            async with a_site(tmp_path / str(i), config, (GEMINI_FINE,)) as site:
                answer = await site.ask(model="up")
                asked.append(
                    site.up.requests[-1].path if site.up.requests else answer.json()["error"]["code"]
                )
    models = "publishers/google/models/u:generateContent"
    assert asked == [
        AT_GEMINI,
        f"/v1/projects/p/locations/global/{models}",
        f"/v1/projects/q/locations/eu/{models}",
        "upstream_auth",  # a key file that is not there takes the place of the machine's account
    ]


# kind: bedrock

AWS = {"region": "eu-west-1", "access_key_id": "AKIA1", "secret_access_key": "s1"}
BEDROCK = {"base_url": UP.removesuffix("/v1"), "kind": "bedrock", "aws": AWS}
CONVERSE = "/model/u/converse"


def bedrock(**more: Any) -> dict[str, Any]:
    return backend("up", **{**BEDROCK, **more})


def converse(said: str) -> Script:
    message = {"role": "assistant", "content": [{"text": said}]}
    return reply({"output": {"message": message}, "stopReason": "end_turn"})


async def last_converse_role(site: Site) -> str:
    await streamed(site, model="cut")
    return str(site.up.requests[-1].json()["messages"][-1]["role"])


async def signer(site: Site) -> str:
    """Who signed, for where: ``AKIA1/eu-west-1``."""
    await site.ask(model="up")
    scope = site.up.requests[-1].headers["authorization"].partition("Credential=")[2].split("/")
    return f"{scope[0]}/{scope[2]}"


async def is_signed_with(site: Site, secret: str) -> bool:
    """Whether the signature that arrived is the one that ``secret`` makes."""
    await site.ask(model="up")
    received = site.up.requests[-1]
    scope, day = "eu-west-1/bedrock/aws4_request", received.headers["x-amz-date"]
    names = re.search("SignedHeaders=([^,]+)", received.headers["authorization"])
    assert names is not None
    lines = [f"{name}:{received.headers[name]}" for name in names[1].split(";")]
    path = quote(received.path, safe="/~")
    body = sha256(received.body).hexdigest()
    asked = "\n".join(["POST", path, "", *lines, "", names[1], body])
    told = "\n".join(["AWS4-HMAC-SHA256", day, f"{day[:8]}/{scope}", sha256(asked.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in (day[:8], *scope.split("/"), told):
        key = hmac.new(key, part.encode(), sha256).digest()
    return received.headers["authorization"].endswith(key.hex())


ROWS += [
    Row("backends.<name>.kind (bedrock)", bedrock(), path, CONVERSE, "/v1/chat/completions"),
    Row(
        "backends.<name>.base_url (bedrock)",
        bedrock(),
        text(model="up"),
        "from up",
        "from the other",
        bedrock(base_url=ISSUER),
        up=(converse("from up"),),
        other=(converse("from the other"),),
    ),
    Row(
        "backends.<name>.api_key (bedrock)",
        bedrock(api_key="b1"),
        server_header("authorization"),
        "Bearer b1",
        "Bearer b2",
        bedrock(api_key="b2"),
    ),
    Row("backends.<name>.aws (bedrock)", bedrock(), path, CONVERSE, "/v1/chat/completions"),
    Row(
        "backends.<name>.aws.region (bedrock)",
        bedrock(aws={**AWS, "region": "us-east-1"}),
        signer,
        "AKIA1/us-east-1",
        "AKIA1/eu-west-1",
        bedrock(),
    ),
    Row(
        "backends.<name>.aws.access_key_id (bedrock)",
        bedrock(aws={**AWS, "access_key_id": "AKIA2"}),
        signer,
        "AKIA2/eu-west-1",
        "AKIA1/eu-west-1",
        bedrock(),
    ),
    Row(
        "backends.<name>.aws.secret_access_key (bedrock)",
        bedrock(aws={**AWS, "secret_access_key": "s2"}),
        partial(is_signed_with, secret="s2"),
        True,
        False,
        bedrock(),
    ),
    Row(
        "backends.<name>.aws.session_token (bedrock)",
        bedrock(aws={**AWS, "session_token": "t"}),
        server_header("x-amz-security-token"),
        "t",
        None,
        bedrock(),
    ),
    Row(
        "backends.<name>.aws.profile (bedrock)",
        bedrock(aws={"region": "eu-west-1", "profile": "nobody-has-this-one", "access_key_id": None}),
        code(model="up"),
        "upstream_auth",
        200,
        bedrock(),
        up=(converse("from up"),),
    ),
    Row(
        "backends.<name>.local (bedrock)",
        {**LOCAL, **bedrock(local=True)},
        code(model="up"),
        200,
        "local_only",
        {**LOCAL, **bedrock()},
        up=(converse("from up"),),
    ),
    Row(
        "backends.<name>.continues (bedrock)",
        {**CUT, "backends": {**CUT["backends"], **bedrock(continues=True)["backends"]}},
        last_converse_role,
        "assistant",
        "user",
        {**CUT, "backends": {**CUT["backends"], **bedrock()["backends"]}},
    ),
    Row(
        "backends.<name>.streams (bedrock)",
        {**SILENCE, **bedrock(streams=False)},
        path,
        CONVERSE,
        "/model/u/converse-stream",
        {**SILENCE, **bedrock()},
        up=(converse("from up"),),
    ),
]

# A provider's own form of OpenAI's API

ROWS += [
    Row(
        "backends.<name>.preset (openai)",
        up_as("openai", preset="groq"),
        code(model="up", logit_bias={"1": 1}),
        "unsupported_parameter",
        200,
        up_as("openai"),
        up=(FINE,),
    )
]

# Parameters that no API is known to take

ROWS += [
    Row(
        f"backends.<name>.unsupported_fields ({kind})",
        given(unsupported_fields="refuse"),
        code(model="up", wonder=1),
        "unsupported_parameter",
        200,
        given(),
        up=(answer,),
    )
    for kind, given, answer in (
        ("openai", partial(up_as, "openai"), FINE),
        ("azure", azure, FINE),
        ("anthropic", partial(up_as, "anthropic"), reply(message())),
        ("gemini", gemini, GEMINI_FINE),
        ("bedrock", bedrock, converse("from up")),
    )
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


@shows("backends.<name>.cold_start (engine)", "backends.<name>.cold_start (openai)")
@pytest.mark.parametrize("kind", ["engine", "openai"])
async def test_cold_start(tmp_path: Path, kind: str) -> None:
    for more, answered in (({}, False), ({"cold_start": "280s"}, True)):
        async with a_site(tmp_path / str(answered), up_as(kind, **more)) as site:
            await site.up.stop()
            asked = asyncio.ensure_future(site.ask(model="up"))
            if not answered:
                assert (await asked).status_code == 503
                continue
            name = 'tollgate_backend_requests_in_flight{backend="up"}'
            while (await site.gateway.metrics()).get(name, 0) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await site.up.start()
            assert (await asked).status_code == 200


@shows("backends.<name>.prefill (engine)")
async def test_a_request_names_the_engine_that_computes_its_prompt(tmp_path: Path) -> None:
    """What the engines make of it is shown in ``tests/engine/handover``."""
    far = {"kind": "engine", "base_url": OTHER.removesuffix("/v1")}
    state = reply({"running": 1, "handover": {"role": "prefill", "address": "tcp://0.0.0.0:8200"}})
    for prefill, named in ((["other"], "tcp://127.0.0.1:8200"), ([], None)):
        policy = {"backends": {"other": far, **up_as("engine", prefill=prefill)["backends"]}}
        async with a_site(tmp_path / str(named)[:3], policy, (FINE,), health=state) as site:
            look = server_header("x-tollgate-prefill")
            await site.until(lambda: site.other.probes)
            async with asyncio.timeout(300):
                while await look(site) != named:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            receipt = await site.receipt(await site.ask(model="up"))
            assert ("prefill" in str(receipt)) == bool(prefill)
