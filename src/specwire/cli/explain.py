from __future__ import annotations

import click

from specwire.cli import _options as options
from specwire.errors import OK


@click.command(short_help="Explain a cause or a probe: symptom, cause, fix.")
@click.argument("name", required=False, metavar="[ID]")
@options.as_json
def command(name: str | None, as_json: bool) -> int:
    """Explain a cause or a probe from its own docstring; without an ID, list them all.

    \b
    Example: specwire explain boundary-offset
             specwire explain draft-input --json
    """
    from dataclasses import asdict

    from specwire.explain import page, pages

    if name is not None:
        found = page(name)
        if as_json:
            options.emit({"schema": "specwire.explain/1", **asdict(found)})
        else:
            options.show(found.text())
        return OK
    known = pages()
    if as_json:
        options.emit({"schema": "specwire.explain/1", "pages": [asdict(each) for each in known.values()]})
        return OK
    width = max(map(len, known))
    for each in known.values():
        options.show(f"{each.id:{width}}  {each.kind:5}  {each.summary}")
    return OK
