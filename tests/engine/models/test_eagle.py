"""The engine's EAGLE-3 head beside the one that is trained, which is plain torch over whole sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.core.plan import Plan, ScheduledRequest
from engine.drafts.head import HeadShape, TrainedHead
from engine.errors import UnsupportedModel
from engine.kv_cache import KVCache
from engine.models.draft_head import head_builder
from engine.models.eagle import EagleHead, tapped
from engine.models.registry import Model, load_model
from engine.worker.batch import BatchBuilder
from tests.engine.heads import eagle_weights, write_eagle
from tests.engine.tiny import SHAPE

CPU = torch.device("cpu")
VOCABULARY = [2, *range(30, 130, 3)]


@pytest.mark.parametrize("renamed", [False, True], ids=["midlayer", "layers.0"])
def test_hidden_states_and_logits_are_those_of_plain_torch(
    tiny_model: Path, tmp_path: Path, renamed: bool
) -> None:
    """Three draft tokens in a row, from each place of a text of 20 tokens."""
    weights = eagle_weights(vocabulary=VOCABULARY)
    trained = TrainedHead(
        HeadShape(64, 96, 4, 2, 16, len(VOCABULARY), SHAPE["rms_norm_eps"], SHAPE["rope_theta"])
    )
    trained.load_state_dict({name: w for name, w in weights.items() if name not in ("d2t", "t2d")})
    if renamed:
        weights = {name.replace("midlayer.", "layers.0."): weight for name, weight in weights.items()}
    model = load_model(tiny_model, CPU, torch.float32)
    head = _loaded(write_eagle(tmp_path / "head", weights=weights), model)
    assert head.vocabulary is not None and head.vocabulary.tolist() == VOCABULARY
    generator = torch.Generator().manual_seed(0)
    count, depth = 20, 3
    tokens = torch.randint(2, 300, (count + depth,), generator=generator)
    states = torch.randn(count, 3 * 64, generator=generator)
    mask = torch.ones(count, count, dtype=torch.bool).tril()[None, None]
    with torch.no_grad():
        expected = trained(model.embed(tokens[1:])[None], states[None], mask, depth)
        logits = [trained.logits(hidden)[0] for hidden in expected]
        # Of some places alone, as training has it of answers.
        late = trained(model.embed(tokens[1:])[None], states[None], mask[:, :, 12:], depth)
    for hidden, whole in zip(late, expected, strict=True):
        torch.testing.assert_close(hidden, whole[:, 12:], atol=1e-5, rtol=1e-5)

    for begin in (1, 7, count):
        step = _stepping(head, tokens)
        # In two chunks.
        if begin > 1:
            step(0, begin // 2, head.fuse(states[: begin // 2]))
        hidden = step(begin // 2, begin, head.fuse(states[begin // 2 : begin]))
        for draft in range(depth):
            torch.testing.assert_close(hidden[-1], expected[draft][0, begin - 1], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(
                head.logits(hidden[-1:])[0], logits[draft][begin - 1], atol=1e-4, rtol=1e-4
            )
            if draft + 1 < depth:
                hidden = step(begin + draft, begin + draft + 1, hidden[-1:])


def _loaded(folder: Path, model: Model) -> EagleHead:
    return EagleHead(folder, model, head_builder(folder, CPU, torch.float32))


def _stepping(head: EagleHead, tokens: torch.Tensor) -> Callable[[int, int, torch.Tensor], torch.Tensor]:
    """Runs the places from one up to another, over a cache of its own."""
    cache = KVCache(head.kv_shape, 4, 16, CPU, torch.float32)
    batches = BatchBuilder(cache, CPU)

    def step(start: int, end: int, hidden: torch.Tensor) -> torch.Tensor:
        following = tokens[start + 1 : end + 1].tolist()
        batch = batches.build(Plan([ScheduledRequest(0, following, start, [2, 0], None, False)]))
        return head.forward(head.embed(batch.tokens), hidden, batch.positions, batch.attention, cache)

    return step


def test_layers_are_named_in_three_ways() -> None:
    assert tapped({}, 24) == (2, 12, 21)
    assert tapped({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 11, 20]}}, 24) == (2, 12, 21)
    assert tapped({"eagle_aux_hidden_state_layer_ids": [2, 12, 21]}, 24) == (2, 12, 21)
    assert tapped({"eagle_aux_hidden_state_layer_ids": [1, 12, 24]}, 24) == (1, 12, 24)
    with pytest.raises(UnsupportedModel, match="has 24"):
        tapped({"eagle_aux_hidden_state_layer_ids": [1, 12, 25]}, 24)


def test_the_layers_settings_may_be_within_the_heads(tiny_model: Path, tmp_path: Path) -> None:
    """As newer checkpoints (speculators) have them; and a head's own embedding, of another width than the model's."""
    model = load_model(tiny_model, CPU, torch.float32)
    wide = {**SHAPE, "hidden_size": 32}
    weights = eagle_weights(wide, vocabulary=VOCABULARY)
    weights["fc.weight"] = torch.randn(32, 3 * 64)
    weights["embed_tokens.weight"] = torch.randn(320, 32)
    folder = write_eagle(
        tmp_path / "head",
        weights=weights,
        transformer_layer_config={**wide, "num_hidden_layers": 1},
        hidden_size=32,
        architectures=["Eagle3Speculator"],
    )
    head = _loaded(folder, model)
    assert head.embed(torch.zeros(2, dtype=torch.int64)).shape == (2, 32)
    assert head.fuse(torch.zeros(5, 3 * 64)).shape == (5, 32)
