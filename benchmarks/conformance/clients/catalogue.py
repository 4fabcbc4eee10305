"""The clients, and where their packages are: those of Node and of the frameworks in folders of their own.

They are installed by ``python -m benchmarks.conformance.clients install``, under ``build/conformance/clients``, in the
versions that stand here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.conformance import tools

SCRIPTS = Path(__file__).parent / "scripts"
FOLDER = tools.FOLDER / "clients"
OLDEST_NODE = 20


@dataclass(frozen=True)
class Client:
    name: str
    script: str
    packages: tuple[str, ...]
    """What is installed, as pip or npm names it; empty for what the tests' own environment has."""
    is_agent: bool = False
    """A program, which npm installs and a script in Python sends on an errand (``scripts/agent.py``)."""

    @property
    def is_nodes(self) -> bool:
        return self.is_agent or self.script.endswith(".mjs")

    @property
    def home(self) -> Path:
        return FOLDER / self.script.partition(".")[0]

    def missing(self) -> str:
        """Why it cannot be run here; empty if it can."""
        if self.is_nodes and _node() is None:
            return (
                f"Node {OLDEST_NODE} or later is not installed (Debian, Ubuntu: apt-get install nodejs npm)"
            )
        if self.packages and self._installed() != "\n".join(self.packages):
            return f"{self.packages[0]} is not installed: make clients"
        return ""

    def command(self) -> list[str]:
        """Raises ``tools.Missing``."""
        if why := self.missing():
            raise tools.Missing(why)
        if self.is_agent:
            return [sys.executable, str(SCRIPTS / self.script)]
        if self.is_nodes:
            # A script finds its packages beside itself.
            for script in SCRIPTS.glob("*.mjs"):
                shutil.copy(script, self.home / script.name)
            return [str(_node()), str(self.home / self.script)]
        python = self.home / "bin" / "python" if self.packages else Path(sys.executable)
        return [str(python), str(SCRIPTS / self.script)]

    def install(self) -> None:
        """Raises ``tools.Missing`` where the package index cannot be reached."""
        if not self.packages or self._installed() == "\n".join(self.packages):
            return
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        if self.is_nodes:
            npm = shutil.which("npm")
            if npm is None or _node() is None:
                raise tools.Missing(
                    f"Node {OLDEST_NODE} or later and npm are needed (apt-get install nodejs npm)"
                )
            quiet = ("--silent", "--no-audit", "--no-fund")
            tools.run([npm, "install", *quiet, "--prefix", str(self.home), *self.packages], self.name)
        else:
            tools.run([sys.executable, "-m", "venv", str(self.home)], self.name)
            python = str(self.home / "bin" / "python")
            tools.run([python, "-m", "pip", "install", "--quiet", "--no-input", *self.packages], self.name)
        (self.home / "installed").write_text("\n".join(self.packages))

    def _installed(self) -> str:
        try:
            return (self.home / "installed").read_text()
        except OSError:
            return ""


def _node() -> str | None:
    node = shutil.which("node")
    if node is None:
        return None
    told = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    return node if int(told.strip().lstrip("v").partition(".")[0] or 0) >= OLDEST_NODE else None


CLIENTS = (
    Client("OpenAI Python", "openai_python.py", ()),
    Client("OpenAI Node", "openai_node.mjs", ("openai@7.57.0", "zod@4.6.7")),
    Client("Anthropic Python", "anthropic_python.py", ()),
    Client("Anthropic TypeScript", "anthropic_node.mjs", ("@anthropic-ai/sdk@1.12.0", "zod@4.6.7")),
    Client("Google Python", "google_python.py", ("google-genai==3.4.0",)),
    Client("Google TypeScript", "google_node.mjs", ("@google/genai@2.32.0",)),
    Client(
        "Vercel AI SDK",
        "ai_sdk.mjs",
        ("ai@7.0.173", "@ai-sdk/openai@4.0.118", "@ai-sdk/anthropic@4.0.105", "zod@4.6.7"),
    ),
    Client("LangChain", "langchain_python.py", ("langchain-openai==1.7.3", "langchain-anthropic==1.7.7")),
    Client(
        "LlamaIndex",
        "llamaindex_python.py",
        (
            "llama-index-llms-openai==0.8.3",
            "llama-index-llms-openai-like==0.8.1",
            "llama-index-llms-anthropic==0.12.3",
            "llama-index-embeddings-openai==0.7.0",
            "anthropic==0.125.0",  # it fails with 2.12, and does not say so in its requirements
        ),
    ),
    Client("Codex", "codex.py", ("@openai/codex@0.169.0",), is_agent=True),
    Client("Claude Code", "claude_code.py", ("@anthropic-ai/claude-code@2.1.197",), is_agent=True),
    Client("Gemini CLI", "gemini_cli.py", ("@google/gemini-cli@0.61.0",), is_agent=True),
)
