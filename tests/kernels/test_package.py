from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_brings_neither_torch_nor_triton() -> None:
    """transformers probes for an unrelated package of this name: it must stay cheap, and below its version."""
    program = (
        "import sys, kernels; "
        "assert not {'torch', 'triton'} & set(sys.modules); "
        "assert tuple(map(int, kernels.__version__.split('.')[:2])) < (0, 18)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
