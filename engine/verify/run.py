"""Runs the same requests on the engine and on plain torch, feature by feature, in processes that may crash."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from engine.verify.compare import TOLERANCES, Comparison, compare
from engine.verify.features import FEATURES, Feature
from engine.verify.outputs import EngineOutput, VerifySetup, run_feature
from engine.worker.device import pick_device, pick_dtype
from kernels.bench.pool import Lost, Pool


@dataclass(frozen=True, slots=True)
class FeatureResult:
    feature: str
    verdict: str
    """``ok``, ``WRONG``, ``not here``, or ``not tried`` where time ran out."""
    reason: str
    off: str
    """The flag that switches the feature off."""
    seconds: float = 0.0

    @property
    def wrong(self) -> bool:
        return self.verdict == "WRONG"


def verify(
    setup: VerifySetup,
    features: Sequence[Feature] = FEATURES,
    *,
    jobs: int = 1,
    seconds: float = 280.0,
    on_result: Callable[[FeatureResult], None] = lambda row: None,
) -> list[FeatureResult]:
    """``jobs``: concurrent processes. Nothing is started after ``seconds``. ``on_result`` is called with each
    result."""
    deadline = time.time() + seconds
    device = pick_device(setup.device)
    by_name = {feature.name: feature for feature in features}
    rows: dict[str, FeatureResult] = {}
    outputs: dict[str, EngineOutput | Lost] = {}
    started: dict[str, float] = {}

    def begin(name: str) -> None:
        started[name] = time.time()

    def finish(name: str, verdict: str, reason: str) -> None:
        feature = by_name[name]
        rows[name] = FeatureResult(
            name, verdict, reason, feature.off, time.time() - started.get(name, time.time())
        )
        on_result(rows[name])

    def judge(name: str, found: EngineOutput | Lost) -> None:
        feature, expected = by_name[name], outputs[_key(by_name[name])]
        for side, one in (("", found), ("what it is compared with: ", expected)):
            if isinstance(one, Lost):
                return finish(name, "not tried" if one.skipped else "WRONG", f"{side}{one.reason}")
            if one.refused:
                return finish(name, "not here", f"{side}{one.refused}")
        if feature.seen and not found.counts[feature.seen]:
            return finish(name, "not here", f"it did not happen: {feature.seen} is 0")
        dtype = feature.both.get("dtype", setup.dtype)
        dtype = str(pick_dtype(dtype, setup.model, device)).removeprefix("torch.")
        verdict: Comparison = compare(expected, found, max(TOLERANCES[dtype], feature.tolerance))
        finish(name, "ok" if verdict.ok else "WRONG", verdict.reason)

    here = [feature for feature in features if feature.only in ("", device.type)]
    for feature in features:
        if feature not in here:
            finish(feature.name, "not here", f"only on {feature.only}")
    # Several features share a reference.
    references = {_key(feature): feature.name for feature in here}
    with _kernels("reference"):
        Pool(
            _run,
            (setup, by_name, True),
            jobs,
            deadline,
            lambda name: None,
            lambda name, one: outputs.__setitem__(_key(by_name[name]), one),
        ).run(list(references.values()))
    Pool(_run, (setup, by_name, False), jobs, deadline, begin, judge).run([feature.name for feature in here])
    return [rows[feature.name] for feature in features]


def _run(setup: VerifySetup, features: Mapping[str, Feature], compared: bool, name: str) -> tuple[Any, bool]:
    """Runs one feature; an error is its result. On a GPU the process is then replaced, as its device may be lost."""
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    try:
        return run_feature(setup, features, compared, name)
    except Exception as error:
        return Lost(f"{type(error).__name__}: {str(error).strip()[:300]}"), not torch.cuda.is_available()


def _key(feature: Feature) -> str:
    return json.dumps([dict(feature.both), feature.grammar], sort_keys=True)


@contextmanager
def _kernels(wanted: str) -> Any:
    """Sets ``TOLLGATE_KERNELS`` for processes started meanwhile."""
    before = os.environ.get("TOLLGATE_KERNELS")
    os.environ["TOLLGATE_KERNELS"] = wanted
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOLLGATE_KERNELS"]
        else:
            os.environ["TOLLGATE_KERNELS"] = before


HEADS = ("feature", "verdict", "seconds", "switch it off", "what was seen")


def line(row: FeatureResult) -> tuple[str, ...]:
    off = row.off if row.wrong else ""
    return row.feature, row.verdict, f"{row.seconds:.0f}", off, row.reason


def markdown(rows: Sequence[FeatureResult], about: str) -> str:
    lines = [about, "", f"| {' | '.join(HEADS)} |", "|---|---|--:|---|---|"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in line(row))} |" for row in rows]
    return "\n".join([*lines, "", summary(rows)]) + "\n"


def summary(rows: Sequence[FeatureResult]) -> str:
    wrong = [row for row in rows if row.wrong]
    counts = {
        verdict: sum(row.verdict == verdict for row in rows) for verdict in ("ok", "not here", "not tried")
    }
    results = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    if not wrong:
        return f"{results or 'nothing was tried'}."
    flags = " ".join(dict.fromkeys(row.off for row in wrong))
    return f"WRONG: {', '.join(row.feature for row in wrong)} ({results}). Serve with: {flags}"


def to_json(rows: Sequence[FeatureResult], about: str) -> str:
    return json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"


def run(options: dict[str, Any]) -> int:
    """The command. 1 where something is wrong. Raises ``StartupError``."""
    from engine.weights.source import DEMO, DEMO_DRAFT, locate

    model = locate(options["model"])
    draft = locate(DEMO_DRAFT) if options["model"] == DEMO else None
    setup = VerifySetup(Path(model), options["device"], options["dtype"], options["tokens"], draft)
    device = pick_device(options["device"])
    features = [
        feature
        for feature in FEATURES
        if not options["only"] or any(word in feature.name for word in options["only"])
    ]
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    about = f"{chip}, torch {torch.__version__}, {options['model']}, {time.strftime('%Y-%m-%d')}"
    _print(about)
    results: list[FeatureResult] = []

    def on_result(row: FeatureResult) -> None:
        results.append(row)
        _print("  ".join(filter(None, (row.feature.ljust(28), row.verdict.ljust(9), row.reason))))
        if options["json"]:
            options["json"].write_text(to_json(results, about))
        if options["markdown"]:
            options["markdown"].write_text(markdown(results, about))

    jobs = options["jobs"] or max(1, min(6, len(os.sched_getaffinity(0)) // 2))
    rows = verify(setup, features, jobs=jobs, seconds=options["seconds"], on_result=on_result)
    _print("")
    for row in rows:
        if row.wrong:
            _print(f"{row.feature} is wrong here; switch it off: {row.off}")
    _print(summary(rows))
    if options["json"]:
        options["json"].write_text(to_json(rows, about))
    if options["markdown"]:
        options["markdown"].write_text(markdown(rows, about))
    return int(any(row.wrong for row in rows))


def _print(text: str) -> None:
    import sys

    sys.stdout.write(text + "\n")
    sys.stdout.flush()
