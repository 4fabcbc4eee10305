"""Compile a kernel ahead of time, for chips that are not present, and analyse the code.

NVIDIA's registers and spills are those of the machine code (``cuobjdump``), and instructions are counted in PTX, where
each stands for one of the chip's; AMD's are all in its assembly. Spills are counted in bytes a thread.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import Any

from kernels.launch import Variant, triton

SHARED_LIMITS = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
"""Bytes of shared memory that one block can have."""

THREADS_LIMIT = 1024
TENSOR_MEMORY_LIMIT = 512
"""Columns, on sm_100; other chips have no tensor memory."""

# A matrix instruction, in PTX and in AMD's assembly.
_MATRIX = re.compile(
    r"^\s*(?:@!?%\w+\s+)?(?:(wgmma)\.mma_async|(tcgen05)\.mma|(mma)\.(?:sp\.)?sync|v_s?(mfma)[a-z]?_)", re.M
)
# A load from global memory of 16 bytes a thread or more, or a bulk copy.
_WIDE_LOAD = re.compile(
    r"\bld\.global[\w.:]*\.(?:v8\.[busf](?:16|32)|v4\.[busf](?:32|64)|v2\.[busf]64|b128)\b"
    r"|\bcp\.async\.c[ag]\.shared\.global[^\n;]*, (?:0x10|16)\b"
    r"|\bcp\.async\.bulk\.(?:tensor[\w.:]*\.)?shared[\w:]*\.global"
    r"|\b(?:global|buffer|flat)_load_dwordx4\b"
)
# In Triton's IR a product without matrix instructions has operands in a blocked layout.
_SCALAR_DOT = re.compile(r"\btt\.dot\b[^\n]*parent = #blocked")


@dataclass(frozen=True, slots=True)
class Code:
    """What a variant compiles to on one chip."""

    registers: int
    """Of a thread; on AMD vector registers, including those of the matrix unit."""
    spilled: int
    shared: int
    tensor_memory: int
    threads: int
    matrix: dict[str, int]
    """Matrix instructions by kind: ``mma``, ``wgmma``, ``tcgen05``, ``mfma``."""
    scalar_dots: int
    """Matrix products without matrix instructions."""
    wide_loads: int
    """Loads from global memory of 16 bytes a thread or more."""


def compile_variant(variant: Variant, arch: str) -> Code:
    """Raises ``ValueError`` where the variant does not fit its kernel, and whatever Triton does where that does not
    compile. Not for a process with ``TRITON_INTERPRET=1``."""
    compiled = _compile(variant, arch)
    shared, threads = compiled.metadata.shared, compiled.metadata.num_warps * compiled.metadata.warp_size
    amd = arch.startswith("gfx")
    assembly = compiled.asm["amdgcn" if amd else "ptx"]
    registers, spilled = _amd_registers(assembly) if amd else _nvidia_registers(compiled.asm["cubin"])
    kinds = ("".join(groups) for groups in _MATRIX.findall(assembly))
    return Code(
        registers=registers,
        spilled=spilled,
        shared=shared,
        tensor_memory=getattr(compiled.metadata, "tmem_size", None) or 0,
        threads=threads,
        matrix=dict(Counter(kinds)),
        scalar_dots=len(_SCALAR_DOT.findall(compiled.asm["ttgir"])),
        wide_loads=len(_WIDE_LOAD.findall(assembly)),
    )


def faults(variant: Variant, code: Code, arch: str) -> list[str]:
    """Descriptions of the variant's faults."""
    found = []
    if code.spilled:
        found.append(f"spills {code.spilled} bytes a thread")
    if code.shared > SHARED_LIMITS[arch]:
        found.append(f"takes {code.shared} bytes of shared memory, and {arch} has {SHARED_LIMITS[arch]}")
    if code.tensor_memory > TENSOR_MEMORY_LIMIT:
        found.append(f"takes {code.tensor_memory} columns of tensor memory of {TENSOR_MEMORY_LIMIT}")
    if code.threads > THREADS_LIMIT:
        found.append(f"takes {code.threads} threads a block of {THREADS_LIMIT}")
    if code.scalar_dots:
        found.append(f"matrix products without matrix instructions: {code.scalar_dots}")
    elif variant.dot and not code.matrix:
        found.append("has no matrix instructions")
    return found


def _compile(variant: Variant, arch: str) -> Any:
    if triton is None:
        raise ImportError("Kernels are compiled by triton, which is not installed: pip install triton.")
    names = getattr(variant.kernel, "arg_names", None)
    if not isinstance(variant.kernel, triton.JITFunction) or names is None:
        raise ValueError("This is no Triton kernel, or TRITON_INTERPRET=1 made it one for the interpreter.")
    if set(names) != {*variant.types, *variant.constants} or not variant.types.keys().isdisjoint(
        variant.constants
    ):
        raise ValueError(
            f"Arguments are {sorted(names)}, but types and constants are given for "
            f"{sorted([*variant.types, *variant.constants])}."
        )
    if not variant.unaligned <= variant.types.keys():
        raise ValueError(
            f"Unaligned arguments that are none: {sorted(variant.unaligned - variant.types.keys())}."
        )
    source = triton.compiler.ASTSource(
        variant.kernel,
        {name: variant.types.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in variant.constants.items()},
        {
            (position,): [["tt.divisibility", 16]]
            for position, name in enumerate(names)
            if name not in variant.unaligned
            and not variant.kernel.params[position].do_not_specialize
            and re.match(r"\*|[iu](8|16|32|64)$", variant.types.get(name, ""))
        },
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    return triton.compile(source, target=_target(arch), options=options)


def _target(arch: str) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("hip", arch, 64) if arch.startswith("gfx") else GPUTarget("cuda", int(arch[3:]), 32)


def _nvidia_registers(cubin: bytes) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage))
    # Triton's kernels have no arrays and call no functions: whatever is on the stack was spilled.
    return int(found["REG"]), int(found["STACK"]) + int(found["LOCAL"])


def _amd_registers(assembly: str) -> tuple[int, int]:
    found = {
        name: int(value)
        for name, value in re.findall(
            r"^\s+(?:- )?\.(vgpr_count|vgpr_spill_count|sgpr_spill_count|private_segment_fixed_size):\s+(\d+)$",
            assembly,
            re.M,
        )
    }
    spills = 4 * (found["vgpr_spill_count"] + found["sgpr_spill_count"])
    return found["vgpr_count"], max(spills, found["private_segment_fixed_size"])
