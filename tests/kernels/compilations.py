"""How many times Triton would compile each kernel for the batches of a server: ``python -m …compilations`` prints it.

Kernels are launched as on a GPU, but for what their launches would be compiled as, which is counted, and nothing runs.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import JITFunction, create_function_from_signature

from kernels.edit_logits import Edits, edit_logits_triton
from kernels.flash_decoding import paged_decode_triton
from kernels.flash_prefill import paged_prefill_triton
from kernels.linear_w4a16 import linear_w4a16_triton, pack_w4
from kernels.linear_w8a16 import linear_w8a16_triton
from kernels.lora import Bank, lora_triton
from kernels.paged_kv import PagedKV
from kernels.route import assign_triton
from kernels.store_kv import store_kv_triton

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 64, 16

seen: dict[str, set[str]] = defaultdict(set)


def count(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    backend = CUDABackend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(self.signature, self.params, backend)
    _, specialization, options = bind(*args, **kwargs)
    seen[self.__name__].add(str((specialization, sorted(options.items()))))


def launch_products() -> None:
    codes = torch.zeros(64, 512, dtype=torch.uint8)
    w4 = pack_w4(codes, torch.ones(64, 4), torch.ones(64, 4))
    bank = Bank.empty(2, 16, 512, 512, torch.device("cpu"), torch.bfloat16)
    for rows in (1, 2, 15, 16, 33, 512):
        x = torch.zeros(rows, 512, dtype=torch.bfloat16)
        # A tile has 16 rows, or 32: of these the constants differ.
        linear_w4a16_triton(x, w4, tile=16)
        linear_w8a16_triton(x, codes.view(torch.int8), torch.ones(64), tile=16)
        lora_triton(x, x, torch.zeros(rows, dtype=torch.int32), bank)
        assign_triton(x[:, :128], 8, True, 16)
        places, figures = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows)
        starts = torch.zeros(3 * rows + 1, dtype=torch.int32)
        edit_logits_triton(x, Edits(None, None, starts, places, figures, figures))


def main() -> None:
    JITFunction.run = count
    cache = torch.zeros(4, KV_HEADS, BLOCK, DIM, dtype=torch.bfloat16)

    def heads(tokens: int, count: int) -> torch.Tensor:
        return torch.zeros(tokens, count, DIM, dtype=torch.bfloat16)

    for sequences in (1, 2, 3, 16, 17, 32):
        for blocks in (1, 5, 16, 33, 300):
            # A step's tables stand one after another: those of decodes, then those of prompts.
            for first in (0, 1):
                tables = torch.zeros(first + sequences, blocks, dtype=torch.int64)[first:]
                lens = torch.ones(first + sequences, dtype=torch.int64)[first:]
                kv = PagedKV(cache, cache, tables, lens)
                for new in (1, 2, 3, 8):
                    q = heads(sequences * new, HEADS)
                    paged_decode_triton(q, kv, 1.0)
                starts = torch.arange(sequences + 1)
                paged_prefill_triton(q, kv, starts, 1.0)
        k = heads(sequences, KV_HEADS)
        store_kv_triton(k, k, cache, cache, torch.zeros(sequences, dtype=torch.int64))
    launch_products()
    json.dump({name: len(kinds) for name, kinds in seen.items()}, sys.stdout)


if __name__ == "__main__":
    main()
