"""The frame of a page: one file, with its style in it. It loads nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from capemix.pages.html import Html, Part, bullets, join, tag

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a browser lets this page load: its own style, and images that are in it."""


def page(
    title: str, lead: Sequence[Part], contents: Sequence[tuple[str, str]], *parts: Part
) -> str:
    """``contents`` are keys of sections with their titles."""
    style = files("capemix.pages").joinpath("style.css").read_text("utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style)),
    )
    links = bullets(tag("a", said, href=f"#{key}") for key, said in contents)
    body = tag(
        "body",
        tag("a", "To the content", class_="skip", href="#content"),
        tag("header", tag("h1", title), *lead),
        tag("nav", links, aria_label="Contents"),
        tag("main", *parts, id="content"),
        tag("footer", tag("p", "Made by capemix. This file loads nothing and runs no script.")),
    )
    return join([Html("<!doctype html>\n"), tag("html", head, body, lang="en"), Html("\n")])
