"""Errors that a user can cause; each message is one sentence that names the cause and the way out."""


class OutriderError(Exception):
    """Base class of all errors that Outrider raises on purpose; the command line exits with code 2.

    Args:
        message: one sentence.
        param: the parameter or option that is wrong, for programs; None if it is no single one.
        code: OpenAI's word for the kind of error, for programs; None if there is none.
    """

    def __init__(self, message: str = "", *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class ConfigError(OutriderError, ValueError):
    """An option or sampling parameter has a bad value; the message names the field."""


class ModelError(OutriderError):
    """A model cannot be found, read or run; the message names the file or the architecture."""


class RequestError(OutriderError, ValueError):
    """One request cannot be served, such as an empty prompt or one past the context; others continue."""


class NumericsError(OutriderError, ArithmeticError):
    """The target produced NaN or infinite logits; the request ends."""


class TrainingError(OutriderError):
    """A training cannot start or continue; the message says what to do, and nothing trained so far is lost."""


def counted(count: int, noun: str) -> str:
    """A number with its noun, as ``1 prompt`` and ``2 prompts``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def cause(error: BaseException) -> str:
    """The reason of an error, for a message that already names the file."""
    return str(getattr(error, "strerror", None) or error)


def one_line(error: BaseException) -> str:
    """A library's error message on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
