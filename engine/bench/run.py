"""Runs models of known shapes with random weights, one process for each engine; rows are written as they complete."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import torch

from engine.bench.child import Child, ChildEnded
from engine.bench.rows import Row, as_json, cells, markdown, measure
from engine.bench.serving import seconds_to_serve
from engine.bench.shapes import SHAPES, prompt, tiny, weight_bytes, write_folder
from engine.errors import StartupError
from engine.worker.device import pick_device
from kernels.bench.journal import Journal, fingerprint

RIVALS = ("vllm", "transformers")
SERVE = "engine serve, until it answers"
_START = 240.0
"""Seconds for a process's start, kernels' compilation included."""
_ROW = 120.0
"""Seconds for a run."""


@dataclass(frozen=True, slots=True)
class Options:
    folder: Path
    device: str = "auto"
    models: Sequence[str] = tuple(SHAPES)
    batches: Sequence[int] = (1, 8, 64, 256)
    prompt: int = 256
    """Tokens."""
    answer: int = 128
    """Tokens."""
    repeats: int = 2
    rivals: Sequence[str] = RIVALS
    variants: Sequence[str] = ("eager", "int4", "int8", "fp8")
    layers: int | None = None
    tiny: bool = False
    deadline: float = float("inf")
    """``time.time()`` after which nothing is started."""
    copy_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Group:
    """The measurements of one process."""

    model: str
    way: str
    batches: Sequence[int]
    changes: dict[str, Any] = field(default_factory=dict)
    """Changed settings of the engine."""
    rival: str = ""


def groups(options: Options) -> list[Group]:
    """The engine on all models first, then other engines, then variants of the engine's settings."""
    found = [Group(model, "engine", options.batches) for model in options.models]
    found += [
        Group(model, name, options.batches, rival=name)
        for name in options.rivals
        for model in options.models
        if importlib.util.find_spec(name) is not None
    ]
    few = [batch for batch in options.batches if batch <= 8] or list(options.batches[:1])
    for name in options.variants:
        changes: dict[str, Any] = {"cuda_graphs": False} if name == "eager" else {"quantization": name}
        found += [Group(model, f"engine, {name}", few, changes) for model in options.models]
    return found


class Bench:
    """``on_row`` is called with each row as it completes."""

    def __init__(self, options: Options, journal: Journal, on_row: Callable[[Row], None]) -> None:
        self.options = options
        self.rows: dict[tuple[str, str, int], Row] = {}
        self._journal, self._on_row = journal, on_row

    def run(self) -> None:
        for group in groups(self.options):
            self._group(group)
        if not self.options.tiny:
            for model in self.options.models:
                self._serve(model)

    def _group(self, group: Group) -> None:
        left = [batch for batch in group.batches if not self._known(group.model, group.way, batch)]
        while left and time.time() < self.options.deadline:
            try:
                self._measure(group, left)
            except (ChildEnded, TimeoutExpired, OSError, RuntimeError) as error:
                # The row in progress is lost; the rest continues in a new process.
                if left:
                    self._take(Row(group.model, group.way, left.pop(0), fault=_text(error)), retry=True)

    def _measure(self, group: Group, left: list[int]) -> None:
        """Removes batches from ``left`` as they complete."""
        options, shape = self.options, self._shape(group.model)
        self._begin(group, left[0])
        folder = self._weights(group.model)
        child = Child(*self._command(group, folder), limit=min(_START, self._seconds() + 60))
        try:
            limit = None
            if not group.rival:
                speed = child.ask(_ROW, do="bandwidth", bytes=options.copy_bytes)
                limit = speed / weight_bytes(folder, shape) if isinstance(speed, float) else None
            while left and time.time() < options.deadline:
                batch = left[0]
                self._begin(group, batch)
                row = self._row(child, group, batch)
                if limit and row.itl and row.itl[0] and not group.changes.get("quantization"):
                    # Not per_token, which a run too short to be told from its first token does not have.
                    row = replace(row, of_limit=1 / row.itl[0] / limit)
                left.pop(0)
                self._take(row)
        except BaseException:
            child.kill()
            raise
        child.close()

    def _row(self, child: Child, group: Group, batch: int) -> Row:
        options, vocab = self.options, self._shape(group.model)["vocab_size"]
        prompts = [prompt(options.prompt, vocab, seed) for seed in range(batch)]
        about = {"model": group.model, "way": group.way, "batch": batch}

        def ask(tokens: int) -> dict[str, Any]:
            answer = child.ask(min(_ROW, self._seconds() + 60), do="generate", prompts=prompts, tokens=tokens)
            if "error" in answer:
                raise RuntimeError(answer["error"])
            return dict(answer)

        # A warm-up: set-up for this batch size and length is not measured.
        ask(options.answer)
        first = statistics.median(ask(1)["seconds"] for _ in range(options.repeats))
        runs = sorted((ask(options.answer) for _ in range(options.repeats)), key=lambda one: one["seconds"])
        return measure(about, batch, options.answer, first, runs[(len(runs) - 1) // 2])

    def _serve(self, model: str) -> None:
        if self._known(model, SERVE, 0) or time.time() > self.options.deadline:
            return
        self._journal.begin(model, SERVE, "run")
        try:
            # Earlier runs have filled the caches of files and of compiled kernels.
            seconds = seconds_to_serve(self._weights(model), self.options.device, self._context())
            self._take(Row(model, f"{SERVE}: {seconds:.1f} s", 0))
        except (RuntimeError, OSError) as error:
            self._take(Row(model, SERVE, 0, fault=_text(error)), retry=True)

    def _begin(self, group: Group, batch: int) -> None:
        self._journal.begin(group.model, _name(group.way, batch), "run")

    def _known(self, model: str, way: str, batch: int) -> bool:
        """Whether an earlier run has it."""
        name = _name(way, batch)
        kept = self._journal.get(model, name)
        if not kept or not self._journal.done(model, name, "run"):
            return False
        self.rows[model, way, batch] = Row(**kept)
        return True

    def _take(self, row: Row, *, retry: bool = False) -> None:
        """``retry``: another run may try it again."""
        way = SERVE if row.way.startswith(SERVE) else row.way
        self.rows[row.model, way, row.batch] = row
        self._journal.take(row.model, _name(way, row.batch), "run", None if retry else row)
        self._on_row(row)

    def _command(self, group: Group, folder: Path) -> list[str]:
        request = {
            "folder": str(folder),
            "device": self.options.device,
            "context": self._context(),
            "streams": max(self.options.batches),
            "options": group.changes,
        }
        if group.rival:
            return [sys.executable, "-m", "engine.bench.rival_process", group.rival, json.dumps(request)]
        return [sys.executable, "-m", "engine.bench.engine_process", json.dumps(request)]

    def _context(self) -> int:
        return self.options.prompt + self.options.answer + 16

    def _shape(self, model: str) -> dict[str, Any]:
        shape = tiny(SHAPES[model]) if self.options.tiny else SHAPES[model]
        return {**shape, "max_position_embeddings": max(shape["max_position_embeddings"], self._context())}

    def _weights(self, model: str) -> Path:
        shape = self._shape(model)
        layers = self.options.layers or shape["num_hidden_layers"]
        folder = self.options.folder / f"{model}-{layers}{'-tiny' if self.options.tiny else ''}"
        return write_folder(folder, shape, layers, str(pick_device(self.options.device)))

    def _seconds(self) -> float:
        return max(0.0, min(self.options.deadline - time.time(), 3600.0))


def _name(way: str, batch: int) -> str:
    return f"{way}, {batch} at once"


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


def run(given: dict[str, Any]) -> int:
    """The command. 1 where a row has failed. Raises ``StartupError``."""
    device = pick_device(given["device"])
    if given["dry_run"] and device.type != "cpu":
        raise StartupError("--dry-run is for a CPU: give --device cpu with it.")
    options = Options(
        folder=given["folder"] or Path(tempfile.mkdtemp(prefix="tollgate-bench-")),
        device=given["device"],
        models=given["models"],
        batches=given["batches"] or ((1, 3) if given["dry_run"] else (1, 8, 64, 256)),
        prompt=given["prompt"] or (17 if given["dry_run"] else 256),
        answer=given["answer"] or (5 if given["dry_run"] else 128),
        repeats=1 if given["dry_run"] else 2,
        rivals=[] if given["rivals"] == ["none"] else given["rivals"],
        variants=[] if given["variants"] == ["none"] else given["variants"],
        layers=given["layers"],
        tiny=given["dry_run"],
        deadline=time.time() + given["seconds"],
        copy_bytes=1 << 16 if given["dry_run"] else 1 << 30,
    )
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    root = Path(__file__).parents[1]
    about = {
        "chip": chip,
        "torch": torch.__version__,
        "prompt": str(options.prompt),
        "answer": str(options.answer),
        "layers": str(options.layers),
        "code": fingerprint(root) + fingerprint(root.parent / "kernels"),
    }
    heading = f"{chip}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
    heading += f", prompts of {options.prompt} tokens, answers of {options.answer}"
    _print(heading)
    bench: Bench

    def on_row(row: Row) -> None:
        _print("  ".join(filter(None, cells(row, list(bench.rows.values())))))
        if given["markdown"]:
            given["markdown"].write_text(markdown(list(bench.rows.values()), heading))

    journal = Journal(given["json"], about, render=lambda: as_json(list(bench.rows.values()), about))
    bench = Bench(options, journal, on_row)
    if journal.steps:
        _print(f"{journal.steps} rows are done, by {given['json']}")
    bench.run()
    rows = list(bench.rows.values())
    journal.write()
    if given["markdown"]:
        given["markdown"].write_text(markdown(rows, heading))
    _print(markdown(rows, ""))
    return int(any(row.fault for row in rows))


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
