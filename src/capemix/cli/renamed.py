"""Options that were called otherwise once: they still work, and say their new name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import typer

from capemix.cli.moved import check_moved
from capemix.errors import InputError

_WORDS: Final = {"--upright": "--deskew", "--no-upright": "--no-deskew"}


@dataclass(frozen=True)
class OldName:
    """What a value of `--synthesizer` means now: one of these methods, by the rows, with these
    parts of its config."""

    methods: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The config as it would be typed."""
        return "".join(
            f" --{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            for name, value in self.config.items()
        )


SYNTHESIZERS: Final = {
    "mixing": OldName(("mixing",)),
    "moments": OldName(("class-gaussian", "image-clusters")),
    "moments+teacher": OldName(("image-clusters",), {"soft_labels": True}),
    "dp-mix": OldName(("mixing",), {"pool": "all", "label_noise": True}),
}


def old_name(synthesizer: str) -> OldName:
    """What `--synthesizer NAME` means now."""
    check_moved(synthesizer)
    if synthesizer not in SYNTHESIZERS:
        raise InputError(
            "--synthesizer",
            "is unknown",
            value=synthesizer,
            fix="use --method, of which `capemix methods` has a list",
        )
    return SYNTHESIZERS[synthesizer]


def note(old: str, new: str) -> None:
    """One line for a person, beside whatever the command prints."""
    typer.echo(f"capemix: note: {old} is now {new}", err=True)


def with_new_names(words: Sequence[str]) -> list[str]:
    """What was typed, with the options' names of today."""
    return list(_renamed(iter(words)))


def _renamed(words: Iterator[str]) -> Iterator[str]:
    before = ""
    for word in words:
        if word == "--":
            yield word
            yield from words
        elif word in _WORDS:
            note(word, _WORDS[word])
            yield _WORDS[word]
        elif (before, word) == ("--tune", "auto") or word == "--tune=auto":
            note("--tune auto", "--tune")
            yield from ("--tune",) if before != "--tune" else ()
        else:
            yield word
        before = word
