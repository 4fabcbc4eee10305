from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.__main__ import main
from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.drafts.course import Settings, apart, family_of, logits_by, own_weights
from engine.drafts.kind import draft_kind
from engine.drafts.medusa import train_heads
from engine.drafts.run import train
from engine.drafts.states import StateReader
from engine.drafts.texts import Sequenced
from engine.drafts.train import Example, Recipe, vocabulary
from engine.errors import StartupError
from engine.models.registry import load_model
from engine.options import read_options
from engine.worker.runner import Runner
from tests.engine.heads import write_eagle, write_medusa
from tests.engine.worker.drafting import drive
from tests.engine.worker.test_draft_model import always, prompts

SHORT = Settings(Recipe(40, peak=5e-3, tokens=512), 320, None, 512, 1e9, every=40)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_acceptance_rises(kind: str, tiny_model: Path, tiny_runner: Runner, tmp_path: Path) -> None:
    """On the answers of a model that makes no sense, which can only be learnt by heart."""
    asked = prompts([random.Random(1).randrange(2, 20) for _ in range(12)], seed=11)
    requests = [(prompt, SamplingParams(max_tokens=32, temperature=0)) for prompt in asked]
    plain = drive(tiny_runner, requests)
    texts = [
        Sequenced(prompt + answer, len(prompt)) for prompt, answer in zip(asked, plain.tokens, strict=True)
    ]
    torch.manual_seed(0)
    shares = []
    long = replace(SHORT.recipe, steps=300, peak=2e-2) if kind == "medusa" else SHORT.recipe
    for name, recipe in (("before", replace(SHORT.recipe, steps=1)), ("after", long)):
        lines: list[str] = []
        (tmp_path / name).mkdir()
        learn = train_heads if kind == "medusa" else train
        learn(
            tiny_model, texts, tmp_path / name, replace(SHORT, recipe=recipe, every=100), report=lines.append
        )
        assert "accepted" in lines[-1]
        config = EngineConfig(
            model=tiny_model,
            kv_cache_blocks=200,
            threads=1,
            speculation=kind,
            draft_model=tmp_path / name,
        )
        reported = drive(always(Runner(config)), requests)
        assert reported.tokens == plain.tokens
        shares.append(sum(reported.kept) / reported.checked)
    assert shares[0] < 0.1
    # A Medusa head here is one matrix of 64 by 64.
    assert shares[1] > (0.1 if kind == "medusa" else 0.3)


def test_the_command_answers_prompts_and_goes_on_where_it_ended(tiny_model: Path, tmp_path: Path) -> None:
    texts, out = tmp_path / "texts.jsonl", tmp_path / "head"
    rows = [{"prompt": "bal bel bil"}, {"text": "dal del dil dol dul " * 4}, {"prompt": "fal fel"}]
    texts.write_text("\n".join(json.dumps(row) for row in rows))
    flags = [
        "train-draft", str(tiny_model), "--texts", str(texts), "--out", str(out), "--steps", "2", "--draft-vocab",
        "100", "--answer", "8", "--length", "64", "--width", "32", "--threads", "1",
    ]  # fmt: skip
    assert main(flags) == 0
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert [len(row["tokens"]) - row["first"] for row in answers] == [8, 8]
    first = (out / "model.safetensors").read_bytes()
    assert main(flags) == 0
    assert (out / "model.safetensors").read_bytes() != first
    assert len((out / "answers.jsonl").read_text().splitlines()) == 2
    assert main([*flags, "--width", "48"]) == 1
    options = read_options({"model": str(tiny_model), "draft_model": str(out), "kv_cache_blocks": 40})
    assert options.engine.speculation == "eagle"
    runner = always(Runner(replace(options.engine, threads=1)))
    assert drive(runner, [([5, 6, 7], SamplingParams(max_tokens=9, temperature=0))]).checked > 0


def test_medusa_heads_tell_how_often_they_are_right(tiny_model: Path, tmp_path: Path) -> None:
    texts, out = tmp_path / "texts.jsonl", tmp_path / "heads"
    texts.write_text("\n".join(json.dumps({"text": "dal del dil dol dul " * (4 + i)}) for i in range(4)))
    flags = [
        "train-draft", str(tiny_model), "--texts", str(texts), "--out", str(out), "--kind", "medusa", "--steps", "60",
        "--depth", "2", "--length", "64", "--threads", "1", "--rate", "0.01",
    ]  # fmt: skip
    assert main(flags) == 0
    right = json.loads((out / "config.json").read_text())["medusa_right"]
    assert [len(ranks) for ranks in right] == [8, 8]
    assert all(sum(ranks) <= 1.001 and ranks[0] > 0.5 for ranks in right)
    options = read_options(
        {"model": str(tiny_model), "draft_model": str(out), "kv_cache_blocks": 40, "draft_tree": 5}
    )
    assert options.engine.speculation == "medusa"
    runner = always(Runner(replace(options.engine, threads=1)), 5)
    assert drive(runner, [([5, 6, 7], SamplingParams(max_tokens=9, temperature=0))]).checked > 0


def test_texts_that_cannot_be_used_are_said_so(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.jsonl"
    flags = ["train-draft", str(tiny_model), "--texts", str(texts), "--out", str(tmp_path / "head")]
    for content, complaint in (
        ("", "no rows"),
        ('{"txt": "a"}', "row 1"),
        ("nonsense", "JSON Lines"),
        ('{"text": "a few words"}', "fewer than two"),
    ):
        texts.write_text(content)
        assert main(flags) == 1
        assert complaint in capsys.readouterr().err
    with pytest.raises(StartupError, match="at least 8"):
        main_options = {"steps": 1, "rate": 1.0, "depth": 1, "draft_vocab": 1, "width": None, "length": 2}
        main_options["kind"] = "eagle"
        from engine.drafts.run import run

        run({**main_options, "seconds": 1.0})


def test_what_the_model_says_is_what_its_states_tell(tiny_model: Path, tiny_runner: Runner) -> None:
    (prompt,) = prompts([9], seed=3)
    answer = drive(tiny_runner, [(prompt, SamplingParams(max_tokens=20, temperature=0))]).tokens[0]
    model = load_model(tiny_model, torch.device("cpu"), torch.float32)
    reader = StateReader(model, (0, 1, 2), torch.float32, 64)
    ids = sorted({*answer, *range(2, 300, 3)})
    (states,) = reader.read([Sequenced(prompt + answer, len(prompt))])
    assert states.shape == (29, 4 * 64)
    config = family_of(tiny_model)
    logits = logits_by(config, own_weights(tiny_model, config, model, ids)["lm_head.weight"])(states[:, -64:])
    assert [ids[place] for place in logits[8:-1].argmax(-1).tolist()] == answer


def test_nothing_is_held_out_that_was_learnt_from_fewer_texts() -> None:
    numbers = random.Random(0)
    texts = [Sequenced([numbers.randrange(300) for _ in range(9)], 3) for _ in range(400)]
    examples = [Example(text, torch.empty(0)) for text in texts]
    learnt: set[tuple[int, ...]] = set()
    for count in (150, 260, 400):
        held_out, others = apart(examples[:count])
        assert len(held_out) == 12 and len(others) == count - 12
        assert learnt.isdisjoint(tuple(one.text.tokens) for one in held_out)
        learnt = {tuple(one.text.tokens) for one in others}


def test_the_vocabulary_is_that_of_answers_by_frequency() -> None:
    texts = [Sequenced([9, 9, 9, 5, 5, 7], 3), Sequenced([1, 8, 5], 1)]
    assert vocabulary(texts, 2, 20) == [5, 7]
    assert vocabulary(texts, 6, 20) == [0, 1, 2, 5, 7, 8]
    assert vocabulary(texts, 99, 4 + 6) == list(range(10))


def test_a_drafts_kind_is_told_by_its_config(tiny_model: Path, tmp_path: Path) -> None:
    assert draft_kind(tiny_model) == "draft"
    assert draft_kind(tmp_path) == "draft"
    assert draft_kind(write_eagle(tmp_path / "eagle")) == "eagle"
    assert draft_kind(write_medusa(tmp_path / "medusa")) == "medusa"
