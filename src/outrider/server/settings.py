"""Options of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outrider.errors import ConfigError
from outrider.options import check_options, option

LOCAL: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""What a server for this machine alone is called."""
_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens, who may use it, and what one request may take."""

    method = "server"
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 serves the network.")
    port: int = option(8000, "Port to listen on; 0 takes a free one.", low=0, high=65535)
    api_keys: tuple[str, ...] = ()
    """Keys that clients must show; none lets everybody in."""
    admin_key: str | None = None
    """The key of the admin routes; without one there are none."""
    share_cache: bool = False
    """Whether requests with different keys reuse each other's prefixes."""
    served_names: tuple[str, ...] = ()
    """Names of the model for clients; none is the model's own."""
    max_waiting: int = option(256, "Requests that may wait; more are refused with 429.", low=0)
    max_body_megabytes: int = option(8, "Largest request in megabytes.", low=1, high=4096)
    max_connections: int = option(1024, "Most open connections.", low=1)
    request_seconds: float = option(600.0, "Longest time for one request.", low=0.1, high=86400.0)
    receive_seconds: float = option(30.0, "Longest time for a client to send a request.", low=0.01, high=3600.0)
    send_seconds: float = option(
        60.0, "Longest time for a client to take a piece of the answer.", low=0.01, high=3600.0
    )
    drain_seconds: float = option(
        60.0, "Longest time for open requests to finish after SIGTERM.", low=0.0, high=86400.0
    )
    stall_seconds: float = option(
        120.0, "Longest time for one pass; while one takes longer, /ready answers 503.", low=0.01, high=86400.0
    )
    log_json: bool = False
    """Whether each line of the log is a JSON object."""
    log_level: str = "info"
    """The least important lines to log; ``debug`` may show what users wrote."""
    traces_endpoint: str | None = None
    """Where spans of requests are sent, by OTLP over HTTP; None sends none."""
    cors_origins: tuple[str, ...] = ()
    """Other origins whose pages may use the server."""

    @property
    def local(self) -> bool:
        """Whether only programs of this machine reach the server."""
        return self.host in LOCAL

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ConfigError: a value is out of bounds, or a key is empty or no ASCII text.
        """
        check_options(self)
        if self.log_level not in _LEVELS:
            raise ConfigError(f"there is no log level {self.log_level!r}; there are: {', '.join(_LEVELS)}")
        for key in (*self.api_keys, *([] if self.admin_key is None else [self.admin_key])):
            if not key or not key.isascii() or key != key.strip():
                raise ConfigError("server: a key must be ASCII text without spaces around it, and not empty")
