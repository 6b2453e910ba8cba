"""Which addresses an outside call may reach, and the network backend that connects to nothing else.

The host is resolved here, every address it resolves to is judged, and the connection goes to the very address that was
judged: a second answer of the name server is never asked for, and odd spellings of an address (`0x7f.1`, `2130706433`,
a trailing dot) do not matter, because only what they resolve to counts. Nothing here decides by a name.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import cast

import httpcore2

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port to address texts; raises OSError where the name is not known."""

_METADATA = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, GCP, OpenStack
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # GCP
        "100.100.100.200",  # Alibaba Cloud, inside the shared range
        "168.63.129.16",  # Azure's host agent, a public address
        "192.0.0.192",  # Oracle Cloud
    )
)
_PRIVATE = tuple(
    ip_network(text)
    for text in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "::1/128", "fc00::/7")
)
_NAT64 = IPv6Network("64:ff9b::/96")
_TUNNELS = tuple(IPv6Network(text) for text in ("2002::/16", "2001::/32", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96"))
"""6to4, Teredo, local NAT64, IPv4-compatible and IPv4-translated: all embed another address; `::` and `::1` aside."""


class HostUnknown(httpcore2.ConnectError):
    """The host has no address."""


class AddressRefused(httpcore2.ConnectError):
    """The host resolves to an address that this connection may not reach."""


def may_reach(address: Address, *, allow_private: bool) -> bool:
    """`allow_private` opens loopback, private, unique local and shared addresses; never link-local, metadata,
    multicast, reserved or unspecified ones. An address that embeds an IPv4 address is judged by that one, or refused.
    """
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        if address.ipv4_mapped is not None:
            return may_reach(address.ipv4_mapped, allow_private=allow_private)
        if address in _NAT64:
            return may_reach(IPv4Address(address.packed[-4:]), allow_private=allow_private)
    if address in _METADATA:
        return False
    if any(address in network for network in _PRIVATE):
        return allow_private
    if isinstance(address, IPv6Address) and (address.is_site_local or any(address in tunnel for tunnel in _TUNNELS)):
        return False
    refused = address.is_link_local or address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not refused


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """The system's resolver, `/etc/hosts` included."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to checked addresses only. One refused address refuses the host: a name with two faces is no mistake."""

    def __init__(self, resolve: Resolve, *, allow_private: bool) -> None:
        self._resolve = resolve
        self._allow_private = allow_private
        self._network = cast(httpcore2.AsyncNetworkBackend, httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._checked(host, port)
        for left in range(len(addresses), 1, -1):
            # A share of the time for each, so that a dead first address does not use up the second one's.
            share = None if timeout is None else timeout / left
            try:
                return await self._network.connect_tcp(
                    str(addresses[-left]), port, share, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._network.connect_tcp(str(addresses[-1]), port, timeout, local_address, socket_options)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise AddressRefused("Only TCP goes out.")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _checked(self, host: str, port: int) -> list[Address]:
        try:
            found: Sequence[Address] = [ip_address(host)]
        except ValueError:
            found = await self._looked_up(host, port)
        if not all(may_reach(address, allow_private=self._allow_private) for address in found):
            raise AddressRefused("The host resolves to an address that may not be reached.")
        return [_plain(address) for address in dict.fromkeys(found)]

    async def _looked_up(self, host: str, port: int) -> Sequence[Address]:
        try:
            found = [ip_address(text) for text in await self._resolve(host, port)]
        except (OSError, ValueError):  # UnicodeError of an impossible name is a ValueError
            found = []
        if not found:
            raise HostUnknown("The host has no address.")
        return found


def _plain(address: Address) -> Address:
    """`::ffff:1.2.3.4` as the IPv4 address that was judged."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
