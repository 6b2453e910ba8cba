"""Which addresses may be reached, spelled out class by class."""

from ipaddress import IPv4Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.addresses import may_reach

PUBLIC = "8.8.8.8 1.1.1.1 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808".split()
PRIVATE = """
    127.0.0.1 127.9.9.9 10.0.0.1 172.31.255.255 192.168.1.1 100.64.0.1 ::1 fc00::1 fd12::1
    ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1 64:ff9b::a00:1
""".split()
NEVER = """
    169.254.169.254 169.254.0.1 fe80::1 fe80::1%1 ::1%1 fd00:ec2::254 fd20:ce::254 0.0.0.0 0.1.2.3 :: 224.0.0.1
    239.1.1.1 ff02::1 240.0.0.1 255.255.255.255 192.0.2.1 198.18.0.1 192.0.0.192 100.100.100.200 168.63.129.16
    fec0::1 2001:db8::1 100::1 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 2002:7f00:1:: 2002:808:808:: 2001:0:1::1
    64:ff9b:1::808:808 ::127.0.0.1 ::8.8.8.8 ::ffff:0:7f00:1
""".split()


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_reached(text: str) -> None:
    assert may_reach(ip_address(text), allow_private=False)
    assert may_reach(ip_address(text), allow_private=True)


@pytest.mark.parametrize("text", PRIVATE)
def test_private_addresses_are_reached_only_where_allowed(text: str) -> None:
    assert not may_reach(ip_address(text), allow_private=False)
    assert may_reach(ip_address(text), allow_private=True)


@pytest.mark.parametrize("text", NEVER)
def test_allow_private_never_opens_link_local_metadata_or_special_addresses(text: str) -> None:
    assert not may_reach(ip_address(text), allow_private=False)
    assert not may_reach(ip_address(text), allow_private=True)


@given(st.ip_addresses(v=4, network="169.254.0.0/16"))
def test_no_spelling_opens_link_local(address: IPv4Address) -> None:
    for text in (str(address), f"::ffff:{address}", f"64:ff9b::{address}", f"2002:{int(address) >> 16:x}::1"):
        assert not may_reach(ip_address(text), allow_private=True)


@given(st.ip_addresses(v=4))
def test_an_embedding_is_never_more_open_than_what_it_embeds(address: IPv4Address) -> None:
    for allow_private in (False, True):
        plain = may_reach(address, allow_private=allow_private)
        assert may_reach(ip_address(f"::ffff:{address}"), allow_private=allow_private) == plain
        assert may_reach(ip_address(f"64:ff9b::{address}"), allow_private=allow_private) == plain


@given(st.ip_addresses())
def test_without_allow_private_only_global_addresses_are_reached(address: object) -> None:
    found = ip_address(str(address))
    if may_reach(found, allow_private=False):
        assert found.is_global
        assert all(found not in ip_network(text) for text in ("10.0.0.0/8", "127.0.0.0/8", "fc00::/7", "fe80::/10"))
