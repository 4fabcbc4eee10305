from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.fleet.room import Action, Change, Holding, make_room, never_fits


@st.composite
def holdings(draw: st.DrawFn) -> list[Holding]:
    found = []
    for number in range(draw(st.integers(0, 6))):
        held = draw(st.integers(0, 100))
        asleep = draw(st.none() | st.integers(0, held))
        found.append(Holding(f"m{number}", held, asleep))
    return found


def gained(leaving: list[Holding], changes: list[Change]) -> int:
    by_name = {one.name: one for one in leaving}
    return sum(
        by_name[name].held - ((by_name[name].asleep or 0) if action is Action.SLEEP else 0)
        for name, action in changes
    )


@given(st.integers(0, 400), st.integers(-50, 400), holdings())
def test_what_is_said_to_be_enough_is_and_nobody_gives_way_for_nothing(
    needed: int, free: int, leaving: list[Holding]
) -> None:
    changes = make_room(needed, free, leaving)
    if changes is None:
        assert needed - free > sum(one.held for one in leaving)
        return
    assert free + gained(leaving, changes) >= needed
    for left_out in changes:
        others = [change for change in changes if change != left_out]
        assert free + gained(leaving, others) < needed
    assert len({name for name, _ in changes}) == len(changes)


def test_sleep_goes_before_unloading_where_it_is_enough() -> None:
    leaving = [Holding("old", 100, 60), Holding("new", 100, 60)]
    assert make_room(40, 0, leaving) == [("old", Action.SLEEP)]
    assert make_room(41, 0, leaving) == [("old", Action.UNLOAD)]
    assert make_room(140, 0, leaving) == [("old", Action.UNLOAD), ("new", Action.SLEEP)]
    assert make_room(201, 0, leaving) is None
    # The first one's memory is not needed beside the second's.
    assert make_room(90, 0, [Holding("small", 10), Holding("large", 95)]) == [("large", Action.UNLOAD)]


def test_what_is_pinned_leaves_less() -> None:
    assert not never_fits(60, 100, 40)
    assert never_fits(61, 100, 40)
