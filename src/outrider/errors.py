"""The errors a user can cause, each one clear sentence that names the culprit and the way out."""


class OutriderError(Exception):
    """Base of every error Outrider raises on purpose; the command line turns it into exit code 2."""


class ConfigError(OutriderError, ValueError):
    """An option or sampling parameter has a value that cannot be served; the message names the field."""


class ModelError(OutriderError):
    """A model cannot be found, read or served; the message names the file or the architecture."""


class RequestError(OutriderError, ValueError):
    """One request cannot be served (empty prompt, prompt past the context); other requests go on."""


class NumericsError(OutriderError, ArithmeticError):
    """The target produced logits that are not numbers; the request that met them is ended."""


class TrainingError(OutriderError):
    """A training cannot begin or go on; the message says what to do, and nothing trained so far is lost."""


def counted(count: int, noun: str) -> str:
    """A number and what it counts, as ``1 prompt`` and ``2 prompts``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def cause(error: BaseException) -> str:
    """Why something failed, for a sentence that names the file already."""
    return str(getattr(error, "strerror", None) or error)


def one_line(error: BaseException) -> str:
    """Shorten a library's message to one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
