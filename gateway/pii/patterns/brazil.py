"""Numbers of persons and firms in Brazil: CPF and CNPJ."""

from __future__ import annotations

from gateway.pii.patterns.numbered import Form, numbered


def is_cpf(number: str) -> bool:
    """Two check digits modulo 11; of eleven equal digits they are right, but nobody has them."""
    return len(set(number)) > 1 and all(
        _check(number[:end], range(end + 1, 1, -1)) == int(number[end]) for end in (9, 10)
    )


def is_cnpj(number: str) -> bool:
    """The same over letters too, which firms have from July 2026 on."""
    weights = (6, 5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2)
    return len(set(number)) > 1 and all(
        _check(number[:end], weights[13 - end :]) == int(number[end]) for end in (12, 13)
    )


def _check(signs: str, weights: range | tuple[int, ...]) -> int:
    """Letters count as their place in ASCII, from 0 on."""
    rest = sum((ord(sign) - 48) * weight for sign, weight in zip(signs, weights, strict=True)) % 11
    return 0 if rest < 2 else 11 - rest


BR_CPF = numbered(
    "BR_CPF",
    [Form(r"\d\d(?:([. -])\d{3}\1\d{3}[-. /]\d\d|\d{6}-\d\d|\d{8})")],
    is_cpf,
    r"cpf\b cadastro\sde\spessoa",
    alone=0.3,
    written=0.85,
    longest=14,
)
BR_CNPJ = numbered(
    "BR_CNPJ",
    [
        Form(r"[A-Z\d]{4}-\d\d", first="/", before=r"[A-Z\d]{2}\.[A-Z\d]{3}\.[A-Z\d]{3}", width=10),
        Form(r"[A-Z\d]{4}-\d\d", first="/", before=r"[A-Z\d]{8}", width=8),
        Form(r"[A-Z\d]{11}\d\d"),
    ],
    is_cnpj,
    r"cnpj\b cadastro\snacional",
    alone=0.3,
    written=0.9,
    longest=18,
)
