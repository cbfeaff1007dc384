"""``outrider serve``: serve a model over HTTP."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Annotated, Final

from cyclopts import Parameter

from outrider.cli import output
from outrider.cli.help import MORE_SERVER, SERVER
from outrider.cli.numbers import WHOLE
from outrider.cli.options import CACHE, SPECULATION, CacheFlags, ModelFlags, SpeculationFlags
from outrider.config import SchedulerConfig
from outrider.server.settings import ServerSettings

DEMO: Final = "SmolLM2-135M"
"""The demo's model, in the models folder."""
MODEL: Final = ModelFlags(model=DEMO)
_KEY, _ADMIN_KEY = "OUTRIDER_API_KEY", "OUTRIDER_ADMIN_KEY"
"""Environment variables: other users of a machine can read the arguments of its processes."""
_DEFAULT: Final = ServerSettings()
_LIMITS: Final = SchedulerConfig()


@Parameter(name="*", group=SERVER)
@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """Where the server listens, and who may use it."""

    host: Annotated[str, Parameter(metavar="ADDRESS")] = _DEFAULT.host
    """Address to listen on; 0.0.0.0 serves the network."""
    port: Annotated[int, WHOLE] = _DEFAULT.port
    """Port to listen on; 0 takes a free one."""
    api_key: Annotated[tuple[str, ...], Parameter(metavar="KEY", negative="", consume_multiple=False)] = ()
    """A key that clients must send; repeat it for more. Or set OUTRIDER_API_KEY."""
    admin_key: Annotated[str | None, Parameter(metavar="KEY")] = None
    """Turns the admin routes on. Or set OUTRIDER_ADMIN_KEY."""
    served_model_name: Annotated[tuple[str, ...], Parameter(metavar="NAME", negative="", consume_multiple=False)] = ()
    """Name for clients; repeat it for more. Default: --model's, without its folder."""
    max_running: Annotated[int, WHOLE, Parameter(alias="--max-num-seqs")] = _LIMITS.max_running
    """Most requests that run at a time."""
    mixed_prompt_rows: Annotated[int, WHOLE, Parameter(group=MORE_SERVER)] = _LIMITS.mixed_prompt_rows
    """Most prompt tokens in a pass that also decodes; 0: 12 on a CPU, 256 on a GPU."""
    draft_timeout: Annotated[float, Parameter(metavar="N", group=MORE_SERVER)] = _LIMITS.draft_timeout
    """Seconds until a hanging drafter is stopped; its requests go on without drafts. 0: never."""
    log_json: Annotated[bool, Parameter(negative="", group=MORE_SERVER)] = False
    """Log one JSON object per line."""
    log_level: Annotated[str, Parameter(metavar="NAME", group=MORE_SERVER)] = "info"
    """debug, info, warning or error; debug may show prompts."""
    max_waiting: Annotated[int, WHOLE, Parameter(group=MORE_SERVER)] = _DEFAULT.max_waiting
    """Most requests that wait; more get 429."""
    max_rows: Annotated[int, WHOLE, Parameter(alias="--max-num-batched-tokens", group=MORE_SERVER)] = _LIMITS.max_rows
    """Most tokens (rows) of one forward pass."""
    prefill_chunk: Annotated[int, WHOLE, Parameter(group=MORE_SERVER)] = _LIMITS.prefill_chunk
    """Most prompt tokens of one request per pass."""
    max_connections: Annotated[int, WHOLE, Parameter(group=MORE_SERVER)] = _DEFAULT.max_connections
    """Most open connections; more get 503."""
    max_body_megabytes: Annotated[int, WHOLE, Parameter(group=MORE_SERVER)] = _DEFAULT.max_body_megabytes
    """Largest request."""
    request_seconds: Annotated[float, Parameter(metavar="N", group=MORE_SERVER)] = _DEFAULT.request_seconds
    """Longest time for one request, waiting included; then 408."""
    receive_seconds: Annotated[float, Parameter(metavar="N", group=MORE_SERVER)] = _DEFAULT.receive_seconds
    """Longest time for a request to arrive; then 408."""
    send_seconds: Annotated[float, Parameter(metavar="N", group=MORE_SERVER)] = _DEFAULT.send_seconds
    """Longest time that a client may stop reading; then it is disconnected."""
    drain_seconds: Annotated[float, Parameter(metavar="N", group=MORE_SERVER)] = _DEFAULT.drain_seconds
    """Longest time that open requests get after SIGTERM."""
    stall_seconds: Annotated[float, Parameter(metavar="N", group=MORE_SERVER)] = _DEFAULT.stall_seconds
    """Longest time for one pass; while one takes longer, /ready answers 503."""
    share_cache: Annotated[bool, Parameter(negative="", group=MORE_SERVER)] = False
    """Let requests with different keys share prefixes."""
    traces_endpoint: Annotated[str | None, Parameter(metavar="URL", group=MORE_SERVER)] = None
    """Send traces there (OTLP over HTTP); needs OpenTelemetry."""
    cors_origin: Annotated[
        tuple[str, ...], Parameter(metavar="ORIGIN", negative="", consume_multiple=False, group=MORE_SERVER)
    ] = ()
    """Another site whose pages may use the server."""

    @property
    def settings(self) -> ServerSettings:
        """These flags, and the keys of the environment."""
        return ServerSettings(
            host=self.host,
            port=self.port,
            api_keys=self.api_key or tuple(filter(None, [os.environ.get(_KEY)])),
            admin_key=self.admin_key or os.environ.get(_ADMIN_KEY) or None,
            share_cache=self.share_cache,
            served_names=self.served_model_name,
            max_waiting=self.max_waiting,
            max_body_megabytes=self.max_body_megabytes,
            max_connections=self.max_connections,
            request_seconds=self.request_seconds,
            receive_seconds=self.receive_seconds,
            send_seconds=self.send_seconds,
            drain_seconds=self.drain_seconds,
            stall_seconds=self.stall_seconds,
            cors_origins=self.cors_origin,
            traces_endpoint=self.traces_endpoint,
            log_json=self.log_json,
            log_level=self.log_level,
        )

    @property
    def scheduler(self) -> SchedulerConfig:
        """These flags as the engine's limits."""
        return SchedulerConfig(
            max_running=self.max_running,
            max_rows=self.max_rows,
            prefill_chunk=self.prefill_chunk,
            mixed_prompt_rows=self.mixed_prompt_rows,
            draft_timeout=self.draft_timeout,
        )


_CONTEXTS: Final = 16
"""Whole contexts that the KV cache holds unless told otherwise; memory that no request touches is not used."""
SHOWN: Final = ServerFlags()
"""Defaults of the signature."""


def serve(
    *,
    model: ModelFlags = MODEL,
    speculation: SpeculationFlags = SPECULATION,
    cache: CacheFlags = CACHE,
    server: ServerFlags = SHOWN,
) -> int:
    """Serve a model over an OpenAI-compatible HTTP API, with a chat page at /. Without --model: the demo's.

    Args:
        model: which model, and how to run it.
        speculation: how to speculate.
        cache: options of the KV cache.
        server: where the server listens, and who may use it.
    """
    from outrider.cli.chat import banner  # takes a second; --help and bad flags should answer at once
    from outrider.server.run import bound, serve

    settings, scheduler, plan = server.settings, server.scheduler, speculation.chosen(model.model)
    pages = replace(cache.config, contexts=_CONTEXTS)
    model.use_threads()  # what is wrong with the flags comes before the port that is taken
    taken = bound(settings)
    llm = model.load(plan, pages, scheduler)

    def ready(address: str) -> None:
        output.tell(f"Outrider ready: {address}")
        output.tell(banner(llm, llm.name), style="dim")
        if not (settings.api_keys or settings.local):
            output.tell("Everybody who reaches this address may use the server; --api-key asks for a key.")

    serve(llm, settings, taken, ready)
    return 0
