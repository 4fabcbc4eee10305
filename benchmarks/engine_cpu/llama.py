"""llama.cpp's side: run by a Python that has llama-cpp-python, and by nothing else of this project.

``llama.py quantize SOURCE TARGET KIND``, or ``llama.py serve FILE THREADS CONTEXT``: JSON lines in and out.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

import llama_cpp as llama

KINDS = {"Q4_0": llama.LLAMA_FTYPE_MOSTLY_Q4_0, "Q8_0": llama.LLAMA_FTYPE_MOSTLY_Q8_0}


def quantize(source: str, target: str, kind: str) -> None:
    params = llama.llama_model_quantize_default_params()
    params.ftype = KINDS[kind]
    if llama.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp could not quantize {source}")


class Model:
    def __init__(self, path: str, threads: int, context: int) -> None:
        self._model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp could not load {path}")
        self._contexts = {}
        for flash in (True, False):
            params = llama.llama_context_default_params()
            params.n_ctx = context
            params.n_batch = params.n_ubatch = 512
            params.n_threads = params.n_threads_batch = threads
            params.flash_attn_type = int(flash)
            self._contexts[flash] = llama.llama_init_from_model(self._model, params)
            if not self._contexts[flash]:
                raise SystemExit(f"llama.cpp made no context of {context} tokens")
        self.choose(flash=False)

    def choose(self, *, flash: bool) -> None:
        """Whether attention is flash attention from now on."""
        self._context = self._contexts[flash]

    def decode(self, prompt: list[int], tokens: int) -> list[float]:
        """Seconds of each of ``tokens`` single tokens after the prompt."""
        self.prefill(prompt)
        times = []
        for i in range(tokens):
            began = time.perf_counter()
            self._run([prompt[i % len(prompt)]])
            times.append(time.perf_counter() - began)
        return times

    def prefill(self, prompt: list[int]) -> float:
        """Seconds for the whole prompt, from an empty cache."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        began = time.perf_counter()
        for start in range(0, len(prompt), 512):
            self._run(prompt[start : start + 512])
        return time.perf_counter() - began

    def _run(self, tokens: list[int]) -> None:
        array = (llama.llama_token * len(tokens))(*tokens)  # must outlive the call
        batch = llama.llama_batch_get_one(array, len(tokens))
        if llama.llama_decode(self._context, batch):
            raise SystemExit("llama.cpp failed to decode")
        llama.llama_synchronize(self._context)


def main() -> None:
    @llama.llama_log_callback
    def quiet(level: int, text: bytes, data: object) -> None:
        pass

    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    if sys.argv[1] == "quantize":
        quantize(*sys.argv[2:5])
        return
    model = Model(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        model.choose(flash=asked["flash"])
        if asked["do"] == "decode":
            answer = model.decode(asked["prompt"], asked["tokens"])
        else:
            answer = model.prefill(asked["prompt"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
