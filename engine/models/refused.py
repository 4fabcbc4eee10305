"""Architectures that are known and not run, with what the engine lacks for them."""

from __future__ import annotations

from collections.abc import Mapping

_LINEAR = "linear attention beside full attention, and with it a cache of another kind for each layer"
_MAMBA = "Mamba layers, and with them a cache of another kind for each layer"
_ENCODER = "an encoder that the decoder attends to"

MISSING: Mapping[str, str] = {
    "DeepseekForCausalLM": "DeepSeek's routing",
    "DeepseekV32ForCausalLM": "a sparse index over its latent attention",
    "GlmMoeDsaForCausalLM": "a sparse index over its latent attention",
    "KimiLinearForCausalLM": f"{_LINEAR} (Kimi delta attention)",
    "LongcatFlashForCausalLM": "two attentions in a layer, and experts that hand their input on",
    "Qwen3NextForCausalLM": f"{_LINEAR} (gated delta net)",
    "Qwen3_5ForCausalLM": f"{_LINEAR} (gated delta net)",
    "Qwen3_5ForConditionalGeneration": f"{_LINEAR} (gated delta net)",
    "Qwen3_5MoeForCausalLM": f"{_LINEAR} (gated delta net)",
    "Qwen3_5MoeForConditionalGeneration": f"{_LINEAR} (gated delta net)",
    "OlmoHybridForCausalLM": f"{_LINEAR} (gated delta net)",
    "MiniMaxForCausalLM": f"{_LINEAR} (lightning attention)",
    "MiniMaxM1ForCausalLM": f"{_LINEAR} (lightning attention)",
    "MiniMaxText01ForCausalLM": f"{_LINEAR} (lightning attention)",
    "RWKV7ForCausalLM": "a recurrent state in place of a KV cache",
    "RecurrentGemmaForCausalLM": "recurrent layers, and with them a cache of another kind for each layer",
    "Lfm2ForCausalLM": "short convolutions, and with them a cache of another kind for each layer",
    "Lfm2MoeForCausalLM": "short convolutions, and with them a cache of another kind for each layer",
    "MambaForCausalLM": "a recurrent state (Mamba) in place of a KV cache",
    "Mamba2ForCausalLM": "a recurrent state (Mamba) in place of a KV cache",
    "FalconMambaForCausalLM": "a recurrent state (Mamba) in place of a KV cache",
    "FalconH1ForCausalLM": _MAMBA,
    "JambaForCausalLM": _MAMBA,
    "BambaForCausalLM": _MAMBA,
    "ZambaForCausalLM": _MAMBA,
    "Zamba2ForCausalLM": _MAMBA,
    "NemotronHForCausalLM": _MAMBA,
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
