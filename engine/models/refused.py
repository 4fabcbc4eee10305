"""Architectures that are known and not run, with what the engine lacks for them."""

from __future__ import annotations

from collections.abc import Mapping

_LINEAR = "another kind of linear attention than Qwen3-Next's"
_ENCODER = "an encoder that the decoder attends to"

MISSING: Mapping[str, str] = {
    "DeepseekForCausalLM": "DeepSeek's routing",
    "DeepseekV32ForCausalLM": "a sparse index over its latent attention",
    "GlmMoeDsaForCausalLM": "a sparse index over its latent attention",
    "KimiLinearForCausalLM": f"{_LINEAR} (Kimi delta attention)",
    "LongcatFlashForCausalLM": "two attentions in a layer, and experts that hand their input on",
    "OlmoHybridForCausalLM": f"{_LINEAR} (a gated delta net with three convolutions)",
    "MiniMaxForCausalLM": f"{_LINEAR} (lightning attention)",
    "MiniMaxM1ForCausalLM": f"{_LINEAR} (lightning attention)",
    "MiniMaxText01ForCausalLM": f"{_LINEAR} (lightning attention)",
    "RWKV7ForCausalLM": "a recurrent state in place of a KV cache",
    "RecurrentGemmaForCausalLM": "recurrent layers (RG-LRU)",
    "MambaForCausalLM": "a recurrent state (Mamba) in place of a KV cache",
    "Mamba2ForCausalLM": "a recurrent state (Mamba) in place of a KV cache",
    "FalconMambaForCausalLM": "a recurrent state (Mamba) in place of a KV cache",
    "FalconH1ForCausalLM": "attention and Mamba side by side in each layer",
    "JambaForCausalLM": "the first kind of Mamba layers",
    "ZambaForCausalLM": "the first kind of Mamba layers, and a block that layers share",
    "Zamba2ForCausalLM": "blocks that layers share, beside Mamba layers",
    "NemotronHForCausalLM": "layers of one part each: Mamba, attention or an MLP",
    "Gemma4ForCausalLM": "heads of another size in some layers, and layers that share a cache",
    "Gemma4ForConditionalGeneration": "heads of another size in some layers, and layers that share a cache",
    "Mistral4ForCausalLM": "experts that the checkpoint has in one tensor",
    "GraniteMoeForCausalLM": "experts that the checkpoint has in one tensor",
    "GraniteMoeSharedForCausalLM": "experts that the checkpoint has in one tensor",
    "OlmoForCausalLM": "layer norms without weights",
    "GPT2LMHeadModel": "learned positions in place of a rotation",
    "OPTForCausalLM": "learned positions in place of a rotation",
    "BloomForCausalLM": "ALiBi in place of a rotation",
    "MptForCausalLM": "ALiBi in place of a rotation",
    "T5ForConditionalGeneration": _ENCODER,
    "BartForConditionalGeneration": _ENCODER,
    "WhisperForConditionalGeneration": _ENCODER,
}
