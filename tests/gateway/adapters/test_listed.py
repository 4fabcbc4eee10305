"""Which servers list which adapters, and which of them is asked first."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.adapters.adapter import new_id
from gateway.adapters.derived import policy_of_listed
from gateway.adapters.listed import LACKS_FOR, ListedAdapter, ListedAdapters
from gateway.backends.lora_names import Listing, LorasInUse
from gateway.policy.schema import Policy
from tests.examples import examples
from tests.fakes import policy

ROOTS = {"llama": "/models/llama"}
SERVERS = ("one", "two", "three")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def of_three(listed: Mapping[str, object] | None = None) -> Policy:
    backends = {
        name: {"kind": "openai", "base_url": f"http://{name}:1/v1", "telemetry": "vllm"} for name in SERVERS
    }
    return policy(
        backends=backends,
        models={
            "chat": {"targets": [{"backend": name, "model": "llama"} for name in SERVERS], "aliases": ["c"]}
        },
        prices={"llama": {"input": 1.0, "output": 2.0}, "two/dear": {"input": 7.0, "output": 8.0}},
        adapters={"listed": listed or {name: {} for name in SERVERS}},
    )


def known(clock: Clock | None = None, **adapters: tuple[str, ...]) -> ListedAdapters:
    found = ListedAdapters(clock=clock or Clock())
    found.keep({name: name for name in SERVERS})
    for name, its in adapters.items():
        found.update(name, Listing(dict.fromkeys(its, "llama"), ROOTS))
    return found


def found_in(listed: ListedAdapters, name: str) -> ListedAdapter:
    found = listed.find(of_three(), "chat", name)
    assert found is not None
    return found


def test_who_has_it_ready_comes_first_and_who_lacks_it_last() -> None:
    clock = Clock()
    listed = known(clock, one=("a", "b", "c"), two=("a",), three=("b",))
    one = found_in(listed, "a")
    assert [listed.rank(name, one) for name in SERVERS] == [1, 1, None]
    listed.uses("one", LorasInUse(("a", "b", "unknown"), 2))
    assert [listed.rank(name, one) for name in SERVERS] == [0, 1, None]
    assert listed.rank("one", found_in(listed, "c")) == 2
    listed.sent("one", "c")  # the one that was used longest ago makes room
    assert [listed.rank("one", found_in(listed, name)) for name in ("a", "b", "c")] == [0, 2, 0]
    listed.lacks("one", "a")
    assert listed.rank("one", one) == 4
    clock.now = LACKS_FOR
    assert listed.rank("one", one) == 1
    listed.restarted("one")
    assert listed.rank("one", found_in(listed, "c")) == 1


def test_what_came_by_upload_is_none_of_them() -> None:
    listed = known(one=(new_id(), "a"))
    assert [one.model for one in listed.of(of_three(), "chat")] == ["chat:a"]


def test_its_policy_has_its_bases_price_but_where_it_has_one_of_its_own() -> None:
    listed = known(one=("dear", "sql"), two=("dear",))
    found = policy_of_listed(of_three(), found_in(listed, "dear"))
    own = found.models["chat:dear"]
    assert [(target.backend, target.model) for target in own.targets] == [("one", "dear"), ("two", "dear")]
    assert found.resolve("c:dear") == "chat:dear" and found.resolve("chat") is None
    assert found.prices["one/dear"].input == 1.0 and found.prices["two/dear"].input == 7.0


def test_only_what_the_policy_says_is_asked() -> None:
    listed = known(one=("a",), two=("a",))
    given = of_three({"two": {"tenants": ["acme"]}})
    found = listed.find(given, "chat", "a", "acme")
    assert found is not None and [target.backend for _, target in found.targets] == ["two"]
    assert listed.find(given, "chat", "a", "other") is None
    assert not [*listed.of(given, "chat", "other")] and not [*listed.of(given, "none")]


@given(
    changes=st.lists(
        st.tuples(st.sampled_from(SERVERS), st.none() | st.frozensets(st.sampled_from("abc"))), max_size=12
    )
)
@settings(max_examples=examples(200))
def test_a_name_is_there_as_long_as_anybody_lists_it(
    changes: list[tuple[str, frozenset[str] | None]],
) -> None:
    gone: list[tuple[str, str]] = []
    listed, policy_ = ListedAdapters(on_gone=lambda *one: gone.append(one)), of_three()
    there: dict[str, frozenset[str]] = {}
    for server, names in changes:
        before = there.get(server, frozenset())
        if names is None:
            there.pop(server, None)
        else:
            there[server] = names
        listed.keep({name: name for name in there})
        gone.clear()
        if names is None:
            continue
        listed.update(server, Listing(dict.fromkeys(names, "llama"), ROOTS))
        assert {name for _, name in gone if ":" not in name} == before - names
        for name in names:
            listed.sent(server, name)
    for name in "abc":
        found = listed.find(policy_, "chat", name)
        servers = [server for server in SERVERS if name in there.get(server, ())]
        assert [target.backend for _, target in found.targets] == servers if found else not servers
        if found is not None:
            assert sorted(listed.servers_of(found)) == sorted(servers)
            assert all(listed.is_ready(server, found) for server in servers)
