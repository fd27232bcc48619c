"""Defaults of options from `[tool.specwire.COMMAND]` in the nearest pyproject.toml, for what would be typed each time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from specwire.errors import SpecwireError, said
from specwire.regular import read_text

FILE = "pyproject.toml"
# A file that came with a checkout names nothing that is run, written or sent to, and takes no guard away.
NEVER = ("env", "force", "html", "markdown", "out", "overlay", "python", "url")


def defaults(commands: click.Group, ctx: click.Context, named: str | None) -> dict[str, Any]:
    """For click's `default_map`: the named command's own table, by parameter.

    Raises SpecwireError for a table or a key that is no command or no option of it, and for one of `NEVER`.
    """
    found = _table(Path.cwd())
    if found is None or named is None:
        return {}
    file, table = found
    known = commands.list_commands(ctx)
    if strange := [key for key in table if key not in known]:
        raise SpecwireError(f"{file}: [tool.specwire.{strange[0]}] is for no command. There are: {', '.join(known)}.")
    return dict(_named(file, commands.get_command(ctx, named), named, table.get(named, {})))


def _named(file: Path, command: click.Command | None, name: str, table: Any) -> Iterator[tuple[str, Any]]:
    """Each key of a table as the parameter that its option sets; one level down for a group's commands."""
    where = f"{file}: [tool.specwire.{name}]"
    if not isinstance(table, dict):
        raise SpecwireError(f"{where} is no table")
    options = {
        flag.lstrip("-"): param for param in (command.params if command else ()) for flag in param.opts
        if isinstance(param, click.Option)
    }  # fmt: skip
    for key, value in table.items():
        if isinstance(value, dict) and isinstance(command, click.Group) and key in command.commands:
            yield key, dict(_named(file, command.commands[key], f"{name}.{key}", value))
            continue
        flag = key.replace("_", "-")
        if flag in NEVER:
            raise SpecwireError(f"{where}: --{flag} is never taken from a file. Type it.")
        if flag not in options or options[flag].name is None:
            raise SpecwireError(f"{where}: {key!r} is no option of `specwire {name.replace('.', ' ')}`; see its --help")
        yield options[flag].name or "", _checked(f"{where}: {key}", options[flag], value)


def _checked(where: str, option: click.Option, value: Any) -> Any:
    """Kinds that click would turn into something else than was meant: a list for one value, a word for many."""
    if option.multiple is not isinstance(value, list):
        raise SpecwireError(f"{where} takes {'a list' if option.multiple else 'one value'}, not {value!r}")
    if option.is_flag and not isinstance(value, bool):
        raise SpecwireError(f"{where} takes true or false, not {value!r}")
    return value


def _table(start: Path) -> tuple[Path, dict[str, Any]] | None:
    """The nearest file upwards that has such a table, up to where the repository ends."""
    for folder in (start, *start.parents):
        file = folder / FILE
        if file.is_file():
            try:
                text = read_text(file)
                if "tool.specwire" in text:
                    import tomllib

                    table = tomllib.loads(text)["tool"]["specwire"]
                    return (file, table) if isinstance(table, dict) else None
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise SpecwireError(f"{file}: cannot be read for [tool.specwire] ({said(error)})") from error
        if (folder / ".git").exists():
            return None
    return None
