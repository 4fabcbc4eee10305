"""What the keys of scripted backends and of the embedder do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError
from tests.e2e.keys.harness import UP, Row, Site, code, on, shows, status, streamed, text
from tests.fakes import completion, reply

pytestmark = pytest.mark.anyio

FINE = reply(completion("from up"))
SCRIPT = "backends.<name>.script[]"
LOCAL = {"tenants": {"acme": {"local_only": True}}}
CUT: dict[str, Any] = {
    "backends": {"short": {"kind": "fake", "script": [{"reply": "one two three", "cut_after": 1}]}},
}


def scripted(*script: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"backends": {"script": {"script": list(script), **more}}}


async def embedding_status(site: Site) -> int:
    return (await site.post("/v1/embeddings", {"model": "vectors", "input": "a"})).status_code


async def cut_text(site: Site) -> tuple[str, str | None]:
    return await streamed(site, model="cut")


ROWS = [
    # kind: fake
    Row(
        "backends.<name>.kind (fake)",
        {},
        text(),
        "one two three",
        "from up",
        {
            "backends": {"script": None, "plain": {"kind": "openai", "base_url": UP}},
            "models": {"m": on("plain")},
        },
        up=(FINE,),
    ),
    Row("backends.<name>.script (fake)", scripted({"reply": "said"}), text(), "said", "one two three"),
    Row(
        f"{SCRIPT}.match (fake)",
        scripted({"match": "sesame", "reply": "open"}, {"reply": "shut"}),
        text(),
        "shut",
        "open",
        scripted({"reply": "open"}, {"reply": "shut"}),
    ),
    Row(
        f"{SCRIPT}.reply (fake)",
        scripted({"reply": "said"}),
        text(),
        "said",
        "else",
        scripted({"reply": "else"}),
    ),
    Row(
        f"{SCRIPT}.status (fake)", scripted({"status": 429}), status(), 429, 200, scripted({"reply": "said"})
    ),
    Row(
        f"{SCRIPT}.cut_after (fake)",
        {**CUT, "models": {"cut": on("short")}},
        cut_text,
        ("one", "upstream_cut"),
        ("one two three", None),
        {"models": {"cut": on("script")}},
    ),
    Row(
        "backends.<name>.first_token_delay (fake)",
        scripted({"reply": "late"}, first_token_delay="1h")
        | {"models": {"m": on("script", timeouts={"total": "1s"})}},
        status(),
        504,
        200,
        {"models": {"m": on("script", timeouts={"total": "1s"})}},
    ),
    Row(
        "backends.<name>.token_delay (fake)",
        scripted({"reply": "one two"}, token_delay="1h")
        | {"models": {"m": on("script", timeouts={"total": "1s"})}},
        status(),
        504,
        200,
        {"models": {"m": on("script", timeouts={"total": "1s"})}},
    ),
    Row(
        "backends.<name>.local (fake)",
        LOCAL,
        code(),
        200,
        "local_only",
        {**LOCAL, "backends": {"script": {"local": False}, "up": {"local": True}}},
    ),
    Row(
        "backends.<name>.continues (fake)",
        {
            **CUT,
            "backends": {
                **CUT["backends"],
                "script": {"continues": True, "script": [{"reply": " and more"}]},
            },
        }
        | {"models": {"cut": on("short", fallbacks=["m"])}},
        cut_text,
        ("one and more", None),
        ("one", "upstream_cut"),
        {**CUT, "backends": {**CUT["backends"], "script": {"script": [{"reply": " and more"}]}}}
        | {"models": {"cut": on("short", fallbacks=["m"])}},
    ),
    # kind: sidecar
    Row(
        "backends.<name>.kind (sidecar)",
        {"backends": {"vectors": {"kind": "sidecar"}}, "models": {"vectors": on("vectors")}},
        embedding_status,
        503,  # there is none beside this gateway
        200,
        {"models": {"vectors": on("script")}},
    ),
    Row(
        "backends.<name>.local (sidecar)",
        {**LOCAL, "backends": {"vectors": {"kind": "sidecar"}}, "models": {"vectors": on("vectors")}},
        embedding_status,
        503,
        403,
        {
            **LOCAL,
            "backends": {"vectors": {"kind": "sidecar", "local": False}},
            "models": {"vectors": on("vectors")},
        },
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


@shows("backends.<name>.continues (sidecar)")
def test_an_embedder_goes_on_from_nothing(tmp_path: Path) -> None:
    """It may say so, and cannot say otherwise."""
    models = "models: {m: {targets: [{backend: e, model: e}]}}"
    written = f"version: 1\nbackends: {{e: {{kind: sidecar, continues: %s}}}}\n{models}"
    (tmp_path / "gateway.yaml").write_text(written % "false")
    load_policy(tmp_path, {})
    (tmp_path / "gateway.yaml").write_text(written % "true")
    with pytest.raises(PolicyError, match=r"gateway.yaml:2: backends.e.continues"):
        load_policy(tmp_path, {})
