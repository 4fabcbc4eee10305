"""Which ids are believed to be an answer's own."""

from __future__ import annotations

import pytest

from gateway.backends.answer_ids import ENOUGH, MOST_APIS, AnswerIds, IdKind

KIND = IdKind("body", "POST /v1/chat/completions HTTP/1.1", b"application/json")


def an_id(number: int) -> str:
    return f"chatcmpl-{number:032x}"


def told(ids: AnswerIds, numbers: range, kind: IdKind = KIND) -> None:
    for number in numbers:
        ids.add(kind, an_id(number), (number, number))


def test_enough_that_differ_are_believed_for_their_api_alone() -> None:
    ids = AnswerIds()
    told(ids, range(ENOUGH - 1))
    assert ids.own == set()
    told(ids, range(ENOUGH, ENOUGH + 1))
    assert ids.own == {KIND}


@pytest.mark.parametrize("of", [1, 2, ENOUGH - 1])
def test_a_few_ids_are_never_believed(of: int) -> None:
    ids = AnswerIds()
    for number in range(10 * ENOUGH):
        ids.add(KIND, an_id(number % of), (number, number))
    assert ids.own == set()


def test_the_same_answer_to_the_same_question_says_nothing() -> None:
    ids = AnswerIds()
    for number in range(2 * ENOUGH):
        ids.add(KIND, an_id(number // 2), (number // 2, 0))
    assert ids.own == {KIND}


def test_what_came_twice_is_believed_again_once_enough_have_not() -> None:
    ids = AnswerIds()
    told(ids, range(ENOUGH))
    ids.repeated(KIND)
    told(ids, range(ENOUGH - 1))
    assert ids.own == set()
    told(ids, range(ENOUGH, ENOUGH + 1))
    assert ids.own == {KIND}


def test_apis_without_end_are_not_remembered() -> None:
    ids = AnswerIds()
    for number in range(2 * MOST_APIS):
        told(ids, range(1), KIND._replace(content_type=b"%d" % number))
    assert len(ids._seen) == MOST_APIS


def test_short_ids_are_never_believed_nor_those_around_them() -> None:
    ids = AnswerIds()
    for number in range(10 * ENOUGH):
        ids.add(KIND, an_id(number) if number % (ENOUGH - 1) else str(number), (number, number))
    assert ids.own == set()
    for number in range(ENOUGH):
        ids.add(KIND, str(number), (number, number))
    assert (ids.own, ids._seen) == (set(), {})
