"""How a text file is written: its separator, encoding, quotes, and the marks in its numbers.

It is declared, as everything that a table's schema says. A reader that guessed it would guess from
the rows, and one record could change what is guessed, and with it how all others are read. By a
declared dialect a line, and then a cell, is read by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from capemix.errors import InputError

SEPARATORS: Final = {"comma": b",", "semicolon": b";", "tab": b"\t", "pipe": b"|"}

_MARKS: Final = {
    "none": "",
    "point": ".",
    "comma": ",",
    "space": " \u00a0\u202f",  # plain, and the two that keep a number on one line
    "apostrophe": "'\u2019",
}


@dataclass(frozen=True)
class Dialect:
    """How a text file is written. Without one it is as RFC 4180 and plain notation have it.

    ``quotes``: "many-lines": a cell in quotes may have line ends in it, and a quote that stands
    elsewhere has the file refused; "one-line": every line is a record, and one whose quotes do not
    close has no value; "none": every line is a record, and a quote is a character as any other.
    ``trailing``: a separator also ends each line. ``decimal`` and ``thousands`` are the marks in
    numbers: by "comma" and "point", 1.234,5 is one.
    """

    separator: Literal["comma", "semicolon", "tab", "pipe"] = "comma"
    trailing: bool = False
    encoding: Literal["utf-8", "utf-16", "latin-1"] = "utf-8"
    quotes: Literal["many-lines", "one-line", "none"] = "many-lines"
    decimal: Literal["point", "comma"] = "point"
    thousands: Literal["none", "point", "comma", "space", "apostrophe"] = "none"

    def __post_init__(self) -> None:
        if self.decimal == self.thousands:
            raise InputError(
                "file",
                "has one mark for decimals and for thousands",
                value=self.decimal,
                fix='say which it is, and "none" for thousands without a mark',
            )

    @property
    def number(self) -> str:
        """The numbers that have these marks, as a regular expression."""
        point, between = f"[{_MARKS[self.decimal]}]", _MARKS[self.thousands]
        grouped = f"|[0-9]{{1,3}}([{between}][0-9]{{3}})+" if between else ""
        whole = f"([0-9]+{grouped})"
        return rf"^[+-]?({whole}({point}[0-9]*)?|{point}[0-9]+)([eE][+-]?[0-9]+)?$"

    def as_words(self, column: Any) -> Any:
        """An Arrow array of text with its numbers in plain notation; other cells as they are."""
        import pyarrow.compute as pc

        numbers, has_marks = self._numbers(column)
        return pc.if_else(has_marks, numbers, column)

    def as_numbers(self, column: Any) -> Any:
        """The same, but null where a cell would be a number by other marks alone."""
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers, has_marks = self._numbers(column)
        otherwise = _matches(pc.utf8_trim_whitespace(column), USUAL.number)
        none = pa.scalar(None, column.type)
        return pc.if_else(has_marks, numbers, pc.if_else(otherwise, none, column))

    def _numbers(self, column: Any) -> tuple[Any, Any]:
        """Each cell as it is if it is a number of these marks, in plain notation; and whether."""
        import pyarrow.compute as pc

        trimmed = pc.utf8_trim_whitespace(column)
        bare = trimmed
        if self.thousands != "none":
            bare = pc.replace_substring_regex(bare, f"[{_MARKS[self.thousands]}]", "")
        if self.decimal != "point":
            bare = pc.replace_substring(bare, _MARKS[self.decimal], ".")
        return bare, _matches(trimmed, self.number)

    def __str__(self) -> str:
        """In words, for its owner."""
        ends = ", one also at the end of each line" if self.trailing else ""
        quotes = {
            "many-lines": "a cell may stand in quotes and have several lines",
            "one-line": "every line is a record, and a cell may stand in quotes",
            "none": "every line is a record, and quotes are characters as any others",
        }[self.quotes]
        between, point = _MARKS[self.thousands][:1], _MARKS[self.decimal]
        return (
            f"text in {self.encoding.upper()}, with a {self.separator} between cells{ends};"
            f" {quotes}; numbers as 1{between}234{point}5"
        )


def _matches(column: Any, pattern: str) -> Any:
    import pyarrow.compute as pc

    return pc.fill_null(pc.match_substring_regex(column, pattern), False)


USUAL: Final = Dialect()
"""How a text file is read whose dialect nobody declares."""
