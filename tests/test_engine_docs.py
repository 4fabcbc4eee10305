"""docs/engine.md says what is there: flags, fields, metrics and modules all, and its snippets run."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as OpenAIChat
from openai.types.completion_create_params import CompletionCreateParamsBase as OpenAICompletion
from safetensors.torch import load_file

from engine.__main__ import parser
from engine.config import EngineConfig, ServerConfig, parse_bytes
from engine.fleet.roster import Terms, read_roster
from engine.options import read_options
from engine.server.fields import REFUSED
from engine.server.gpus import FIGURES
from engine.server.requests import ChatBody, CompletionBody
from engine.weights.source import DEMO, locate
from gateway.policy.loader import load_policy
from tests.engine.live import EngineServer, eventually
from tests.engine.lora import write_adapter

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "engine.md").read_text()
URL = "http://127.0.0.1:8100"
ADAPTER = "/models/adapters/fox"
TOKEN = "/etc/tollgate/adapter-token"
PACKAGES = [
    "parallel",
    "nodes",
    "core",
    "handover",
    "worker",
    "attention",
    "layers",
    "models",
    "weights",
    "pooling",
    "grammar",
    "server",
    "fleet",
    "drafts",
    "quantizer",
    "evaluation",
    "verify",
    "bench",
    "simulation",
]
FOLDERS = ["engine", *(f"engine/{name}" for name in PACKAGES)]
FOLDERS += ["engine/server/pooling", "engine/core/tiers", "engine/worker/tiers"]


def section(title: str) -> str:
    """What stands under a heading, up to the next one of its rank or higher."""
    found = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)
    assert found is not None, f"the page has no heading {title!r}"
    rest = PAGE[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(title: str) -> list[list[str]]:
    """The cells of the first table there, its head left out."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:] if "---" not in line]


def named(title: str) -> list[str]:
    """What the first column there names."""
    return [name for first, *_ in rows(title) for name in re.findall(r"`([^`]+)`", first)]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def actions(command: str) -> dict[str, argparse.Action]:
    """The options of a command, by their long names."""
    (commands,) = (one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
    options = commands.choices[command]._actions
    return {one.option_strings[-1]: one for one in options if one.option_strings and one.dest != "help"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an adapter, and the token that loading it takes."""
    home = tmp_path_factory.mktemp("engine")
    (home / "token").write_text("0123456789abcdef\n")
    write_adapter(home / "fox", load_file(locate(DEMO) / "model.safetensors"), rank=4)
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[EngineServer]:
    changing = ("--adapter-token-file", str(home / "token"), "--adapter-folder", str(home))
    with EngineServer(DEMO, "--max-adapters", "4", *changing, log=home / "log") as server:
        yield server


@pytest.fixture(scope="module")
def snippets(server: EngineServer, home: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The page's Python, run from top to bottom: the names that it leaves, and what it prints."""
    code = "\n".join(blocks("python")).replace(URL, server.url)
    code = code.replace(ADAPTER, str(home / "fox")).replace(TOKEN, str(home / "token"))
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as received:
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            patch.delenv(name)
        exec(compile(code, "docs/engine.md", "exec"), names)
    yield names, received.getvalue()
    names["client"].close()
    names["engine"].close()


def test_every_flag_is_on_the_page_and_no_other() -> None:
    assert sorted(named("Flags")) == sorted(actions("serve"))


def test_no_flag_is_named_that_is_not_there() -> None:
    commands = ("serve", "rank", "eval", "quantize", "train-draft", "verify", "bench")
    known = {flag for command in commands for flag in actions(command)}
    page = re.sub(r"python -m benchmarks[^`]*", "", PAGE)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page)) <= known


def test_defaults_are_those_of_help_and_code() -> None:
    reported = {first.strip("`"): default for first, default, *_ in rows("Flags")}
    settings = {field.name: field.default for kind in (EngineConfig, ServerConfig) for field in fields(kind)}
    for flag, action in actions("serve").items():
        if helped := re.search(r"\(default: (.*)\)", action.help or ""):
            assert reported[flag] == helped[1]
        default = settings.get(action.dest)
        if isinstance(default, str) or (type(default) in (int, float) and default):
            received = (
                parse_bytes(reported[flag])
                if flag in ("--max-body-bytes", "--max-adapter-bytes", "--disk-kv-size")
                else reported[flag].split(",")[0]
            )
            assert str(received) == (f"{default:g}" if isinstance(default, float) else str(default)), flag


def test_commands_are_ones_that_the_parser_takes() -> None:
    lines = [line.partition("#")[0].split() for block in blocks("sh") for line in block.splitlines()]
    commands = [words[3:] for words in lines if words[:3] == ["python", "-m", "engine"]]
    assert len(commands) >= 5
    for words in commands:
        parser().parse_args(words)


def test_its_policy_loads_and_its_engine_starts_so(tmp_path: Path) -> None:
    block, _, _ = blocks("yaml")
    example = (ROOT / "policies" / "examples" / "engine" / "gateway.yaml").read_text()
    for number, text in enumerate((block, example)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "gateway.yaml").write_text(text)
        (backend,) = load_policy(folder, {}).policy.backends.values()
        assert backend.kind == "engine" and backend.launch and backend.args
        parser().parse_args(["serve", "--model", backend.model, *backend.args])


def test_its_engines_of_phases_load_and_start_so(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(blocks("yaml")[-1])
    backends = load_policy(tmp_path, {}).policy.backends
    assert backends["decode"].prefill == ("prompts",) and backends["prompts"].kind == "engine"
    commands = re.findall(
        r"^python -m engine (serve .*--role.*)$", section("Prefill and decode apart"), re.MULTILINE
    )
    for command, role in zip(commands, ("prefill", "decode"), strict=True):
        given = vars(parser().parse_args(command.split()))
        del given["run"]
        assert read_options(given).engine.role == role


def test_its_models_file_is_read(tmp_path: Path) -> None:
    (block,) = blocks("yml")
    (tmp_path / "models.yaml").write_text(block)
    roster = read_roster(tmp_path / "models.yaml")
    assert [(one.name, one.terms.pinned) for one in roster.models] == [
        ("small", True),
        ("large", False),
        ("rare", False),
    ]
    keys = {*re.findall(r"^\| `(\w+)` \|", section("Several models"), re.MULTILINE)}
    assert keys == {"model", "args", *(field.name for field in fields(Terms))}


def test_request_fields_are_those_beyond_openais() -> None:
    ours = (set(ChatBody.model_fields) - set(OpenAIChat.__annotations__)) | (
        set(CompletionBody.model_fields) - set(OpenAICompletion.__annotations__)
    )
    assert sorted(named("Asking it")) == sorted(ours - {"stream"})


def test_fields_that_are_refused_are_named() -> None:
    reported = re.search(
        r"These fields are rejected(.*?)\. So are", section("What it does not do"), re.DOTALL
    )
    assert reported is not None
    assert set(re.findall(r"`(\w+)`", reported[1])) == {*REFUSED, "best_of", "n"}


def test_fields_of_openais_that_are_ignored_are_those_that_are_named() -> None:
    openais = set(OpenAIChat.__annotations__) - set(ChatBody.model_fields) - set(REFUSED)
    named = {"service_tier", "prompt_cache_key", "verbosity", "store", "metadata"}
    assert named | {"prediction", "safety_identifier", "user"} <= openais
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **dict.fromkeys(openais, "x")}
    assert set(ChatBody.model_validate(body).ignored) == openais


def test_the_snippets_print_what_the_page_says(snippets: tuple[dict[str, Any], str]) -> None:
    _, received = snippets
    lines = received.splitlines()
    assert lines[:2] == ["The capital of France is Paris.", "Paris"]
    assert '"city"' in received
    assert "'fox' added successfully" in received and "'fox' removed successfully" in received


def test_the_recipe_gives_the_keys_of_the_digest(
    server: EngineServer, snippets: tuple[dict[str, Any], str]
) -> None:
    cached = snippets[0]["cached"]
    shared = [5 + i % 700 for i in range(100)]

    def complete(prompt: list[int]) -> None:
        server.post("/v1/completions", model="demo", prompt=prompt, max_tokens=1).raise_for_status()

    complete([*shared, 7, 8])
    complete([*shared, 9])

    def known() -> bool:
        # The digest comes with a step, once a second at most.
        complete([3])
        return bool(cached([*shared, 1, 2, 3]) == 96)

    eventually(known)
    assert cached([4, *shared]) == 0


def test_curl_can_ask_what_the_page_asks(server: EngineServer) -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("curl -s ")]
    assert len(lines) == 3
    for line in lines:
        words = line.replace(URL, server.url).split()
        done = subprocess.run([*words, "--fail", "--noproxy", "*"], capture_output=True, timeout=300)
        assert done.returncode == 0 and done.stdout, line


def test_the_state_has_the_fields_that_are_listed(server: EngineServer) -> None:
    def leaves(state: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for name, value in state.items():
            # The keys of these two are what happens to be there.
            if isinstance(value, dict) and name not in ("waiting_by_priority", "startup_seconds"):
                yield from leaves(value, f"{prefix}{name}.")
            else:
                yield prefix + name

    assert sorted(named("`/v1/engine/state`")) == sorted(leaves(server.state()))


def test_the_metrics_are_those_that_are_listed(server: EngineServer) -> None:
    text = server.http.get("/metrics").text
    types = re.findall(r"^# TYPE tollgate_engine_(\w+) \w+$", text, re.MULTILINE)
    assert sorted(named("`/metrics`")) == sorted(name for name in types if not name.endswith("_created"))
    vllms = re.findall(r"^# TYPE vllm:(\w+) \w+$", text, re.MULTILINE)
    listed = sorted(named("vLLM's metric names"))
    assert listed == sorted(name for name in vllms if not name.endswith("_created"))
    assert named("GPU figures") == ["info", *FIGURES]


@pytest.mark.parametrize("folder", [*FOLDERS, "kernels", "kernels/native", "kernels/bench"])
def test_every_module_is_on_the_map_and_no_other(folder: str) -> None:
    there = {path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py"}
    reported = re.findall(r"`(\w+\.py)`", section(folder))
    assert sorted(reported) == sorted(there), f"docs/engine.md, 'The map', {folder}: one line for each module"


def test_the_map_knows_every_folder() -> None:
    there = {f"engine/{path.parent.name}" for path in (ROOT / "engine").glob("*/__init__.py")}
    # The demo model's maker is described where it is trained.
    assert there - set(FOLDERS) == {"engine/demo"}


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
