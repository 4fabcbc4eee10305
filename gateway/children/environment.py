"""What of the gateway's environment the engine and the sidecar get: what they need to run, and none of its secrets.

The gateway's own environment holds providers' keys, a store's password and whatever else a deployment puts there. Code
that comes with models, or a library with a hole, would find it all. So variables are let through by name, and one that
nobody thought of stays out; ``backends.<name>.env`` lets further ones through to an engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

NAMES = frozenset(
    {
        # Any program's: where to find things, and in which language, zone and place to work.
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TZDIR", "HOSTNAME"),
        *("TMPDIR", "TEMP", "TMP", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "NO_COLOR"),
        # The network: proxies (in either case), and whose certificates are believed.
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        # Compilers, which Triton and the C kernels call.
        *("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "LDFLAGS"),
        # Hubs of models: their token is for just this.
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        # Processes that work together.
        *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *(
            "TOLLGATE_KERNELS",
            "TOLLGATE_LOG_LEVEL",
            "TOLLGATE_LOG_FORMAT",
            "TIKTOKEN_CACHE_DIR",
            "SPACY_HOME",
        ),
    }
)
PREFIXES = (
    *("LC_", "XDG_", "PYTHON", "CONDA_", "MALLOC_", "GLIBC_TUNABLES"),
    # Accelerators and what passes between them.
    *(
        "CUDA",
        "NVIDIA_",
        "NCCL_",
        "CUBLAS",
        "CUDNN",
        "NVTX",
        "GLOO_",
        "UCX_",
        "IB_",
        "FI_",
        "HIP_",
        "ROCR_",
        "ROCM_",
    ),
    *("HSA_", "AMD_", "GPU_", "ONEAPI_", "ZE_", "SYCL_"),
    # Libraries of numbers and models.
    *(
        "TORCH",
        "PYTORCH",
        "TRITON_",
        "INDUCTOR_",
        "OMP_",
        "MKL_",
        "KMP_",
        "GOMP_",
        "OPENBLAS_",
        "BLIS_",
        "DNNL_",
    ),
    *("ONEDNN_", "NUMEXPR_", "VECLIB_", "ATEN_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "SAFETENSORS_"),
    *("TOKENIZERS_", "SENTENCE_TRANSFORMERS_", "FAISS_", "LLGUIDANCE_", "RAYON_", "RUST_", "MODELSCOPE_"),
)


INSTALLERS = ("PIP_*", "UV_*")
"""For the sidecar, which may install what its models need: which index, through which proxy."""
_SECRET = re.compile(r"(?:KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|TOKEN|CREDENTIALS?)S?")


def inherited(env: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """The part of ``env`` that a child gets; ``also`` names more of it, as glob patterns."""
    more = tuple(also)
    return {
        name: value
        for name, value in env.items()
        if _is_common(name.upper()) or any(fnmatchcase(name, pattern) for pattern in more)
    }


def _is_common(name: str) -> bool:
    return name in NAMES or (name.startswith(PREFIXES) and not _SECRET.fullmatch(name.rpartition("_")[2]))
