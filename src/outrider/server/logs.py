"""Logs: one line per event, for people or as JSON, and never what a user wrote.

A line about a request consists of numbers and of words that the server chose.  Lines of other code pass a filter: it
takes out keys, query strings and the messages of exceptions, which may quote a prompt.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final

from outrider.errors import ModelError, counted
from outrider.metrics import SpeculationStats
from outrider.requests.request import Request

_log: Final = logging.getLogger("outrider.server")
_WORD: Final = re.compile(r"[\w .,:/{}*+-]{0,200}")
"""What the server's own words are made of."""
_KEYS: Final = re.compile(
    r"(?i)(bearer\s+|\b(?:api[_-]?key|x-api-key|authorization|token|password|secret)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+"
    r"|\bsk-[\w-]{6,}"
)
_QUERY: Final = re.compile(r"(/[^\s?\"]*)\?[^\s\"]*")
_HIDDEN: Final = "[hidden]"
_HARMLESS: Final = (OSError, ModelError)
"""Exceptions whose messages speak of files and addresses."""
_ACCESS: Final = "uvicorn.access"


@dataclass(frozen=True)
class RequestLine:
    """What the log says of one HTTP request; None and 0 are left out."""

    request_id: str
    method: str
    route: str
    """The route's pattern, never the path that a client sent."""
    status: int
    seconds: float
    code: str | None = None
    """The error's code."""
    engine_ids: str = ""
    """The engine's names of the outputs, which are numbered one after another: the first and the last."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str = ""
    algorithm: str = ""
    rounds: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    acceptance_rate: float = 0.0
    accepted_length: float = 0.0

    def with_outputs(self, outputs: Iterable[Request], algorithm: str) -> RequestLine:
        """The line with the figures of the outputs.

        Args:
            outputs: the call's requests; empty if it never reached the engine.
            algorithm: the server's own method, for requests that no method has served.
        """
        requests, stats = list(outputs), SpeculationStats()
        for request in requests:
            stats.merge(request.stats)
        prompts = [request for request in requests if request.choice == 0]
        reasons = dict.fromkeys(request.finish_reason.value for request in requests if request.finish_reason)
        return replace(
            self,
            engine_ids=" to ".join(dict.fromkeys(request.id for request in requests[:1] + requests[-1:])),
            prompt_tokens=sum(request.prompt_length for request in prompts),
            cached_tokens=sum(request.cached_tokens or 0 for request in prompts),
            output_tokens=sum(len(request.inputs) - request.prompt_length for request in requests),
            finish_reason=" ".join(reasons),
            algorithm=" ".join(dict.fromkeys(request.method or algorithm for request in requests)),
            rounds=stats.rounds,
            drafted=sum(stats.drafted),
            tested=sum(stats.tested),
            accepted=sum(stats.accepted),
            acceptance_rate=round(stats.acceptance_rate, 4),
            accepted_length=round(stats.mean_accepted_length, 4),
        )

    @property
    def figures(self) -> dict[str, Any]:
        """Names and values, without empty ones; a text that is none of the server's words is hidden."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: _harmless(value) for name, value in values.items() if value}

    def __str__(self) -> str:
        """The line for people."""
        parts = [f"{self.method} {_harmless(self.route)} {self.status} in {self.seconds:.3f} s"]
        if self.code:
            parts.append(_harmless(self.code))
        if self.engine_ids:
            cached = f" ({self.cached_tokens} cached)" if self.cached_tokens else ""
            parts.append(f"{counted(self.prompt_tokens, 'prompt token')}{cached}, {self.output_tokens} of output")
            parts.append(self.finish_reason or "cancelled")
        if self.tested:
            drafts = f"{self.accepted} of {counted(self.tested, 'tested draft')} accepted"
            parts.append(f"{self.algorithm}: {drafts}, {self.accepted_length:.2f} tokens per round")
        return " · ".join([*parts, *([_harmless(self.request_id)] if self.request_id else [])])


def log_request(line: RequestLine) -> None:
    """Log a request that was answered: what the server did wrong as an error, the rest as information."""
    level = logging.ERROR if line.status >= 500 else logging.INFO
    _log.log(level, "%s", line, extra={"figures": line.figures})


def log_config(*, as_json: bool = False, level: str = "info", keys: Sequence[str] = ()) -> dict[str, Any]:
    """Make a configuration for :func:`logging.config.dictConfig`, uvicorn's loggers included.

    Args:
        as_json: one JSON object per line, for log collectors; otherwise lines for people.
        level: ``debug``, ``info``, ``warning`` or ``error``.  Only ``debug`` shows the messages of exceptions, which
            may quote what users wrote.
        keys: the server's API keys, which no line may hold.
    """
    formatter = {"()": JsonLines if as_json else PlainLines, "keys": tuple(keys), "messages": level == "debug"}
    plain = {"handlers": [], "propagate": True}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": formatter},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "outrider": {**plain, "level": level.upper()},
            "uvicorn": {**plain, "level": level.upper()},
            "uvicorn.error": {**plain, "level": level.upper()},
            # Requests have lines of our own, with their figures.
            _ACCESS: {**plain, "level": "WARNING"},
        },
    }


class _Lines(logging.Formatter):
    """What both forms share: no line holds a key, a query string, or the message of an exception.

    Args:
        keys: texts that no line may hold.
        messages: whether messages of exceptions stay.
    """

    def __init__(self, keys: Sequence[str] = (), *, messages: bool = False) -> None:
        super().__init__()
        self._keys, self._messages = [key for key in keys if key], messages

    def text(self, record: logging.LogRecord) -> str:
        """The message without what it may not hold; the record stays as it is, for other handlers."""
        args = record.args if self._messages else _without_messages(record.args)
        try:
            text = str(record.msg) % args if args else str(record.msg)
        except (TypeError, ValueError, KeyError):  # a broken line of somebody else's must not end a request
            text = str(record.msg)
        return self._discreet(text)

    def trace(self, record: logging.LogRecord) -> str:
        """Where an exception came from; empty without one."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return ""
        if self._messages:
            return self._discreet("".join(traceback.format_exception(error)).rstrip())
        return "\n".join(_places(error, set()))

    def _discreet(self, text: str) -> str:
        text = _KEYS.sub(lambda match: (match[1] or "") + _HIDDEN, _QUERY.sub(r"\1", text))
        for key in self._keys:
            text = text.replace(key, _HIDDEN)
        return text


class PlainLines(_Lines):
    """One line for people: time, level, message; what an exception adds is indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a line."""
        text = " ".join(self.text(record).splitlines())
        line = f"{_time(record):%Y-%m-%d %H:%M:%S} {record.levelname.lower():7} {text}"
        return "\n    ".join([line, *self.trace(record).splitlines()])


class JsonLines(_Lines):
    """One JSON object per line: time, level, logger, message, and the figures of a request."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a line."""
        found: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.text(record).strip(),
        }
        if trace := self.trace(record):
            found["exception"] = trace
        return json.dumps(found | record.__dict__.get("figures", {}))


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _harmless(value: Any) -> Any:
    """A value of a line, or a note where a text is none of the server's words."""
    return _HIDDEN if isinstance(value, str) and not _WORD.fullmatch(value) else value


def _without_messages(args: Any) -> Any:
    """Arguments of a log call with the types of exceptions in the place of their messages."""
    if isinstance(args, Mapping):
        return {name: _named(value) for name, value in args.items()}
    return tuple(map(_named, args)) if isinstance(args, tuple) else args


def _named(value: object) -> object:
    hides = isinstance(value, BaseException) and not isinstance(value, _HARMLESS)
    return f"{type(value).__name__} (its message is shown with --log-level debug)" if hides else value


def _places(error: BaseException, seen: set[int]) -> list[str]:
    """An exception, its parts and its causes, each as its type and the places that it passed, without messages."""
    if id(error) in seen:
        return []
    seen.add(id(error))
    frames = traceback.extract_tb(error.__traceback__)
    found = [type(error).__name__, *(f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)]
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    for other in (*parts, *([] if cause is None else [cause])):
        found += _places(other, seen)
    return found
