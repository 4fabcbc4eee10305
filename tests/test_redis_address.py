"""URLs of Redis: what they name, and what is said of those that name nothing."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.redis_address import RedisAddress
from tests.examples import examples


@pytest.mark.parametrize(
    ("url", "kind", "hosts"),
    [
        ("redis://redis", "server", (("redis", 6379),)),
        ("redis://u:p%40ss@10.0.0.1:6380/3", "server", (("10.0.0.1", 6380),)),
        ("rediss://[::1]:6380/", "server", (("::1", 6380),)),
        ("redis+cluster://a:1,b,[fe80::2]:3", "cluster", (("a", 1), ("b", 6379), ("fe80::2", 3))),
        ("rediss+sentinel://s1,s2:27000/mymaster/2", "sentinel", (("s1", 26379), ("s2", 27000))),
        ("redis+sentinel://s1/mymaster", "sentinel", (("s1", 26379),)),
    ],
)
def test_what_a_url_names(url: str, kind: str, hosts: tuple[tuple[str, int], ...]) -> None:
    found = RedisAddress.parse(url)
    assert (found.kind, found.hosts, found.tls) == (kind, hosts, url.startswith("rediss"))


def test_logins_and_options() -> None:
    url = (
        "rediss+sentinel://tollgate:p%40ss@s1/mymaster/2"
        "?ssl_ca_certs=/etc/ca.pem&ssl_certfile=/c.pem&ssl_check_hostname=no&sentinel_username=s&sentinel_password=q"
    )
    found = RedisAddress.parse(url)
    tls = {"ssl_ca_certs": "/etc/ca.pem", "ssl_certfile": "/c.pem", "ssl_check_hostname": False}
    assert found.master == "mymaster"
    assert found.options == {"username": "tollgate", "password": "p@ss", "db": 2, **tls}
    assert found.sentinel_options == {"username": "s", "password": "q", **tls}
    assert "p@ss" not in repr(found)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis:/x", "begin with"),
        ("postgres://a/b", "begin with"),
        ("redis://a b", "begin with"),
        ("redis://a,b/0", r"redis\+cluster://"),
        ("redis://a:0", "host"),
        ("redis://a:70000", "host"),
        ("redis://a/zero", "number of a database"),
        ("redis+cluster://a/1", "has none but 0"),
        ("redis+cluster://a,,b", "host"),
        ("redis+sentinel://a:26379", "names no master"),
        ("redis://a?ssl_ca_certs=x", "write 'rediss'"),
        ("redis://a?decode_responses=true", "there are db"),
        ("redis://a?db=-1", "'db'"),
        ("redis://a?protocol=9", "'protocol'"),
        ("redis://a?health_check_interval=-5", "'health_check_interval'"),
        ("redis://a?sentinel_password=x", "not known here"),
        ("redis://a?db=x", "'db'"),
        ("rediss://a?ssl_cert_reqs=maybe", "'ssl_cert_reqs'"),
    ],
)
def test_what_cannot_be_read(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RedisAddress.parse(url)


@settings(max_examples=examples(300))
@given(
    st.text(string.ascii_letters + string.digits + "/@#?:%[]&=, ", min_size=6, max_size=20),
    st.sampled_from(["redis", "rediss+cluster", "redis+sentinel"]),
)
def test_no_error_repeats_a_password(password: str, scheme: str) -> None:
    """Whatever it looks like unescaped."""
    secret = f"Zq9{password}Zq9"
    try:
        RedisAddress.parse(f"{scheme}://user:{secret}@host:port/0")
    except ValueError as error:
        assert "Zq9" not in str(error)
