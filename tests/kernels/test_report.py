"""How the report is put together. What it finds in code is tested in test_compile.py."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kernels import report
from kernels.compile import Code, faults
from kernels.launch import ARCHS, Variant
from kernels.report import Row, operations, table

CODE = Code(
    registers=40,
    spilled=0,
    shared=2048,
    tensor_memory=0,
    threads=128,
    matrix={"mma": 8},
    scalar_dots=0,
    wide_loads=4,
)


def code(**changes: object) -> Code:
    return Code(**({name: getattr(CODE, name) for name in Code.__slots__} | changes))


def test_operations_are_the_modules_with_variants() -> None:
    found = operations()
    assert {"rms_norm", "paged_decode", "launch", "report"} & set(found) == {"rms_norm"}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"spilled": 8}, "spills 8 bytes a thread"),
        ({"shared": (227 << 10) + 1}, "takes 232449 bytes of shared memory, and sm_90 has 232448"),
        ({"tensor_memory": 1024}, "takes 1024 columns of tensor memory of 512"),
        ({"threads": 2048}, "takes 2048 threads a block of 1024"),
        ({"scalar_dots": 2}, "matrix products without matrix instructions: 2"),
        ({"matrix": {}}, "has no matrix instructions"),
    ],
)
def test_each_fault_is_told(changes: dict[str, object], fault: str) -> None:
    variant = Variant("name", None, {}, {}, dot=True)
    assert faults(variant, CODE, "sm_90") == faults(variant, code(shared=227 << 10), "sm_90") == []
    assert faults(variant, code(**changes), "sm_90") == [fault]


def test_without_a_dot_no_matrix_instructions_are_asked_for() -> None:
    assert faults(Variant("name", None, {}, {}), code(matrix={}), "gfx942") == []


def test_the_table_marks_faults_and_tells_them_in_full() -> None:
    rows = [
        Row("rope", "fp16", "sm_90", code(matrix={}, wide_loads=0), ()),
        Row("moe", "bf16", "sm_80", CODE, ("spills 8 bytes a thread",)),
        Row("moe", "fp16", "gfx942", None, ("does not compile: E: one\ntwo",)),
    ]
    assert table(rows).splitlines() == [
        "   op    variant  arch    registers  spilled  shared KB   matrix  16-byte loads",
        "   rope  fp16     sm_90   40         0        2.0 of 227  -       -",
        "!  moe   bf16     sm_80   40         0        2.0 of 163  8 mma   4",
        "!  moe   fp16     gfx942  -          -        -           -       -",
        "",
        "FAULT moe sm_80 bf16:",
        "    spills 8 bytes a thread",
        "",
        "FAULT moe gfx942 fp16:",
        "    does not compile: E: one",
        "    two",
    ]


def test_variants_that_cannot_be_listed_are_faults_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arch: str) -> Iterator[Variant]:
        raise ValueError("no table for it")
        yield

    modules = {
        "some.broken": SimpleNamespace(variants=broken),
        "some.none": SimpleNamespace(variants=lambda arch: []),
    }
    monkeypatch.setattr(report.importlib, "import_module", modules.__getitem__)
    rows = report.report(list(modules), ARCHS[:1], jobs=1)
    assert [row.faults for row in rows] == [
        ("variants: ValueError: no table for it",),
        ("variants: there are none",),
    ]
