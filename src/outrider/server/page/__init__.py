"""The page that the server shows at ``/``: its files and the headers to send with them.

``index.html`` stands at ``/``, every other file at ``/page/<name>``.  The page names the server's routes relative to
its own address, so it works below any path of a proxy.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePath
from types import MappingProxyType
from typing import Final

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: its own files and nothing else, so a model's output can never run as a script."""
HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # ask with the ETag each time: a new version of the server shows its own page
    }
)
"""Headers of every file of the page, beside its ``Content-Type`` and ``ETag``."""
_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """One file of the page."""

    body: bytes
    media_type: str
    etag: str
    """A strong entity tag with its quotes: it changes with the body."""


@functools.cache
def page_files() -> Mapping[str, PageFile]:
    """Read the page's files, once.

    Returns:
        The files by name, such as ``index.html``.
    """
    found = {}
    for path in resources.files(__name__).iterdir():
        media_type = _MEDIA_TYPES.get(PurePath(path.name).suffix)
        if media_type is not None:
            body = path.read_bytes()
            found[path.name] = PageFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return MappingProxyType(found)
