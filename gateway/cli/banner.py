"""What ``tollgate serve`` shows once it can serve: where it is, and calls that work when pasted into a shell."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

from gateway.cli import init
from gateway.cli.devkey import DevelopmentKey
from gateway.policy.loader import Loaded

KEY_VARIABLE = "TOLLGATE_KEY"


def banner(
    url: str, loaded: Loaded, ready: Collection[str], development: DevelopmentKey | None, policies: Path
) -> str:
    """``ready`` are the backends that can serve; ``development`` is the key in force where the policy has none."""
    model = first_model(loaded, ready)
    models = [name for name in loaded.policy.models if _has_one_of(loaded.enabled, loaded, name)]
    lines = [
        "",
        f"  Tollgate is ready at {url}"
        if models
        else f"  Tollgate runs at {url}, but nobody is there to answer yet",
        f"  Models    {', '.join(models) or 'none: each has only disabled backends'}",
        *(f"  Disabled  {name}: {reason}" for name, reason in loaded.disabled.items()),
    ]
    page = _page(url, loaded, development, policies) if loaded.policy.admin.enabled else []
    if development is None:
        key = f"${KEY_VARIABLE}"
        count = len(loaded.policy.keys)
        lines += [
            f"  Keys      {count} in the policy. To make another: {_keys_create(policies)}",
            *page,
            "",
            f"    export {KEY_VARIABLE}=…   # one of your keys",
        ]
    else:
        key = development.key
        lines += [
            f"  Key       {key}",
            f"            the development key ({development.source}), until the policy has keys of its own",
            *page,
        ]
    return "\n".join([*lines, "", *curl(url, key, model), "", *python(url, key, model), ""])


def _page(url: str, loaded: Loaded, development: DevelopmentKey | None, policies: Path) -> list[str]:
    """Where the operators' page is, and what opens it."""
    if development is not None:
        how = "sign in with the key above"
    elif any("admin" in key.scopes for key in loaded.policy.keys_in_force):
        how = "sign in with a key of scope admin"
    else:
        how = f"for its key: {_keys_create(policies)} --scopes admin"
    return [f"  Page      {url}/admin", f"            {how}"]


def _keys_create(policies: Path) -> str:
    where = "" if policies == init.USUAL else f" --policies {shlex.quote(str(policies))}"
    return f"{program()} keys create{where} --id NAME"


def program() -> str:
    """How this program is called from here: a bare name may find nothing, or what somebody else calls ``tollgate``."""
    called = sys.argv[0]
    if Path(called).name != "tollgate":
        return f"{shlex.quote(sys.executable)} -m gateway"
    found = shutil.which("tollgate")
    return "tollgate" if found and Path(found).resolve() == Path(called).resolve() else shlex.quote(called)


def first_model(loaded: Loaded, ready: Collection[str]) -> str:
    """The first model of the policy that can serve now."""
    models = loaded.policy.models
    return next((name for name in models if _has_one_of(ready, loaded, name)), next(iter(models)))


def _has_one_of(backends: Collection[str], loaded: Loaded, model: str) -> bool:
    return any(target.backend in backends for target in loaded.policy.models[model].targets)


def curl(url: str, key: str, model: str) -> list[str]:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    header = f"authorization: Bearer {key}"
    quoted = f'"{header}"' if key.startswith("$") else shlex.quote(header)
    return [
        f"    curl {url}/v1/chat/completions \\",
        f"      -H {quoted} -H 'content-type: application/json' \\",
        f"      -d {shlex.quote(body)}",
    ]


def python(url: str, key: str, model: str) -> list[str]:
    """Five lines with OpenAI's own SDK, to be pasted into a shell; plain Python where the SDK is not installed."""
    secret = f'os.environ["{KEY_VARIABLE}"]' if key.startswith("$") else json.dumps(key, ensure_ascii=False)
    code = [
        f"{'import os; ' if key.startswith('$') else ''}from openai import OpenAI",
        f'client = OpenAI(base_url="{url}/v1", api_key={secret})',
        'messages = [{"role": "user", "content": "Hello!"}]',
        f"reply = client.chat.completions.create(model={json.dumps(model)}, messages=messages)",
        "print(reply.choices[0].message.content)",
    ]
    if find_spec("openai"):
        return [f"{shlex.quote(sys.executable)} - <<'EOF'", *code, "EOF"]
    return ["    # pip install openai", *(f"    {line}" for line in code)]
