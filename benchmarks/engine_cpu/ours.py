"""The engine's side: scheduler and runner as the loop process has them, without HTTP. Answers lines of JSON."""

from __future__ import annotations

import json
import sys

from engine.config import EngineConfig
from engine.offline import OfflineEngine
from engine.weights.source import locate


def main() -> None:
    folder, threads, context, quantization = sys.argv[1:5]
    engine = OfflineEngine(
        EngineConfig(
            model=locate(folder),
            threads=int(threads),
            max_model_len=int(context),
            kv_cache_blocks=10 * (-(-int(context) // 16)),
            quantization=None if quantization in ("bf16", "gguf") else quantization,
            dtype="bfloat16",
        )
    )
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "decode":
            answer = engine.decode([asked["prompt"]] * asked.get("streams", 1), asked["tokens"])
        else:
            answer = engine.prefill(asked["prompt"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
