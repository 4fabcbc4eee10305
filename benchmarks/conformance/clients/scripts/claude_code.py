"""Claude Code (https://code.claude.com), which speaks Anthropic's Messages API."""

from __future__ import annotations

from agent import CONTENT, PATIENCE_S, Errand, run


def errand(errand: Errand) -> str:
    return errand.start(
        *("claude", "--print", "--model", errand.model, "--permission-mode", "acceptEdits"),
        errand.words("Write", file_path=str(errand.file), content=CONTENT),
        ANTHROPIC_BASE_URL=errand.url,
        ANTHROPIC_API_KEY=errand.key,
        # Else it asks its maker for updates, settings and the like.
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        API_TIMEOUT_MS=str(int(PATIENCE_S * 1000)),
    )


run("@anthropic-ai/claude-code", errand)
