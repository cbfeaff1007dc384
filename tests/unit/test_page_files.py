"""The page's files: complete, of one origin, and within its own Content-Security-Policy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import outrider.server.page
from outrider.server.page import CONTENT_SECURITY_POLICY, HEADERS, page_files

FOLDER = Path(outrider.server.page.__file__).parent
TEXTS = {name: file.body.decode() for name, file in page_files().items()}
LONGEST = 400
"""Lines of a file of the page."""


def directives(policy: str) -> dict[str, list[str]]:
    """The sources of each directive of a policy."""
    parts = [part.split() for part in policy.split(";")]
    return {name: sources for name, *sources in parts}


def named_files(text: str) -> set[str]:
    """The names of the page's files that one of them loads."""
    in_html = re.findall(r'(?:src|href)="page/([^"]+)"', text)
    in_modules = re.findall(r'from "\./([^"]+)"', text)
    return {*in_html, *in_modules}


def test_every_file_of_the_folder_is_served_with_its_type() -> None:
    there = {path.name for path in FOLDER.iterdir() if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert there == set(page_files())
    types = {name: file.media_type.partition(";")[0] for name, file in page_files().items()}
    assert types["index.html"] == "text/html"
    assert types["page.css"] == "text/css"
    assert types["page.js"] == "text/javascript"


def test_a_tag_tells_bodies_apart() -> None:
    tags = [file.etag for file in page_files().values()]
    assert len(set(tags)) == len(tags)
    assert all(re.fullmatch(r'"[0-9a-f]{32}"', tag) for tag in tags)


def test_everything_that_is_loaded_is_there_and_everything_there_is_loaded() -> None:
    loaded, ahead = {"index.html"}, ["index.html"]
    while ahead:
        new = named_files(TEXTS[ahead.pop()]) - loaded
        loaded |= new
        ahead += new
    assert loaded == set(TEXTS)


def test_the_policy_allows_the_pages_own_files_and_no_more() -> None:
    policy = directives(CONTENT_SECURITY_POLICY)
    assert policy.pop("default-src") == ["'none'"]
    assert {name: policy[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
    allowed = {source for sources in policy.values() for source in sources}
    assert allowed == {"'self'", "'none'", "data:"}
    for directive in ("script-src", "style-src", "connect-src", "img-src"):
        assert "'self'" in policy[directive], directive
    assert HEADERS["Content-Security-Policy"] == CONTENT_SECURITY_POLICY


FORBIDDEN = {
    "another host": re.compile(r"(?:https?|wss?):?//(?!www\.w3\.org/2000/svg\")|[\"'(]//"),
    "a script in the page": re.compile(r"<script(?![^>]*\ssrc=)|javascript:|\son\w+=\"|\bimport\(", re.I),
    "a style in the page": re.compile(r"\sstyle=\"|setAttribute\(\s*[\"']style", re.I),
    "text read as HTML": re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc"),
    "text read as a program": re.compile(r"\beval\(|new Function|setTimeout\(\s*[\"'`]"),
}


def offences(text: str) -> list[str]:
    """What a file does that the policy forbids, or that could let a model's output become part of the page."""
    return [what for what, pattern in FORBIDDEN.items() if pattern.search(text)]


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_no_file_needs_what_the_policy_forbids(name: str) -> None:
    text = TEXTS[name]
    if name.endswith(".svg"):
        text = re.sub(r"<style>.*?</style>", "", text, flags=re.S)  # a picture of its own, without the page's policy
    assert offences(text) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('<link href="https://a.example/x.css">', "another host"),
        ('<img src="//a.example/x.png">', "another host"),
        ("<script>go()</script>", "a script in the page"),
        ('<button onclick="go()">', "a script in the page"),
        ('<p style="color: red">', "a style in the page"),
        ("element.innerHTML = text", "text read as HTML"),
        ('setTimeout("go()", 1)', "text read as a program"),
    ],
)
def test_an_offence_is_seen(text: str, what: str) -> None:
    assert what in offences(text)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_files_stay_small(name: str) -> None:
    assert TEXTS[name].count("\n") <= LONGEST


def test_ids_that_scripts_ask_for_are_in_the_page() -> None:
    there = re.findall(r'\sid="([^"]+)"', TEXTS["index.html"])
    assert len(set(there)) == len(there)
    asked = {name for text in TEXTS.values() for name in re.findall(r'(?:byId|fromTemplate)\("([^"]+)"\)', text)}
    assert asked - set(there) == set()
    referred = re.findall(r'(?:for|aria-labelledby|aria-describedby|aria-controls)="([^"]+)"', TEXTS["index.html"])
    assert set(referred) - set(there) == set()
