"""Settings of a server: address, access, and limits."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from regard.config import Config
from regard.errors import ConfigError

MIB = 2**20
ANY = "*"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
NAME = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")

PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")


def _host(given: str) -> str:
    """Validate a host name by which browsers reach the server: example.org, *.example.org, an address, or * for any."""
    name = given.lower().removeprefix("[").removesuffix("]")
    if name == ANY or NAME.fullmatch(name) or _is_address(name):
        return name
    raise ValueError("expected the name of a host such as example.org, without scheme and port")


def _origin(given: str) -> str:
    """Validate the origin of a site whose pages may call the API: https://example.org, or * for any."""
    origin = given.lower().rstrip("/")
    parts = urlsplit(origin)
    if origin == ANY or (parts.scheme in ("http", "https") and parts.netloc and origin.count("/") == 2):
        return origin
    raise ValueError("expected scheme and host such as https://example.org")


def _proxy(given: str) -> str:
    """Validate the address of a proxy, or a network of proxies: 127.0.0.1, 10.0.0.0/8."""
    try:
        ipaddress.ip_network(given)
    except ValueError:
        raise ValueError("expected an address such as 127.0.0.1, or a network such as 10.0.0.0/8") from None
    return given


def _prefix(given: str) -> str:
    """Validate the path below which a proxy has the server: /mt."""
    prefix = given.rstrip("/")
    if not PREFIX.fullmatch(prefix):
        raise ValueError("expected a path such as /mt")
    return prefix


class ServeSettings(Config):
    """Settings with defaults for a small server that unknown clients may reach."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 5000
    api_keys: tuple[str, ...] = ()  # empty: no key is needed
    allowed_hosts: tuple[Annotated[str, AfterValidator(_host)], ...] = ()  # accepted Host names beside the server's own
    origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = ()  # other sites whose pages may call the API (CORS)
    trusted_proxies: tuple[Annotated[str, AfterValidator(_proxy)], ...] = ()  # whose X-Forwarded-* headers are used
    root_path: Annotated[str, AfterValidator(_prefix)] = ""  # below which a proxy has the server
    training: bool = True  # whether clients may start, change and delete training runs
    memory: PositiveInt = 4096  # MiB of weights kept loaded; the least recently used model is unloaded first
    body: PositiveInt = 2 * MIB  # bytes of a request
    upload: PositiveInt = 256 * MIB  # bytes of training data, or of a document, in a request
    uploads: PositiveInt = 4096 * MIB  # bytes of training data and documents kept on disk
    receiving: PositiveInt = 4  # large requests with training data, documents or images that may arrive at once
    document: PositiveInt = 16 * MIB  # bytes of the text and markup of a document, unpacked
    terms: PositiveInt = 5000  # of a glossary
    per_key: NonNegativeInt = 0  # requests a minute for each API key, apart from queries; 0: any number
    runs: PositiveInt = 100  # training runs kept
    characters: PositiveInt = 10_000  # of one text
    texts: PositiveInt = 64  # in one request
    alternatives: NonNegativeInt = 10
    beam: PositiveInt = 16
    seconds: PositiveFloat = 60.0  # for one request
    grace: PositiveFloat = 8.0  # seconds to finish requests in when the server is told to stop
    queue: PositiveInt = 256  # waiting requests; beyond this the server answers 503
    batch: PositiveInt = 64  # sentences translated together
    memories: tuple[str, ...] = ()  # files of translation memories, whose matches the page shows
    remember: str = ""  # a file of the server's own answers and of corrections, which are used from then on
    device: str = "cpu"
    precision: str = "fp32"  # of models that generate text, on a CPU

    @model_validator(mode="after")
    def _require_key_for_any_host(self) -> ServeSettings:
        if ANY in (*self.allowed_hosts, *self.origins) and not self.api_keys:
            raise ConfigError(f"{ANY!r} as an allowed host or origin lets any web page in; give an API key with it")
        if self.per_key and not self.api_keys:
            raise ConfigError("a limit for each key needs API keys; give --api-key with --per-key")
        return self

    @property
    def local(self) -> bool:
        """Whether the server listens on the loopback interface only."""
        return self.host in LOOPBACK or (_is_address(self.host) and ipaddress.ip_address(self.host).is_loopback)

    @property
    def public(self) -> bool:
        """Whether other machines may reach the server, directly or through a proxy."""
        return not self.local or bool(self.trusted_proxies) or not set(self.allowed_hosts) <= set(LOOPBACK)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
