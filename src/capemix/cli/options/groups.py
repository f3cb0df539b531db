"""Options in groups: a dataclass a group, whose fields are options and whose methods make values of
them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, get_type_hints

MORE: Final = "More about the rows and the budget"
SITES: Final = "Several sites, and who may collude"
PAPER: Final = "The paper's modes"


def with_options(*groups: Callable[..., Any]) -> Callable[[Callable[..., None]], Any]:
    """Give a command the options of these groups; what each makes of them comes first among the
    command's arguments."""
    shared = [inspect.signature(group).parameters.values() for group in groups]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[len(groups) :]
        hints: dict[str, Any] = {}
        for source, parameters in ((command, own), *zip(groups, shared, strict=True)):
            found = get_type_hints(source, include_extras=True)
            hints |= {p.name: found[p.name] for p in parameters}

        def run(**options: Any) -> None:
            made = [
                group(**{p.name: options.pop(p.name) for p in parameters})
                for group, parameters in zip(groups, shared, strict=True)
            ]
            command(*made, **options)

        every = sorted(
            [
                p.replace(kind=p.KEYWORD_ONLY, annotation=hints[p.name])
                for p in (*(p for group in shared for p in group), *own)
            ],
            key=lambda p: p.default is not p.empty,
        )
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: hints[p.name] for p in every}
        return run

    return decorate
