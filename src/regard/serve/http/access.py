"""Who may ask: API keys, trusted proxies, whose X-Forwarded-* headers are used, and the accepted host names."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Scope

from regard.serve.settings import ANY, LOOPBACK, ServeSettings

HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::[0-9]{1,5})?")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """The proxies of a server, by address or network."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(each) for each in addresses]

    def trusts(self, client: str) -> bool:
        address = _address(client)
        return address is not None and any(address in network for network in self._networks)

    def unwrap(self, scope: Scope) -> Scope:
        """The request as the outermost trusted proxy received it; unchanged if it came from no trusted proxy.

        Each proxy appends to these headers, so only the last value was written by the trusted one.
        """
        if not self.trusts(_client(scope)):
            return scope
        headers = Headers(scope=scope)
        unwrapped = {**scope, "headers": list(scope["headers"])}
        if host := _last(headers, "x-forwarded-host"):
            MutableHeaders(scope=unwrapped)["host"] = host
        if (scheme := _last(headers, "x-forwarded-proto").lower()) in ("http", "https"):
            unwrapped["scheme"] = scheme
        hops = [hop for value in headers.getlist("x-forwarded-for") for hop in value.split(",") if hop.strip()]
        while hops and self.trusts(_client(unwrapped)):
            unwrapped["client"] = (hops.pop().strip(), 0)
        return unwrapped


class AllowedHosts:
    """The accepted values of the Host header; any other value may be a DNS rebinding attack.

    Accepted are the configured names and the loopback names. A server that is not local also accepts its own host name
    and the address that a connection was made to. In a rebinding attack another site lets its own name resolve to this
    machine, so its Host header is none of these.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self._given = settings.allowed_hosts
        self._own = {*LOOPBACK} if settings.local else {*LOOPBACK, socket.gethostname().lower(), settings.host.lower()}
        self._local = settings.local

    def accept(self, scope: Scope) -> bool:
        hosts = Headers(scope=scope).getlist("host")
        found = HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            return False
        name = found["name"].lower().strip("[]")
        return name in self._own or any(_matches(name, given) for given in self._given) or self._is_own(name, scope)

    def _is_own(self, name: str, scope: Scope) -> bool:
        """Whether this is the address that the connection was made to."""
        own = (scope.get("server") or ("",))[0]
        return not self._local and _address(name) is not None and _address(name) == _address(own)


def _matches(name: str, given: str) -> bool:
    return given == ANY or name == given or (given.startswith("*.") and name.endswith(given[1:]))


def _client(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _last(headers: Headers, name: str) -> str:
    values = headers.getlist(name)
    return values[-1].rpartition(",")[2].strip() if values else ""


def _address(text: str) -> Address | None:
    """The parsed address; an IPv6-mapped IPv4 address becomes IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


class ApiKeys:
    """The keys of a server; without any, no key is needed."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def accept(self, given: str) -> bool:
        """Whether this is one of the keys; compared in constant time, against timing attacks."""
        matches = [hmac.compare_digest(given.encode("utf-8", "replace"), key) for key in self._keys]
        return any(matches) or not self._keys


def bearer_key(headers: Headers) -> str:
    """The key in an Authorization header."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""
