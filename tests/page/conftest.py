"""A browser, the scripted server, and a page that must not complain."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from fake_server import FakeServer, serving
from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE = 20_000
"""Milliseconds after which something will not happen; a busy machine is slow."""
expect.set_options(timeout=PATIENCE)
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The Chromium that ``OUTRIDER_CHROMIUM`` names or the path has, or else Playwright's own."""
    found = os.environ.get("OUTRIDER_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with serving() as server:
        yield server


@pytest.fixture
def complaints() -> list[str]:
    """What the browser's console said; empty at the end of a test that opens a page, unless the test empties it."""
    return []


@pytest.fixture
def open_page(browser: Browser, fake: FakeServer, complaints: list[str]) -> Iterator[Callable[..., Page]]:
    """Opens the page in a context of its own; keywords are Playwright's for a context."""
    contexts = []

    def opened(**options: object) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(fake.url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    return open_page()
