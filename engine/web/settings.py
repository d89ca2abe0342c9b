"""What the web service is told, looked up once at its start, and which addresses it may listen on."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field

from engine import config
from engine.errors import ConfigError

TOKEN_LEAST = 16  # characters
ENVELOPE_BYTES = 64 * 1024  # what a body may have beside its payload


@dataclass(frozen=True)
class WebSettings:
    """Times in seconds, sizes in bytes. ``rate``: requests a second of one token, 0: any number."""

    project: str
    box: str
    token: str | None = field(default=None, repr=False)
    token_read: str | None = field(default=None, repr=False)
    pool: int = 8
    wait_seconds: float = 2.0
    rate: float = 1000.0
    connections: int = 1000
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    grace: float = 20.0
    payload_limit: int = 1024 * 1024

    @property
    def body_limit(self) -> int:
        """The longest body of a request, in bytes."""
        return self.payload_limit + ENVELOPE_BYTES

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(token for token in (self.token, self.token_read) if token)

    @classmethod
    def from_config(cls) -> WebSettings:
        """The configured settings. Raises ConfigError, without the tokens in it."""
        token, token_read = _token("web_token"), _token("web_token_read")
        if token is not None and token == token_read:
            raise ConfigError("FLIGHTDECK_WEB_TOKEN and FLIGHTDECK_WEB_TOKEN_READ are the same: they must differ")
        return cls(
            project=config.project_name(),
            box=config.box_name(),
            token=token,
            token_read=token_read,
            pool=_count("web_pool", 1, 200),
            wait_seconds=float(config.get("web_wait_seconds")),
            rate=float(config.get("web_rate")),
            connections=_count("web_connections", 1, 100_000),
            head_seconds=_seconds("web_head_seconds"),
            body_seconds=_seconds("web_body_seconds"),
            grace=float(config.get("web_grace")),
            payload_limit=_count("payload_limit", 2, 2**30),
        )


def check_bind(host: str, settings: WebSettings) -> None:
    """Refuse an address that others can reach while there is no operate token. Raises ConfigError."""
    if not is_loopback(host) and settings.token is None:
        raise ConfigError(
            f"--host {host}: others can reach that address; set FLIGHTDECK_WEB_TOKEN "
            f"({TOKEN_LEAST} characters or more), or serve 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """True when ``host``, an address or a name, leads nowhere but to this machine."""
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None) if host else []
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(ipaddress.ip_address(str(a[4][0]).split("%")[0]).is_loopback for a in found)


def _token(name: str) -> str | None:
    value = config.get(name)
    if value is None:
        return None
    variable = f"FLIGHTDECK_{name.upper()}"
    text = str(value)
    if len(text) < TOKEN_LEAST:
        raise ConfigError(f"{variable}: a token has {TOKEN_LEAST} characters or more, this one has {len(text)}")
    if not all("!" <= c <= "~" for c in text):
        raise ConfigError(f"{variable}: a token has only visible ASCII characters, no spaces")
    return text


def _count(name: str, least: int, most: int) -> int:
    value = int(config.get(name))
    if not least <= value <= most:
        raise ConfigError(f"FLIGHTDECK_{name.upper()}: {value} is not between {least} and {most:,}")
    return value


def _seconds(name: str) -> float:
    value = float(config.get(name))
    if value <= 0:
        raise ConfigError(f"FLIGHTDECK_{name.upper()}: {value:g} is no time")
    return value
