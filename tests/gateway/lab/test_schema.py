"""The schema of a policy's files has all keys of the reference, and takes what ``tollgate check`` takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, TypeAdapter, ValidationError

from gateway.__main__ import main
from gateway.lab.reference import Key
from gateway.lab.schema import FILE, policy_schema
from gateway.lab.schema_rules import BEYOND, RULES
from gateway.policy import yaml_tree
from gateway.policy.fields import keys, kind_of
from gateway.policy.files import is_test
from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError, Problem
from gateway.policy.schema import Policy
from tests.gateway.policy.test_rules import CASES
from tests.policy_keys import POLICIES, documented, field_of, in_schema

DOCS = POLICIES.parent / "docs"
SHIPPED = sorted(path for path in POLICIES.rglob("*.yaml") if not is_test(path.name))
BLOCKS = [
    (page.name, block)
    for page in (POLICIES / "README.md", POLICIES.parent / "README.md", *sorted(DOCS.glob("*.md")))
    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    if re.search(r"^(version: 1|backends:|models:|guards:)", block, re.MULTILINE)
    and not re.search(r"^cases:", block, re.MULTILINE)
]
"""Of the documentation, those that are policies or parts of one."""


class Unread(Mapping[str, str]):
    """An environment in which each variable holds its own reference, as an editor sees it."""

    def __getitem__(self, name: str) -> str:
        return f"${{{name}}}"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@cache
def schema() -> dict[str, Any]:
    return policy_schema()


@cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(schema())


def parsed(text: str) -> Any:
    problems: list[Problem] = []
    tree = yaml_tree.read(text, Path("a.yaml"), Unread(), problems)
    assert tree is not None and not problems, problems
    return yaml_tree.data(tree)


def refusals(text: str) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator().iter_errors(parsed(text))]


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(schema())


def part(owner: type[BaseModel], name: str) -> dict[str, Any]:
    """What the schema says of a key."""
    properties = (
        schema()["properties"] if owner is Policy else schema()["$defs"][owner.__name__]["properties"]
    )
    return properties[name]


def test_it_has_every_key_of_the_reference_and_no_other() -> None:
    of_types = {(owner.__name__, path.rpartition(".")[2]) for path, owner in keys()}
    of_schema = {
        (name, key)
        for name, definition in ({"Policy": schema()} | schema()["$defs"]).items()
        for key in definition["properties"]
        if name != "Guard"  # any of them, by its kind
    }
    assert of_schema == of_types
    assert set(documented()) == set(map(Key._make, in_schema()))


@pytest.mark.parametrize("key", documented(), ids=lambda key: f"{key.kind or ''}:{key.path}")
def test_it_explains_each_as_the_reference_does(key: Key) -> None:
    row, said = documented()[key], part(owner_of(key), key.path.rpartition(".")[2])
    assert said.get("default", ...) == (row.value if row.has_default else ...)
    assert said.get("description")
    if row.description and key.kind:
        assert said["description"] == row.description


def owner_of(key: Key) -> type[BaseModel]:
    return next(
        owner
        for path, owner in keys()
        if path == key.path and (not key.kind or (kind_of(owner) or key.kind) == key.kind)
    )


ZOO: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        5,
        -1,
        300,
        99_999_999,
        0.5,
        -0.5,
        1.5,
        "",
        " ",
        "x",
        "no name",
        "on",
        "true",
        "none",
    ),
    *(
        "3s",
        "0s",
        "1.5h",
        "3",
        "3KiB",
        "0KiB",
        "3 furlongs",
        "2030-01-01",
        "01.01.2030",
        "2030-01-01T12:00:00Z",
    ),
    *(
        "a" * 64,
        "a" * 63,
        "memory",
        "redis://h:1/0",
        "sqlite",
        "postgresql://h/d",
        "s3://my-bucket",
        "folder",
    ),
    *(
        "http://h",
        "http://h/v1",
        "https://h/admin/api/oidc/callback",
        "ftp://h",
        "EMAIL_ADDRESS",
        "en",
        "whsec_" + "a" * 44,
    ),
    *(
        [],
        ["x"],
        ["input"],
        ["input", "output"],
        [0.2, 0.8],
        [0.5],
        ["text", "image"],
        ["store"],
        [5],
        [None],
    ),
    *({}, {"x": "y"}, {"x": 1}, {"x": None}, {"model": "x"}, {"below": 0.5}, {"backend": "b", "model": "m"}),
    *({"complexity": {"below": 0.5}}, {"kind": "fake"}, {"store": "eu"}, {"hate": 0.5}, {"sexual": "block"}),
)
"""Values of every shape."""
LOOSE = (
    *("base_url", "issuer", "redirect_uri", "allow_origins", "continues", "models.<name>.input"),
    *("guards.<name>.judge", "sidecar.embedder"),
)
"""Keys whose validators know more than a pattern says: endings, schemes of hosts, what a list must hold."""


MINIMAL = """\
version: 1
backends: {one: {kind: openai, base_url: http://one/v1}}
models: {m: {targets: [{backend: one, model: x}]}}
"""
WRONG = [
    ("backend: {}", ""),
    ("version: 2", "version"),
    ("backends: {b: {kind: openia, base_url: http://b}}", "backends.b.kind"),
    ("backends: {b: {base_url: http://b}}", "backends.b"),
    ("backends: {b: {kind: openai}}", "backends.b"),
    ("backends: {b: {kind: openai, base_url: http://b, apikey: x}}", "backends.b"),
    ("backends: {b: {kind: openai, base_url: http://b, max_concurrency: 0}}", "backends.b.max_concurrency"),
    ("backends: {b: {kind: openai, preset: opnrouter}}", "backends.b.preset"),
    ("backends: {b: {kind: azure, base_url: http://b, api_key: x, entra: {}}}", "backends.b"),
    ("backends: {b: {kind: azure, base_url: http://b, entra: {client_secret: x}}}", "backends.b.entra"),
    ("backends: {b: {kind: gemini, api_key: x, vertex: {project: p}}}", "backends.b"),
    ("backends: {b: {kind: bedrock}}", "backends.b"),
    ("backends: {b: {kind: bedrock, aws: {region: r, access_key_id: x, profile: p}}}", "backends.b.aws"),
    ("backends: {b: {kind: fake, script: [{status: 1000}]}}", "backends.b.script[0].status"),
    ("backends: {'no name': {kind: openai, base_url: http://b}}", "backends"),
    ("models: {n: {}}", "models.n"),
    ("models: {n: {targets: [{backend: one, model: x}], cascade: [{model: m}]}}", "models.n"),
    ("models: {n: {targets: [{backend: one, model: x, wieght: 2}]}}", "models.n.targets[0]"),
    (
        "models: {n: {targets: [{backend: one, model: x}], timeouts: {connect: 2}}}",
        "models.n.timeouts.connect",
    ),
    ("models: {n: {targets: [{backend: one, model: x}], select: random}}", "models.n.select"),
    ("models: {n: {targets: [{backend: one, model: x}], input: [smell]}}", "models.n.input"),
    ("keys: [{id: k, sha256: abc}]", "keys[0].sha256"),
    ("keys: [{id: k}]", "keys[0]"),
    ("tiers: {t: {on_saturation: {action: downgrade}}}", "tiers.t.on_saturation"),
    ("tiers: {t: {on_saturation: {to: m}}}", "tiers.t.on_saturation"),
    ("guards: {pii: {actoin: mask}}", "guards.pii"),
    ("guards: {pii: {action: local, on: [output]}}", "guards.pii.action"),
    ("guards: {pii: {on: [output], stream: optimistic}}", "guards.pii"),
    ("guards: {toxicity: {action: mask}}", "guards.toxicity.action"),
    ("guards: {injection: {canary: true}}", "guards.injection"),
    ("guards: {injection: {spotlight: true, on: [output]}}", "guards.injection"),
    ("guards: {injection: {checks: [fast], classifier: {model: m, unsafe: [x]}}}", "guards.injection"),
    ("guards: {mine: {action: block}}", "guards.mine"),
    ("guards: {mine: {kind: topics}}", "guards.mine"),
    ("guards: {webhook: {url: http://h, format: classify}}", "guards.webhook"),
    ("guards: {webhook: {url: http://h, model: x}}", "guards.webhook"),
    ("guards: {webhook: {url: http://h, format: presidio, texts: masked}}", "guards.webhook"),
    ("prices: {x: {input: 1.0}}", "prices.x"),
    ("prices: {x: {minute: 1.0, only_tokens: true}}", "prices.x"),
    ("cors: {allow_origins: ['*'], allow_credentials: true}", "cors"),
    ("telemetry: {endpoint: http://h, content: true, conventions: v1.36}", "telemetry"),
    ("evaluation: {judge: m, budget: {}}", "evaluation"),
    ("store: mysql://h", "store"),
    ("caches: {exact: {max_bytes: 5}}", "caches.exact"),
    ("regions: {cellar: eu}", "regions"),
]
"""Of one file, and where in it the schema sees it."""
RIGHT = [
    "keys: []",
    "backends: {b: {kind: openai, base_url: http://b, api_key: '${SECRET}', max_concurrency: '${N}'}}",
    "backends: {b: {kind: '${KIND:-openai}', base_url: 'http://${HOST:-b}/v1'}}",
    "backends: {b: {kind: azure, base_url: http://b, api_key: '${UNSET}', entra: {}}}",
    "models: {'${NAME:-n}': {targets: [{backend: one, model: 1.10, weight: '${N}'}], timeouts: {connect: '${N}s'}}}",
    "guards: {injection: {canary: true, on: [input, '${OUT:-output}']}}",
    "guards: {topics: {on: ['${WORD}'], words: [x]}, mine: {kind: length, max_characters: 5, on: [output]}}",
    "keys: [{id: 12, sha256: '" + "0" * 64 + "', expires: 2030-01-01}]",
    "files: {enabled: yes}",
    'shared_prompts: {long: "two\\nlines"}',
]


def is_taken(takes: TypeAdapter[Any], value: Any) -> bool:
    """Whether the policy's own types take it, text as it is written."""
    try:
        takes.validate_python(value)
    except ValidationError as error:
        as_text = value
        for one in error.errors():
            if one["type"] == "too_short" and one["input"]:
                continue  # pydantic counts valid entries only, and reports the others
            if one["type"] != "string_type" or one["input"] is None or isinstance(one["input"], list | dict):
                return False
            as_text = written(as_text, one["loc"])
        return bool(as_text != value) and is_taken(takes, as_text)
    return True


def written(value: Any, loc: tuple[Any, ...]) -> Any:
    """With the value at ``loc`` as the text that stands in a file."""
    if isinstance(value, list) and loc:
        return [written(one, loc[1:]) if index == loc[0] else one for index, one in enumerate(value)]
    if isinstance(value, dict) and loc:
        return {name: written(one, loc[1:]) if name == loc[0] else one for name, one in value.items()}
    return json.dumps(value)


@pytest.mark.parametrize("key", in_schema(), ids=lambda key: f"{key[0] or ''}:{key[1]}")
def test_it_takes_what_the_types_take_and_refuses_the_rest(key: tuple[str | None, str]) -> None:
    takes = TypeAdapter(field_of(key).rebuild_annotation())
    judge = validator().evolve(schema=part(owner_of(Key._make(key)), key[1].rpartition(".")[2]))
    verdicts = [(value, is_taken(takes, value), judge.is_valid(value)) for value in ZOO]
    assert [value for value, taken, valid in verdicts if taken and not valid and value is not True] == []
    if not key[1].endswith(LOOSE) and "." in key[1]:
        assert [value for value, taken, valid in verdicts if valid and not taken] == []


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: str(file.relative_to(POLICIES)))
def test_what_ships_is_valid_and_names_the_schema(file: Path) -> None:
    text = file.read_text()
    assert refusals(text) == []
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert named is not None
    assert (file.parent / named[1]).resolve() == POLICIES / FILE


def test_the_schema_beside_the_policies_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == schema()
    assert (POLICIES / FILE).read_text() == printed, f"write it anew: tollgate schema --out policies/{FILE}"


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page}-{n}" for n, (page, _) in enumerate(BLOCKS)])
def test_policies_of_the_documentation_are_valid(page: str, block: str) -> None:
    assert refusals(block) == []


@pytest.mark.parametrize("name", CASES)
def test_policies_that_the_rules_take_are_valid(name: str) -> None:
    assert refusals(CASES[name].right) == []


@pytest.mark.parametrize(("wrong", "where"), WRONG)
def test_wrong_shapes_are_refused_as_check_refuses_them(wrong: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MINIMAL)
    (tmp_path / "b.yaml").write_text(wrong)
    with pytest.raises(PolicyError):
        load_policy(tmp_path, {})
    assert any(said.startswith(f"$.{where}" if where else "$:") for said in refusals(wrong)), refusals(wrong)


@pytest.mark.parametrize("right", RIGHT)
def test_variables_and_parts_of_a_policy_are_valid(right: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MINIMAL)
    (tmp_path / "b.yaml").write_text(right)
    load_policy(tmp_path, {"N": "3", "SECRET": "x", "WORD": "input"})
    assert refusals(right) == []


def test_each_type_that_checks_itself_as_a_whole_has_its_rule() -> None:
    checked = {
        owner
        for _, owner in keys()
        if any(one.info.mode == "after" for one in owner.__pydantic_decorators__.model_validators.values())
    }
    assert [owner for owner in checked if owner not in BEYOND and not issubclass(owner, tuple(RULES))] == []


def test_it_is_written_where_one_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--out", str(tmp_path / FILE)]) == 0
    assert json.loads((tmp_path / FILE).read_text()) == schema()
    assert f"# yaml-language-server: $schema={FILE}" in capsys.readouterr().out
    assert main(["schema", "--out", str(tmp_path / "no" / FILE)]) == 1
    assert "cannot be written" in capsys.readouterr().err
