"""Elements of a page. Whatever is no `Html` is text, and is escaped: a column or a category may be
called what it likes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

Part = str | int | float | None
"""A part of an element: `Html` as it stands, any other text escaped, None left out."""

_EMPTY: Final = frozenset({"img", "meta", "br", "hr", "path", "line", "rect", "circle"})


class Html(str):
    """Text that is HTML already. Only this module makes it of other text."""

    __slots__ = ()


def text(part: Part) -> Html:
    """Escaped, unless it is HTML. Characters that no document may hold are left out."""
    if isinstance(part, Html):
        return part
    said = "" if part is None else str(part)
    kept = "".join(c for c in said if c in "\t\n" or (c >= " " and not "\x7f" <= c <= "\x9f"))
    # a lone surrogate, which a name in a JSON file may hold, is no character that can be written
    return Html(escape(kept.encode("utf-8", "replace").decode("utf-8"), quote=True))


def join(parts: Iterable[Part], between: str = "") -> Html:
    """One after the other; ``between`` is ours, and stands as it is."""
    return Html(between.join(text(part) for part in parts))


def tag(name: str, /, *parts: Part, **attributes: Part) -> Html:
    """An element. Of an attribute's name a last _ is left out, and others are hyphens; one that is
    None is left out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY:
        return Html(f"<{name}{said}/>" if name != "meta" else f"<{name}{said}>")
    return Html(f"<{name}{said}>{join(parts)}</{name}>")


def section(level: int, title: str, *parts: Part, key: str, **attributes: Part) -> Html:
    """A section that its heading names."""
    heading = tag(f"h{level}", title, id=key)
    return tag("section", heading, *parts, aria_labelledby=key, **attributes)


def table(
    caption: str,
    head: Sequence[Part],
    rows: Iterable[Sequence[Part]],
    *,
    numbers: Sequence[int] = (),
    key: str = "",
) -> Html:
    """The first cell of a row is its header. ``numbers`` are the columns that are aligned right."""

    def of(name: str, place: int, part: Part, **more: Part) -> Html:
        return tag(name, part, class_="n" if place in numbers else None, **more)

    top = tag("tr", *(of("th", at, part, scope="col") for at, part in enumerate(head)))
    body = [
        tag(
            "tr",
            *(
                of("td", at, part) if at else of("th", at, part, scope="row")
                for at, part in enumerate(row)
            ),
        )
        for row in rows
    ]
    made = tag(
        "table", tag("caption", caption), tag("thead", top), tag("tbody", *body), class_=key or None
    )
    # A wide table is scrolled by itself, by keyboard too: the page never moves sideways.
    return tag("div", made, class_="wide", role="region", aria_label=caption, tabindex=0)


def bullets(items: Iterable[Part]) -> Html:
    return tag("ul", *(tag("li", item) for item in items))


def details(summary: str, *parts: Part) -> Html:
    return tag("details", tag("summary", summary), *parts)
