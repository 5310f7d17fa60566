"""How much a server takes, from whom, and for how long."""

from __future__ import annotations

import ipaddress

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from regard.config import Config

MIB = 2**20


class ServeSettings(Config):
    """Limits with the defaults of a small server that strangers may reach."""

    host: str = "127.0.0.1"
    port: int = 5000
    api_keys: tuple[str, ...] = ()  # none: everyone may ask
    memory: PositiveInt = 4096  # MiB of weights kept loaded; the least recently used model leaves first
    body: PositiveInt = 2 * MIB  # bytes of a request
    upload: PositiveInt = 256 * MIB  # bytes of training data sent by the page
    characters: PositiveInt = 10_000  # of one text
    texts: PositiveInt = 64  # in one request
    alternatives: NonNegativeInt = 10
    beam: PositiveInt = 16
    seconds: PositiveFloat = 60.0  # for one request
    queue: PositiveInt = 256  # requests that wait; one more is told to come back
    batch: PositiveInt = 64  # sentences computed together
    device: str = "cpu"
    precision: str = "fp32"  # of models that write, on a CPU

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
