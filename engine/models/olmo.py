"""OLMo 2 (https://arxiv.org/abs/2501.00656), OLMo 3 (https://arxiv.org/abs/2512.13961) and EXAONE 4
(https://arxiv.org/abs/2507.11407).

Not the inputs of attention and MLP are normalised, but their outputs; queries and keys are, too: in OLMo over all
heads, in EXAONE head by head. OLMo 3 and EXAONE 4 have layers with a sliding window; the others have a rotation that is
scaled to long contexts (OLMo 3), or none (EXAONE 4).
"""

from __future__ import annotations

from engine.models.config import (
    POST_NORM,
    DecoderConfig,
    HeadNorms,
    Raw,
    count_layers,
    integer,
    layer_types,
    read,
    read_rope,
    typed_windows,
    window_of,
)


def olmo2(raw: Raw) -> DecoderConfig:
    bias = bool(raw.get("attention_bias"))
    raw = {"rms_norm_eps": 1e-5, **raw}
    return read(raw, qkv_bias=bias, out_bias=bias, norms=POST_NORM, head_norm=HeadNorms(joint=True))


def olmo3(raw: Raw) -> DecoderConfig:
    raw = {"rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "sliding_window": 4096, **raw}
    bias = bool(raw.get("attention_bias"))
    dim = integer(raw, "hidden_size") // integer(raw, "num_attention_heads")
    # In older files rope_scaling applies to the layers with full attention.
    full = read_rope(raw, dim, "full_attention")
    sliding = read_rope(
        raw if raw.get("rope_parameters") else {**raw, "rope_scaling": None}, dim, "sliding_attention"
    )
    kinds = layer_types(raw, periodic(raw, 4))
    return read(
        raw,
        qkv_bias=bias,
        out_bias=bias,
        norms=POST_NORM,
        head_norm=HeadNorms(joint=True),
        windows=typed_windows(raw, kinds),
        ropes=(full, sliding),
        layer_ropes=tuple(int(kind == "sliding_attention") for kind in kinds),
    )


def exaone4(raw: Raw) -> DecoderConfig:
    raw = {"rms_norm_eps": 1e-5, "sliding_window": 4096, **raw}
    if window_of(raw) is None:
        return read(raw, norms=POST_NORM, head_norm=HeadNorms())
    # A number of layers, or their kinds: LLLG.
    period = raw.get("sliding_window_pattern") or 4
    windows = typed_windows(raw, periodic(raw, len(period) if isinstance(period, str) else int(period)))
    return read(
        raw,
        norms=POST_NORM,
        head_norm=HeadNorms(),
        windows=windows,
        layer_ropes=tuple(None if window is None else 0 for window in windows),
    )


def periodic(raw: Raw, period: int) -> list[str]:
    """The last of each ``period`` layers has full attention, and the others a sliding window."""
    return [
        "sliding_attention" if (layer + 1) % period else "full_attention"
        for layer in range(count_layers(raw))
    ]
