from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.loader import Loaded, load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.rules.subject import Draft
from gateway.policy.rules.table import errors
from gateway.policy.schema import EngineBackend, OpenAIBackend

BASE = """\
version: 1
backends:
  one: {kind: openai, base_url: http://one/v1}
models:
  m: {targets: [{backend: one, model: m}]}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(**files: str) -> Path:
        for name, text in files.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return tmp_path

    return write


def problems(folder: Path, env: Mapping[str, str] | None = None) -> list[str]:
    """Each problem, its file reduced to the name."""
    with pytest.raises(PolicyError) as caught:
        load_policy(folder, env or {})
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


def openai(loaded: Loaded, name: str = "one") -> OpenAIBackend:
    backend = loaded.policy.backends[name]
    assert isinstance(backend, OpenAIBackend)
    return backend


def test_a_policy_loads_with_its_defaults(write: Write) -> None:
    loaded = load_policy(write(gateway=BASE), {})
    assert openai(loaded).base_url == "http://one/v1"
    assert loaded.policy.store == "memory"
    assert loaded.policy.models["m"].timeouts.connect == 2.0
    assert loaded.disabled == {}
    assert [source.path.name for source in loaded.sources] == ["gateway.yaml"]


def test_files_are_joined_in_the_order_of_their_names(write: Write) -> None:
    hashes = [str(digit) * 64 for digit in (1, 2)]
    folder = write(
        b=BASE + f"keys: [{{id: second, sha256: '{hashes[1]}'}}]",
        a=f"version: 1\nkeys: [{{id: first, sha256: '{hashes[0]}'}}]\n"
        "models: {n: {targets: [{backend: one, model: n}]}}",
    )
    (folder / "c.yml").write_text("store: redis://r:6379")
    (folder / ".hidden.yaml").write_text("nonsense: true")
    (folder / "notes.txt").write_text("not: read")
    loaded = load_policy(folder, {})
    assert [key.id for key in loaded.policy.keys] == ["first", "second"]
    assert set(loaded.policy.models) == {"m", "n"}
    assert loaded.policy.store == "redis://r:6379"
    assert [source.path.name for source in loaded.sources] == ["a.yaml", "b.yaml", "c.yml"]


def test_the_same_entry_in_two_files_names_both_places(write: Write) -> None:
    folder = write(
        a=BASE + "store: memory", b="backends:\n  one: {kind: openai, base_url: http://two}\nstore: memory"
    )
    assert problems(folder) == [
        f"b.yaml:2: backends.one: is given twice; the first is at {folder}/a.yaml:3",
        f"b.yaml:3: store: is given twice; the first is at {folder}/a.yaml:6",
    ]


def test_everything_wrong_is_said_at_once(write: Write) -> None:
    folder = write(
        a="""\
version: 1
backends:
  one: {kind: openai, bse_url: http://one/v1}
  two: {kind: opnai}
  tri: {base_url: http://tri}
  fyr: 4
models:
  m:
    targets: [{backend: onee, model: m, weight: heavy}]
    timeouts: {idle: 5}
  empty: {targets: []}
  none: {targets: }
  bad name: {targets: [{backend: one, model: ""}]}
keys:
  - {id: k, sha256: abc, expires: 2027-13-01}
  - {id: k, models: [n], expires: 20270101}
  - {id: k2, sha256: 12, models: m}
modls: {}
store: file:///tmp
"""
    )
    expected = [
        "a.yaml:3: backends.one.base_url: is required, and missing",
        "a.yaml:3: backends.one.bse_url: unknown key; did you mean 'base_url'?",
        "a.yaml:4: backends.two.kind: 'opnai' is not a kind of backend; did you mean 'openai'?",
        "a.yaml:5: backends.tri.kind: is required, and missing; write one of 'engine', 'openai', 'anthropic', …",
        "a.yaml:6: backends.fyr: should be a mapping: {key: value}",
        "a.yaml:9: models.m.targets[0].backend: no backend is named 'onee'; did you mean 'one'?",
        "a.yaml:9: models.m.targets[0].weight: should be a number",
        "a.yaml:10: models.m.timeouts.idle: write a duration as a number with its unit: 250ms, 2s, 5m, 1h or 1d",
        "a.yaml:11: models.empty: should have either 'targets' or 'cascade', with at least one entry",
        "a.yaml:12: models.none.targets: has no value; write one, or remove the key",
        "a.yaml:13: models.bad name.targets[0].model: should not be empty",
        "a.yaml:13: models.bad name: 'bad name' is not a name; use letters, digits and ._:/@+- and begin with …",
        "a.yaml:15: keys[0].expires: 2027-13-01 is no day: month must be in 1..12",
        "a.yaml:15: keys[0].sha256: should be 64 hex digits, the key's SHA-256; 'tollgate keys create' writes …",
        "a.yaml:16: keys[1].expires: write a day as year-month-day, such as 2027-01-01",
        f"a.yaml:16: keys[1].id: two keys have this id; each needs its own (the other is at {folder}/a.yaml:15)",
        "a.yaml:16: keys[1].models[0]: no model is named 'n'; there is 'm', 'empty', 'none', 'bad name'",
        "a.yaml:16: keys[1].sha256: is required, and missing",
        "a.yaml:17: keys[2].models: should be a list: [a, b]",
        "a.yaml:17: keys[2].sha256: should be 64 hex digits, the key's SHA-256; 'tollgate keys create' writes …",
        "a.yaml:18: modls: unknown key; did you mean 'models'?",
        (
            "a.yaml:19: store: should begin with one of redis://, rediss://, redis+cluster://, rediss+cluster://, "
            "redis+sentinel://, rediss+sentinel://"
        ),
    ]
    said = problems(folder)
    for problem, start in zip(said, expected, strict=False):
        assert problem.startswith(start.removesuffix("…"))
    assert len(said) == len(expected)


def test_a_broken_file_does_not_make_the_others_look_wrong(write: Write) -> None:
    folder = write(a=BASE.replace("models:", "modells:"), b="backends: [unclosed")
    assert problems(folder) == [
        "a.yaml:4: modells: unknown key; did you mean 'models'?",
        "b.yaml:1: not valid YAML: while parsing a flow sequence, did not find expected ',' or ']'",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; write something or remove the file"),
        ("# only words\n", "holds nothing; begin with 'version: 1'"),
        ("- a\n- b\n", "a policy file is a mapping: lines of the form 'key: value'"),
        ("words\n", "a policy file is a mapping: lines of the form 'key: value'"),
        (
            "version: 1\n---\nversion: 1\n",
            "2: a second document ('---') begins here; one file holds one document",
        ),
        ("version: 1\n\tstore: memory\n", "2: not valid YAML: while scanning"),
        ("store: a: b\n", "not valid YAML: mapping values are not allowed in this context; put text with"),
        ("a: \x07\n", "not valid YAML: control characters are not allowed; remove that character"),
        ("version: 1\nversion: 1\n", "2: version: is written twice in one mapping; the first is at line 1"),
        ("version: !!python/object:os.system 1\n", "version: the tag '!!python/object:os.system' is not supported"),
        ("version: *one\n", "version: '*one' names no anchor"),
        ("models: &m {a: *m}\n", "models.a: '*m' is inside the value that it names"),
        ("[1, 2]: 3\n", "a key must be plain text"),
        ("~: 3\n", "a key must be plain text"),
        ("version: ${1X}\n", "version: write ${NAME} or ${NAME:-default}, or $${ where you mean the characters ${"),
        ("${NO}: 1\n", "the environment variable NO, used in a key, is not set"),
        ("models: {<<: 3}\n", "models.<<: takes a mapping"),
    ],
)  # fmt: skip
def test_text_that_is_no_policy(write: Write, text: str, message: str) -> None:
    line, _, rest = message.partition(": ") if message[0].isdigit() else ("1", "", message)
    said = problems(write(a=text))
    assert any(problem.startswith(f"a.yaml:{line}: {rest}") for problem in said), said


def test_missing_empty_and_odd_folders(tmp_path: Path) -> None:
    (said,) = problems(tmp_path / "no")
    assert said.startswith(f"{tmp_path}/no: no such folder; give the folder that holds your policy files, or")
    assert "tollgate init" in said
    assert problems(tmp_path)[0].endswith(
        f"{tmp_path}: holds no *.yaml file; write one that begins with 'version: 1'"
    )
    file = tmp_path / "gateway.yaml"
    file.write_text(BASE)
    assert problems(file) == [f"{file}: is a file; give the folder that holds it: {tmp_path}"]
    file.unlink()
    file.mkdir()
    assert "is a folder where a file should be" in problems(tmp_path)[0]
    file.rmdir()
    file.symlink_to("nowhere")
    assert problems(tmp_path) == [
        "gateway.yaml:1: is a link to 'nowhere', which is not there; correct the link or remove it"
    ]


def test_bytes_that_are_not_utf8_are_found_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(BASE.encode() + b"# caf\xe9\n")
    assert problems(tmp_path) == ["a.yaml:6: is not UTF-8 (byte 0xe9); save it as UTF-8"]
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert load_policy(tmp_path, {}).policy.version == 1


def test_anchors_and_merge_keys(write: Write) -> None:
    loaded = load_policy(
        write(
            a="""\
version: 1
backends:
  one: &one {kind: openai, base_url: http://one/v1, api_key: secret}
  two: {<<: *one, base_url: http://two/v1}
models:
  m: &m {targets: &targets [{backend: one, model: m}], timeouts: &t {idle: 1s, total: 9s}}
  n: {targets: *targets, timeouts: {<<: [{idle: 2s}, *t]}}
"""
        ),
        {},
    )
    two = openai(loaded, "two")
    assert two.base_url == "http://two/v1"
    assert two.api_key is not None and two.api_key.get_secret_value() == "secret"
    assert loaded.policy.models["n"].timeouts.idle == 2.0
    assert loaded.policy.models["n"].timeouts.total == 9.0


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "a: " + "[" * 20_000,
        "a: " + "{a: " * 20_000,
        "".join(f"{'- ' * depth}a\n" for depth in range(1, 400)),
        "\n".join(
            f"{name}: &{name} {'[' * 20}{inner}{']' * 20}" for name, inner in ("ax", ("b", "*a"), ("c", "*b"))
        ),
    ],
    ids=["alias bomb", "open brackets", "open braces", "steps", "depth by alias"],
)
def test_bombs_do_not_hang(write: Write, text: str) -> None:
    folder, began = write(a=text), time.process_time()
    assert problems(folder)
    assert time.process_time() - began < 10


def test_words_that_yaml_1_1_reads_as_something_else(write: Write) -> None:
    """Where text is meant, what is written counts; where something else is meant, it is an error."""
    loaded = load_policy(
        write(
            a="""\
version: 1
backends:
  no: {kind: openai, base_url: http://one/v1, api_key: 0123}
  on: {kind: engine, launch: yes, model: 1.10}
  0o17: {kind: openai, base_url: http://x, api_key: 1_000}
models:
  12:30: {targets: [{backend: no, model: no}]}
  1.10: {targets: [{backend: on, model: true}]}
  null: {targets: [{backend: 0o17, model: 2027-01-01, weight: 1e1}]}
""".replace("null:", '"null":')
        ),
        {},
    )
    models = loaded.policy.models
    assert list(models) == ["12:30", "1.10", "null"]
    assert [model.targets[0].model for model in models.values()] == ["no", "true", "2027-01-01"]
    assert models["null"].targets[0].weight == 10
    engine = loaded.policy.backends["on"]
    assert isinstance(engine, EngineBackend) and engine.launch is True and engine.model == "1.10"
    keys = [openai(loaded, name).api_key for name in ("no", "0o17")]
    assert [key and key.get_secret_value() for key in keys] == ["0123", "1_000"]

    said = problems(
        write(
            a=BASE.replace("model: m", "model: m, weight: 010") + "  n: {targets: [{backend: one, model: ~}]}"
        )
    )
    assert said == [
        "a.yaml:5: models.m.targets[0].weight: should be a number",
        "a.yaml:6: models.n.targets[0].model: has no value; write one, or remove the key",
    ]


class TestEnvironment:
    ENGINE = "version: 1\nbackends:\n  one: {kind: engine, launch: ${LAUNCH:-true}, model: ${MODEL:-demo}}\n"
    MODELS = "models: {m: {targets: [{backend: one, model: m}]}}\n"

    def engine(self, folder: Path, **env: str) -> EngineBackend:
        backend = load_policy(folder, env).policy.backends["one"]
        assert isinstance(backend, EngineBackend)
        return backend

    def test_a_value_takes_the_type_that_is_meant(self, write: Write) -> None:
        folder = write(a=self.ENGINE + self.MODELS)
        assert self.engine(folder).launch is True
        assert self.engine(folder, LAUNCH="false").launch is False
        assert self.engine(folder, LAUNCH="0").launch is False
        assert self.engine(folder, LAUNCH="").launch is True
        assert self.engine(folder, MODEL="405").model == "405"
        assert self.engine(folder, MODEL="null").model == "null"
        assert problems(folder, {"LAUNCH": "maybe"}) == [
            "a.yaml:3: backends.one.launch: should be true or false"
        ]

    @given(value=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
    def test_a_value_never_becomes_structure(
        self, value: str, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("policy")
        (folder / "a.yaml").write_text(BASE.replace("v1}", "v1, api_key: ${KEY}}"))
        key = openai(load_policy(folder, {"KEY": value})).api_key
        assert key is not None and key.get_secret_value() == value

    @pytest.mark.parametrize("env", [{}, {"OPENAI_API_KEY": ""}])
    def test_a_missing_api_key_disables_its_backend(self, write: Write, env: dict[str, str]) -> None:
        folder = write(a=BASE.replace("v1}", "v1, api_key: ${OPENAI_API_KEY}}"))
        loaded = load_policy(folder, env)
        assert loaded.disabled == {"one": "OPENAI_API_KEY is not set"}
        assert openai(loaded).api_key is None
        assert load_policy(folder, {"OPENAI_API_KEY": "sk"}).disabled == {}

    def test_a_default_for_an_api_key_leaves_its_backend_enabled(self, write: Write) -> None:
        loaded = load_policy(write(a=BASE.replace("v1}", "v1, api_key: ${KEY:-}}")), {})
        assert loaded.disabled == {} and openai(loaded).api_key is None

    def test_a_variable_that_is_not_set_is_one_error(self, write: Write) -> None:
        folder = write(
            a=BASE.replace("http://one/v1", "http://${HOST}/v1").replace("model: m}", "model: ${M}}")
        )
        advice = "is not set; set it, or write a default: "
        host = "a.yaml:3: backends.one.base_url: the environment variable HOST " + advice + "${HOST:-default}"
        model = "a.yaml:5: models.m.targets[0].model: the environment variable M " + advice + "${M:-default}"
        assert problems(folder) == [host, model]

    @pytest.mark.parametrize("quoted", [True, False], ids=["quoted", "plain"])
    def test_a_number_is_one_with_quotes_and_without(self, write: Write, quoted: bool) -> None:
        def variable(name: str) -> str:
            return f'"${{{name}}}"' if quoted else f"${{{name}}}"

        more = f"prices: {{m: {{input: {variable('P')}, output: {variable('P')}}}}}\n"
        policy = BASE.replace("v1}", f"v1, max_concurrency: {variable('N')}}}").replace(
            "model: m}", f"model: {variable('N')}, weight: {variable('N')}}}"
        )
        loaded = load_policy(write(a=policy, b=more.replace("{m:", "{'7':")), {"N": "7", "P": "0.5"}).policy
        assert loaded.backends["one"].max_concurrency == 7
        [target] = loaded.models["m"].targets
        assert (target.model, target.weight, loaded.prices["7"].input) == ("7", 7.0, 0.5)

    def test_what_is_no_number_is_none_in_a_variable_either(self, write: Write) -> None:
        policy = BASE.replace("v1}", 'v1, max_concurrency: "${N}"}')
        assert problems(write(a=policy), {"N": "many"}) == [
            "a.yaml:3: backends.one.max_concurrency: should be a whole number"
        ]
        quoted = BASE.replace("v1}", 'v1, max_concurrency: "7"}')
        assert problems(write(a=quoted)) == [
            "a.yaml:3: backends.one.max_concurrency: should be a whole number, without quotes"
        ]

    def test_a_literal_dollar_brace(self, write: Write) -> None:
        loaded = load_policy(write(a=BASE.replace("v1}", "v1, api_key: $${A}${B}}")), {"B": "${C}"})
        key = openai(loaded).api_key
        assert key is not None and key.get_secret_value() == "${A}${C}"


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (
            "kind: openai, base_url: ftp://x",
            "base_url: should be a URL such as https://host/v1 or http://127.0.0.1:8100",
        ),
        (
            "kind: openai, base_url: http://x/v1/chat/completions",
            "base_url: should end before '/chat/completions', such as http://x/v1",
        ),
        (
            "kind: openai, base_url: http://u:p@x/v1",
            "base_url: should hold no user or password; a key belongs in api_key",
        ),
        ("kind: openai, base_url: http://x:99999", "base_url: is not a URL: Port out of range 0-65535"),
        (
            "kind: openai, base_url: http://x/v1?a=b",
            "base_url: should end with its path, without '?' and '#'",
        ),
        (
            "kind: engine, base_url: http://x:8100/v1",
            "base_url: should name host and port only, without a path, such as http://x:8100",
        ),
        (
            "kind: engine, launch: true, base_url: http://far:8100",
            "base_url: with 'launch: true' the engine runs on this machine; write http://127.0.0.1:PORT",
        ),
        (
            "kind: engine, launch: true, args: [--port=1]",
            "args[0]: '--port' is set by 'base_url'; write it there",
        ),
        ("kind: fake, script: []", "script: should have at least one entry"),
        ("kind: fake, script: [{status: 99}]", "script[0].status: should be 200 or more"),
    ],
)
def test_backends_that_cannot_work(write: Write, backend: str, message: str) -> None:
    folder = write(a=BASE, b=f"backends:\n  two: {{{backend}}}")
    assert problems(folder) == [f"b.yaml:2: backends.two.{message}"]


def test_two_launched_engines_need_two_ports(write: Write) -> None:
    folder = write(
        a=BASE,
        b="backends:\n  x: {kind: engine, launch: true}\n  y: {kind: engine, launch: true}\n  z: {kind: engine}",
    )
    what = "backends.y.base_url: two launched engines have port 8100; give each its own"
    assert problems(folder) == [f"b.yaml:3: {what} (the other is at {folder}/b.yaml:2)"]


@pytest.mark.parametrize("sidecar", ["{}", "{embedder: builtin}"])
def test_the_builtin_embedder_does_not_bear_cutting(write: Write, sidecar: str) -> None:
    claim = "backends:\n  two: {kind: sidecar, matryoshka: true}\nsidecar: "
    folder = write(a=BASE, b=claim + sidecar)
    [problem] = problems(folder)
    assert problem.startswith(
        "b.yaml:2: backends.two.matryoshka: the built-in all-MiniLM-L6-v2 cannot be truncated"
    )
    load_policy(write(b=claim + "{embedder: nomic-embed}"), {})


def test_equal_content_has_an_equal_fingerprint(write: Write) -> None:
    first = load_policy(write(a=BASE), {})
    assert load_policy(write(a="# a comment\n" + BASE), {}).fingerprint == first.fingerprint
    assert load_policy(write(a=BASE + "store: redis://r"), {}).fingerprint != first.fingerprint


@given(
    st.lists(
        st.one_of(
            st.text(max_size=30),
            st.sampled_from(
                [*"{}[]:,&*#|>-\n \t'\"!?%", "${", "$${", "${A:-", "<<: ", "version: 1\n", "models:\n  "]
            ),
            st.sampled_from(BASE.splitlines(keepends=True)),
        )
    ).map("".join)
)
def test_any_text_is_a_policy_or_a_policy_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    (folder / "a.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load_policy(folder, {"A": "{x: [y"})
    except PolicyError as error:
        assert error.problems
        assert all(str(problem).startswith(f"{folder}/a.yaml:") for problem in error.problems)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_policy_or_a_policy_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / "bytes"
    folder.mkdir(exist_ok=True)
    (folder / "a.yaml").write_bytes(content)
    with pytest.raises(PolicyError):
        load_policy(folder, {})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("models: {n: {aliases: [x, m], TARGETS}}", "models.n.aliases[1]: 'm' is the name of another model"),
        ("models: {n: {aliases: [x], TARGETS}, o: {aliases: [x], TARGETS}}", "models.o.aliases[0]: 'x' is the"),
        ("models: {n: {aliases: [n], TARGETS}}", "models.n.aliases[0]: 'n' is the name of another model"),
        ("models: {n: {fallbacks: [mm], TARGETS}}", "models.n.fallbacks[0]: no model is named 'mm'; did you mean 'm'?"),
        ("models: {n: {fallbacks: [n], TARGETS}}", "models.n.fallbacks[0]: is the model itself; name another one"),
        (
            "models: {n: {fallbacks: [x], TARGETS}, o: {aliases: [x], TARGETS}}",
            "models.n.fallbacks[0]: no model is named 'x'; write 'o', of which it is an alias",
        ),
        ("models: {n: {larger_context: no, TARGETS}}", "models.n.larger_context"),
        ("models: {n: {larger_context: nothing, TARGETS}}", "models.n.larger_context: no model is named 'nothing'"),
        ("models: {n: {larger_context: n, TARGETS}}", "models.n.larger_context: is the model itself"),
        ("models: {n: {shadow: {model: x}, TARGETS}}", "models.n.shadow.model: no model is named 'x'"),
        ("models: {n: {cascade: [{model: x}]}}", "models.n.cascade[0].model: no model is named 'x'"),
        ("models: {n: {cascade: [{model: n}]}}", "models.n.cascade[0].model: is the model itself"),
        (
            "models: {n: {cascade: [{model: m}]}, o: {cascade: [{model: n}]}}",
            "models.o.cascade[0].model: 'n' is a cascade itself; a step should be a model with targets",
        ),
        (
            "models: {n: {cascade: [{model: m}], shadow: {model: m}}}",
            "models.n.shadow: has no effect on a cascade; write it at the models that its steps name",
        ),
        ("models: {n: {cascade: [{model: m}], aliases: [a], fallbacks: [m]}}", "models.n.fallbacks: has no effect on"),
        (
            "models: {n: {cascade: [{model: m, when: {complexity: {below: 0.5}}}]}}",
            "models.n.cascade[0].when: has no effect on the last step, which takes whatever is left",
        ),
        ("models: {n: {cascade: [{model: m, escalate: {}}]}}", "models.n.cascade[0].escalate: has no effect on the"),
        ("models: {n: {regions: [mars], TARGETS}}", "models.n.regions[0]: no backend is in region 'mars'"),
        *(
            (
                f"models: {{n: {{cascade: [{{model: m}}]}}, o: {{targets: [{{backend: b, model: x}}], {key}}}}}",
                f"models.o.{where}: 'n' is a cascade, which cannot replace another model; name models with targets",
            )
            for key, where in (("fallbacks: [m, n]", "fallbacks[1]"), ("larger_context: n", "larger_context"))
        ),
        (
            "models: {n: {cascade: [{model: m}]}}\ntiers: {free: {on_saturation: {action: downgrade, to: n}}}",
            "tiers.free.on_saturation.to: 'n' is a cascade; name one model with targets",
        ),
        (
            "tiers: {free: {on_saturation: {action: downgrade, to: x}}}",
            "tiers.free.on_saturation.to: no model is named 'x'",
        ),
        ("tiers: {free: {}}\ntenants: {a: {tier: fre}}", "tenants.a.tier: no tier is named 'fre'; did you mean"),
        (
            f"tiers: {{free: {{}}}}\nkeys: [{{id: k, sha256: '{'a' * 64}', tier: pro}}]",
            "keys[0].tier: no tier is named 'pro'; there is 'free'",
        ),
        (
            "jwt: [{issuer: i, audience: a, jwks: k}, {issuer: i, audience: b, jwks: k}]",
            "jwt[1].issuer: two entries have this issuer",
        ),
        ("jwt: [{issuer: i, audience: a, jwks: 'ftp://h/k'}]", "jwt[0].jwks: should be an http(s) URL, or a file"),
        ("prices: {one/n: {input: 1, output: 2}}", "prices.one/n: no target has this model; did you mean 'one/m'?"),
        ("prices: {two/*: {input: 1, output: 2}}", "prices.two/*: no target has this model"),
        ("jwt: [{issuer: i, audience: a, jwks: 'https://[/k'}]", "jwt[0].jwks: should be an http(s) URL, or a file"),
    ],
)  # fmt: skip
def test_what_must_fit_together(write: Write, lines: str, message: str) -> None:
    targets = "targets: [{backend: one, model: m}]"
    said = problems(write(a=BASE, b=lines.replace("TARGETS", targets)))
    assert any(message in problem for problem in said), said


def test_what_may_be_named_freely(write: Write) -> None:
    hashes = "keys: [{id: k, sha256: '" + "a" * 64 + "', tier: gold, models: [x, 'later-*']}]"
    tenants = "tenants: {a: {tier: silver}}\nprices: {m: {input: 1, output: 2}}"
    models = "models: {n: {aliases: [x], fallbacks: [m], targets: [{backend: one, model: m}]}}"
    jwt = "jwt: [{issuer: i, audience: a, jwks: not-there-yet.json}, {issuer: j, audience: a, jwks: 'https://h/k'}]"
    loaded = load_policy(write(a=BASE, b="\n".join((hashes, tenants, models, jwt))), {})
    assert loaded.policy.resolve("x") == "n"


def test_the_default_tier_needs_no_description(write: Write) -> None:
    load_policy(write(a=BASE, b="tiers: {free: {}}\ntenants: {a: {tier: default}}"), {})


def test_a_key_set_that_is_not_there(write: Write) -> None:
    folder = write(a=BASE)
    content = {"jwt": [{"jwks": "keys.json"}]}
    assert [finding.path for finding in errors(Draft(content, folder))] == [("jwt", 0, "jwks")]
    (folder / "keys.json").write_text("{}")
    assert list(errors(Draft(content, folder))) == []


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("redis://r", True),
        ("rediss://user:word@r:6380/12", True),
        ("redis://r/", True),
        ("redis://r:99999", False),
        ("redis://r:port", False),
        ("redis://r:0", False),
        ("redis://r/cache", False),
        ("redis://", False),
    ],
)
def test_the_url_of_a_store(write: Write, url: str, good: bool) -> None:
    if good:
        assert load_policy(write(a=BASE + f"store: {url}"), {}).policy.store == url
    else:
        with pytest.raises(
            PolicyError, match=r"store: (names no host|should end with the number of a database)"
        ):
            load_policy(write(a=BASE + f"store: {url}"), {})
