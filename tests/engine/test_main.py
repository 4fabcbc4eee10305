from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from engine.__main__ import main, parser, read_options
from engine.config import STEPS, EngineConfig, ServerConfig
from engine.errors import StartupError


def options(*arguments: str) -> dict[str, object]:
    found = vars(parser().parse_args(["serve", *arguments]))
    del found["run"]
    return found


def test_the_flag_of_the_last_release_is_kept(tiny_model: Path) -> None:
    for flag in ("--max-itl-ratio", "--max-itl-ratio"):
        assert read_options(options("--model", str(tiny_model), flag, "3")).engine.max_itl_ratio == 3


def test_what_is_not_given_has_the_configurations_default(tiny_model: Path) -> None:
    config = read_options(options("--model", str(tiny_model)))
    assert config == ServerConfig(EngineConfig(tiny_model), tiny_model.name)


def test_every_setting_has_a_flag_and_the_flag_an_effect(tiny_model: Path) -> None:
    given = {
        "host": "::1",
        "port": 5,
        "max_body_bytes": 1024,
        "drain_timeout": 1.5,
        "over_context": "refuse",
        "max_string_length": 77,
        "step_timeout": 9.5,
        "write_timeout": 8.5,
        "served_model_name": "m",
        "task": "generate",
        "device": "cpu",
        "dtype": "bfloat16",
        "quantization": "int4",
        "kv_cache_dtype": "int8",
        "weights_cache": "off",
        "threads": 2,
        "max_num_seqs": 7,
        "max_batched_tokens": 99,
        "max_waiting": 3,
        "priority_ageing": 2.5,
        "max_itl_ratio": 3.5,
        "speculation": "ngram",
        "max_drafts": 3,
        "max_adapters": 5,
        "max_cpu_adapters": 9,
        "max_adapter_bytes": 5000,
        "max_adapter_rank": 16,
        "tensor_parallel": 2,
        "expert_parallel": 2,
        "block_size": 32,
        "kv_cache_blocks": 11,
        "max_model_len": 64,
        "pinned_share": 0.5,
        "kernels": "reference",
        "overlap": "off",
        "log_level": "error",
        "otlp_traces_endpoint": "https://collector/v1/traces",
        "otlp_traces_protocol": "grpc",
    }
    flags = [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    config = read_options(options("--model", str(tiny_model), *flags))
    for name, value in given.items():
        holder = config if hasattr(config, name) else config.engine
        assert getattr(holder, name) == value
    settings = {field.name for kind in (EngineConfig, ServerConfig) for field in fields(kind)}
    others = {"adapters", "context_caps", "prefix_caching", "check_integrity", "deterministic", "draft_model"}
    others |= {"draft_quantization", "draft_tree", "pipeline_parallel", "nodes", "nodes_secret"}
    others |= {
        "digests",
        "cuda_graphs",
        "chunked_prefill",
        "preemption",
        "given_model_name",
        "any_model_name",
        "matryoshka",
    }
    others |= {"share_port", "standby_port", "uds", "leave_with_stdin", "sleep_mode"}
    others |= {"adapter_token_file", "adapter_folders", "state_checkpoints"}
    # These do not go with some of the others.
    rest = {"kv_cache_memory", "host_kv_memory", "disk_kv", "disk_kv_size", "disk_kv_unused"}
    roles = {"role", "prefill_from"} | {
        f"handover_{name}" for name in ("address", "secret_file", "timeout", "min_tokens", "transport")
    }
    assert settings - set(given) - others - roles == {"model", "engine", *rest}
    flags = [text for name in rest for text in (f"--{name.replace('_', '-')}", "3000")]
    engine = read_options(options("--model", str(tiny_model), *flags)).engine
    assert [engine.kv_cache_memory, engine.host_kv_memory, engine.disk_kv_size] == [3000] * 3
    assert engine.disk_kv == Path("3000").absolute()
    staged = read_options(options("--model", str(tiny_model), "--pipeline-parallel", "3"))
    assert staged.engine.pipeline_parallel == 3
    sized = read_options(options("--model", str(tiny_model), "--kv-cache-memory", "1MiB"))
    assert sized.engine.kv_cache_memory == 2**20


@pytest.mark.parametrize(
    ("mode", "said"), [(None, "cannot be read"), (0o644, "chmod o="), (0o640, "16 or more")]
)
def test_a_role_is_told_of_its_secret_before_anything_is_loaded(
    tmp_path: Path,
    tiny_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    mode: int | None,
    said: str,
) -> None:
    secret = tmp_path / "secret"
    if mode is not None:
        secret.write_text("short")
        secret.chmod(mode)
    monkeypatch.setattr("engine.server.serve.serve", None)  # nothing is served
    at = ("--handover-address", "tcp://127.0.0.1:0", "--handover-secret-file", str(secret))
    assert main(["serve", "--model", str(tiny_model), "--role", "prefill", *at]) == 1
    assert said in capsys.readouterr().err


def test_a_role_has_its_flags_and_memory_for_blocks_on_their_way(tiny_model: Path) -> None:
    at, secret = ("--handover-address", "tcp://0.0.0.0:8200"), ("--handover-secret-file", "/run/secret")
    flags = (
        "--prefill-from",
        "unix:///a.sock",
        "--prefill-from",
        "tcp://[::1]:5",
        "--handover-min-tokens",
        "7",
    )
    engine = read_options(options("--model", str(tiny_model), "--role", "both", *at, *secret, *flags)).engine
    assert (engine.role, engine.handover_address) == ("both", "tcp://0.0.0.0:8200")
    assert engine.handover_secret_file == Path("/run/secret")
    assert engine.prefill_from == ("unix:///a.sock", "tcp://[::1]:5")
    assert (engine.handover_min_tokens, engine.host_kv_memory) == (7, 2**30)
    timed = ("--role", "decode", "--handover-timeout", "3", "--host-kv-memory", "1MiB")
    engine = read_options(options("--model", str(tiny_model), *timed)).engine
    assert (engine.handover_timeout, engine.host_kv_memory) == (3.0, 2**20)


def test_switches_and_lists_have_flags_of_their_own(tiny_model: Path) -> None:
    flags = (
        "--no-prefix-caching",
        "--check-integrity",
        "--deterministic",
        "--enforce-eager",
        "--no-chunked-prefill",
        "--no-preemption",
        "--matryoshka",
        "--leave-with-stdin",
        "--sleep-mode",
        "--uds=/run/engine.sock",
        "--context-cap",
        "1=4096",
        "--context-cap",
        "0=100",
    )
    server = read_options(options("--model", str(tiny_model), *flags))
    engine = server.engine
    assert (server.uds, server.leave_with_stdin, server.sleep_mode) == (Path("/run/engine.sock"), True, True)
    assert engine.matryoshka
    assert (engine.prefix_caching, engine.check_integrity, engine.deterministic) == (False, True, True)
    assert not (engine.cuda_graphs or engine.chunked_prefill or engine.preemption)
    assert engine.context_caps == ((1, 4096), (0, 100))
    named = read_options(options("--model", str(tiny_model), "--adapter", "a=/x", "--adapter", "b=/y"))
    assert named.engine.adapters == (("a", Path("/x")), ("b", Path("/y")))
    pins = ("--digest", "AB" * 32, "--digest", f"config.json=sha256:{'0' * 64}")
    pinned = read_options(options("--model", str(tiny_model), *pins))
    assert pinned.engine.digests == (("", "ab" * 32), ("config.json", "0" * 64))
    for bad in (("--context-cap", "much"), ("--digest", "abc"), ("--digest", "config.json=")):
        with pytest.raises(SystemExit):
            options("--model", str(tiny_model), *bad)


def test_a_model_with_another_digest_is_refused(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--device=cpu", "--log-level=error", f"--digest={'0' * 64}"]
    assert main(["serve", "--model", str(tiny_model), "--port", "0", *flags]) == 1
    assert "is not the file that --digest pins" in capsys.readouterr().err


def test_a_draft_model_is_used_when_it_is_named(tiny_model: Path) -> None:
    engine = read_options(options("--model", "demo", "--draft-model", "demo")).engine
    assert engine.speculation == "draft"
    assert engine.draft_model is not None and engine.draft_model.name == "draft"
    with pytest.raises(StartupError, match="no folder nowhere"):
        read_options(options("--model", "demo", "--draft-model", "nowhere"))


def test_the_name_is_the_folders_or_what_was_asked_for(tiny_model: Path) -> None:
    assert read_options(options("--model", f"{tiny_model}/")).served_model_name == "tiny"
    assert read_options(options("--model", "demo")).served_model_name == "demo"
    config = read_options(options("--model", str(tiny_model), "--any-model-name"))
    assert (config.given_model_name, config.any_model_name) == (str(tiny_model), True)


def test_help_tells_the_defaults_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    received = " ".join(capsys.readouterr().out.split())
    engine, server = EngineConfig(Path()), ServerConfig(EngineConfig(Path()), "m")
    for flag, default in (
        ("--max-num-seqs", f"{STEPS['cpu'][0]}, on a GPU {STEPS['cuda'][0]}"),
        ("--max-batched-tokens", f"{STEPS['cpu'][1]}, on a GPU {STEPS['cuda'][1]}"),
        ("--max-waiting", engine.max_waiting),
        ("--block-size", engine.block_size),
        ("--port", server.port),
        ("--host", server.host),
        ("--drain-timeout", f"{server.drain_timeout:g}"),
        ("--max-body-bytes", f"{server.max_body_bytes // 2**20}MiB"),
    ):
        start = received.rindex(f"{flag} ")
        assert f"(default: {default})" in received[start : start + 160]


def test_nonsense_is_told_in_a_line(capsys: pytest.CaptureFixture[str], tiny_model: Path) -> None:
    assert main(["serve", "--model", "nowhere"]) == 1
    assert capsys.readouterr().err.startswith("error: There is no folder nowhere")
    assert main(["serve", "--model", str(tiny_model), "--max-num-seqs", "0"]) == 1
    assert "--max-num-seqs must be at least 1" in capsys.readouterr().err
    for flags, received in (
        (("--max-drafts", "0"), "--max-drafts must be at least 1"),
        (
            ("--draft-model", "demo", "--speculation", "ngram"),
            "--draft-model is for --speculation draft",
        ),
        (("--context-cap", "0=1"), "--context-cap must allow a prompt"),
        (("--max-itl-ratio", "0.5"), "--max-itl-ratio must be 0 or more than 1"),
    ):
        assert main(["serve", "--model", "demo", *flags]) == 1
        assert received in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", "--model", "demo", "--kv-cache-memory", "much"])
    assert "'much' is not a size" in capsys.readouterr().err


def test_another_package_called_kernels_is_told_from_ours(tmp_path: Path) -> None:
    """Hugging Face's has the same name, and lies in the same place."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text('__version__ = "0.19.0"\n')
    (tmp_path / "engine").symlink_to(Path(__file__).parents[2] / "engine")
    command = [sys.executable, "-m", "engine", "serve", "--model", "demo", "--check"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "not the engine's own" in done.stderr and "pip uninstall kernels" in done.stderr
