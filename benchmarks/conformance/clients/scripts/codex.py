"""Codex (https://github.com/openai/codex), which speaks OpenAI's Responses API."""

from __future__ import annotations

from agent import CONTENT, PATIENCE_S, Errand, run

SETTINGS = """\
model = "{model}"
model_provider = "tollgate"

[model_providers.tollgate]
name = "Tollgate"
base_url = "{url}/v1"
env_key = "TOLLGATE_KEY"
wire_api = "responses"
stream_idle_timeout_ms = {patience}
"""


def errand(errand: Errand) -> str:
    last = errand.home / "last_words"
    (errand.home / "config.toml").write_text(
        SETTINGS.format(model=errand.model, url=errand.url, patience=int(PATIENCE_S * 1000))
    )
    errand.start(
        *("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        *("--output-last-message", str(last)),
        errand.words("exec_command", cmd=f"echo {CONTENT} > {errand.file.name}"),
        CODEX_HOME=str(errand.home),
        TOLLGATE_KEY=errand.key,
    )
    return last.read_text()


run("@openai/codex", errand)
