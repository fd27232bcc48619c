"""A tree's `--config FILE`: its keys as the words that the tree makes of them, before its parser sees any."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specwire.errors import said
from specwire.outgoing import know_text
from specwire.preflight.options import Merger, Option, Options, Refusal
from specwire.preflight.shell import is_open, shown
from specwire.regular import read_text

TEXT = 256 * 1024
LIMIT = 10_000  # values of a file, those of aliases counted each time


class _Stopped(Exception):
    """Why the engine would stop over its config file, as `refusal`."""

    def __init__(self, why: str, fix: str, word: str = "--config") -> None:
        self.refusal = Refusal(why, fix, word)


def merged(words: list[str], options: Options, folder: Path | None) -> tuple[list[str], list[Refusal], list[str]]:
    """The engine's words with those of its config file in front, why it would be refused, and what was not read."""
    if "--config" not in words or options.merger is None:
        return words, [], []
    place = words.index("--config")
    rest = [*words[:place], *words[place + 2 :]]
    try:
        if words.count("--config") > 1:
            raise _Stopped("Multiple config files specified", "give --config once")
        if place == len(words) - 1:
            raise _Stopped("no config file after --config", "give --config a file")
        name = words[place + 1]
        if is_open(name):
            return rest, [], [f"--config {shown(name)}"]
        path = Path(name).expanduser() if folder is None or Path(name).is_absolute() else folder / name
        if path.suffix.lower() not in (".yaml", ".yml"):
            raise _Stopped(f"--config {name}: the engine takes .yaml or .yml alone", "rename the file")
        if not _is_file(path):
            return rest, [], [f"--config {name} (no such file here)"]
        made, refusals = _words(_read(path), options, options.merger, path.name)
        return [*made, *rest], refusals, []
    except _Stopped as error:
        return rest, [error.refusal], []


def _read(path: Path) -> Mapping[Any, Any]:
    import yaml

    try:
        text = read_text(path)
        know_text(text)
        if len(text) > TEXT:
            raise _Stopped(f"{path} has more than {TEXT:,} characters", "give a smaller file")
        document = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        why = " ".join(str(error).split()) if isinstance(error, yaml.YAMLError) else said(error)
        raise _Stopped(f"{path} cannot be read as YAML: {why}", "correct the file") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise _Stopped(f"{path} holds no mapping of keys to values", "write KEY: VALUE on each line")
    if _size(document, LIMIT) > LIMIT:
        raise _Stopped(f"{path} holds more than {LIMIT:,} values", "give a smaller file")
    return document


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _size(value: Any, most: int) -> int:
    """How many values there are in a document; beyond `most` it is not counted to the end."""
    count, waiting = 0, [value]
    while waiting and count <= most:
        one = waiting.pop()
        count += 1
        waiting += list(one.values()) if isinstance(one, dict) else one if isinstance(one, list) else []
    return count


def _words(document: Mapping[Any, Any], options: Options, merger: Merger, name: str) -> tuple[list[str], list[Refusal]]:
    words: list[str] = []
    refusals = []
    refused = _unsupported(options, merger) if merger.strict else {}
    flags = {key for option in options.listed if option.made_by == "_StoreTrueAction" for key in _keys(option, merger)}
    for key, value in document.items():
        plain = key.replace("-", "_") if isinstance(key, str) else None
        if plain is None:
            refusals.append(Refusal(f"{name} has the key {key!r}, which is no text", "write option names as keys"))
        elif plain in refused:
            option = refused[plain]
            why = f"{name}: Unsupported config option '{plain}' with action '{option.made_by}'"
            fix = "take it out" if value is False else f"give it on the command line: {option.names[0]}"
            refusals.append(Refusal(why, fix, f"--{key}"))
        elif isinstance(value, bool):
            alone = merger.true_as == "flag" or (merger.true_as == "known" and plain in flags)
            words += ([f"--{key}"] if value else []) if alone else [f"--{key}", str(value).lower()]
        elif isinstance(value, list):
            words += [f"--{key}", *map(str, value)] if value else []
        elif isinstance(value, dict) and merger.nested:
            try:
                words += [f"--{key}", json.dumps(value)]
            except (TypeError, ValueError, RecursionError) as error:
                refusals.append(Refusal(f"{name}: {key}: {error}", "write what JSON can hold", f"--{key}"))
        else:
            words += [f"--{key}", str(value)]
    return words, refusals


def _keys(option: Option, merger: Merger) -> set[str]:
    """The keys that mean an option: its destination, and in later releases each of its long names."""
    names = {name[2:].replace("-", "_") for name in option.names if name.startswith("--")}
    return {option.name} | (names if merger.spellings else set())


def _unsupported(options: Options, merger: Merger) -> dict[str, Option]:
    """The keys that this tree does not take in a config file, and the option behind each."""

    def supported(option: Option) -> bool:
        if option.made_by in ("_StoreAction", "_StoreTrueAction"):
            return True
        return merger.spellings and option.nargs is None

    usable = {key for option in options.listed if supported(option) for key in _keys(option, merger)}
    return {
        key: option
        for option in options.listed
        if not supported(option) and "--config" not in option.names
        for key in _keys(option, merger)
        if not (merger.spellings and key in usable)
    }
