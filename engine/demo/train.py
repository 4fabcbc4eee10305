"""Trains the demo model and its draft: ``python -m engine.demo.train``. One seed fixes text, order and weights."""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn import functional

from engine.demo import corpus, tokens
from engine.demo.llama import Llama, Shape

HERE = Path(__file__).parent
VOCAB = 2048
TARGET = Shape(vocab=VOCAB, hidden=256, layers=4, heads=4, kv_heads=2, intermediate=704)
DRAFT = Shape(vocab=VOCAB, hidden=128, layers=2, heads=2, kv_heads=1, intermediate=352)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How long and how fast to learn. One step sees ``rows`` sequences of ``length`` tokens."""

    steps: int
    peak: float
    rows: int = 16
    length: int = 256
    warmup: int = 200
    weight_decay: float = 0.05


def texts(seed: int, count: int) -> Iterator[str]:
    """What the tokenizer is trained on."""
    for what, _ in zip(corpus.stream(seed), range(count), strict=False):
        if isinstance(what, str):
            yield what
        else:
            yield from (text for turn in what.turns for text in turn)


def batches(
    encoder: tokens.Encoder, recipe: Recipe, source: Iterator[corpus.Conversation | str]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Token ids [rows, length + 1] and loss weights [rows, length]: conversations packed one after another.

    The end of one that began in another row weighs nothing: what it follows from is not to be seen.
    """
    ids: list[int] = []
    weights: list[float] = []
    need = recipe.rows * (recipe.length + 1)
    while True:
        while len(ids) < need:
            more_ids, more_weights = encoder.encode(next(source))
            ids += more_ids
            weights += more_weights
        shape = (recipe.rows, recipe.length + 1)
        rows = torch.tensor(ids[:need]).view(shape)
        begun = (rows == encoder.ids[tokens.BOS]).cumsum(1) > 0
        yield rows, (torch.tensor(weights[:need]).view(shape) * begun)[:, 1:]
        del ids[:need], weights[:need]


def rate(step: int, recipe: Recipe) -> float:
    """The learning rate: a linear warm-up, then a cosine down to a hundredth."""
    if step < recipe.warmup:
        return recipe.peak * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.peak * (0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2)


def loss_of(
    model: Llama, forward: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Weighted mean negative log-likelihood, in nats a token. ``forward`` is the model, compiled or not."""
    counted = weights > 0
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.logits(forward(ids[:, :-1])[counted])
    losses = functional.cross_entropy(logits.float(), ids[:, 1:][counted], reduction="none")
    return (losses * weights[counted]).sum() / weights[counted].sum()


def learn(
    shape: Shape,
    recipe: Recipe,
    tokenizer: Tokenizer,
    seed: int,
    *,
    folder: Path,
    report: int = 25,
    fuse: bool = False,
    start_from: Llama | None = None,
    source: Callable[[int], Iterator[corpus.Conversation | str]] = corpus.stream,
) -> Llama:
    """Train one model, from nothing or from another's weights. What has been learned is saved now and then, so that
    a broken run leaves some.

    ``fuse`` compiles the model, which needs a C++ compiler and more than doubles the speed.
    """
    torch.manual_seed(seed)
    model = start_from or Llama(shape)
    forward = torch.compile(model) if fuse else model
    decayed = [weight for weight in model.parameters() if weight.dim() == 2]
    others = [weight for weight in model.parameters() if weight.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        fused=True,
    )
    start, mean = time.monotonic(), 0.0
    drawn = batches(tokens.Encoder(tokenizer), recipe, source(seed + 1))
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, recipe)
        loss = loss_of(model, forward, *next(drawn))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean += (loss.item() - mean) / min(step + 1, report)
        if (step + 1) % report == 0:
            seconds = time.monotonic() - start
            seen = (step + 1) * recipe.rows * recipe.length
            print(
                f"step {step + 1:6}  loss {mean:.4f}  {seen / seconds:7.0f} tokens/s  {seconds / 60:5.1f} min",
                flush=True,
            )
            save(model, tokenizer, folder)
    save(model, tokenizer, folder)
    return model


def save(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """In Hugging Face's layout, weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = model.shape
    weights = {
        name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ids = tokens.Encoder(tokenizer).ids
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "max_position_embeddings": shape.positions,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": ids[tokens.BOS],
        "eos_token_id": ids[tokens.END],
        "pad_token_id": ids[tokens.PAD],
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {
        "bos_token_id": ids[tokens.BOS],
        "eos_token_id": ids[tokens.END],
        "pad_token_id": ids[tokens.PAD],
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tokens.save(tokenizer, folder)


def load(folder: Path) -> tuple[Llama, Tokenizer]:
    """A model as it is stored, widened to float32, and its tokenizer."""
    config = json.loads((folder / "config.json").read_text())
    model = Llama(
        Shape(
            vocab=config["vocab_size"],
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            intermediate=config["intermediate_size"],
            head_dim=config["head_dim"],
            positions=config["max_position_embeddings"],
            theta=config["rope_theta"],
            eps=config["rms_norm_eps"],
        )
    )
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def keep_memory() -> None:
    """Have glibc's malloc keep what it frees. Giving activations back to the kernel every step costs most of the time
    on virtual machines, where a page fault is dear: 4 to 10 times, measured.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
        libc.mallopt(m_top_pad, 2**28)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=HERE, help="the folder in which model/ and draft/ are written"
    )
    parser.add_argument("--steps", type=int, default=5000, help="steps of the target model")
    parser.add_argument("--draft-steps", type=int, default=3000, help="steps of the draft model")
    parser.add_argument(
        "--peak", type=float, default=2.5e-3, help="highest learning rate of the target model"
    )
    parser.add_argument(
        "--tool-steps",
        type=int,
        default=0,
        help="further steps that teach tool calls; the committed draft had none",
    )
    parser.add_argument("--tool-peak", type=float, default=1.5e-3, help="highest learning rate of those")
    parser.add_argument(
        "--second-stage", action="store_true", help="begin with the tools, from the weights that --out has"
    )
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="do without a C++ compiler"
    )
    options = parser.parse_args()
    keep_memory()
    if options.second_stage:
        tokenizer = load(options.out / "model")[1]
    else:
        tokenizer = tokens.train(texts(options.seed, 60_000), VOCAB)
    tools = Recipe(steps=options.tool_steps, peak=options.tool_peak, rows=8, length=512, warmup=40)
    for name, shape, recipe in (
        ("model", TARGET, Recipe(steps=options.steps, peak=options.peak)),
        ("draft", DRAFT, Recipe(steps=options.draft_steps, peak=4e-3)),
    ):
        folder = options.out / name
        if recipe.steps and not options.second_stage:
            learn(shape, recipe, tokenizer, options.seed, folder=folder, fuse=options.compile)
        if recipe.steps and tools.steps:
            learn(
                shape,
                tools,
                tokenizer,
                options.seed,
                folder=folder,
                fuse=options.compile,
                start_from=load(folder)[0].train(),
                source=corpus.tool_stream,
            )


if __name__ == "__main__":
    main()
