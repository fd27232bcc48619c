"""A launch of SGLang: as typed, from a file, or of a running process, read against the tree's own options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError, said
from specwire.preflight.options import Option, Options
from specwire.preflight.shell import split_commands
from specwire.regular import read_bytes, read_text

_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
_FILE = re.compile(r"[\w./~@+-]+\.(pt|pth|bin|safetensors|json|jinja|ya?ml|txt|pem|crt|key)")
_WRITTEN = re.compile("log|dump|trace|output|export|profile")
_MODULE = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")


@dataclass(frozen=True)
class Launch:
    """What was given, and nothing that was not. `words` are the engine's own arguments, `unknown` those
    that this tree has no option for; relative paths are relative to `folder`."""

    source: str
    words: tuple[str, ...]
    options: Options
    values: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    folder: Path | None = None

    def get(self, name: str) -> Any:
        """The value given for an option, by any of its names without the dashes; None when it was not given."""
        option = self.options.by_name.get(f"--{name}")
        return self.values.get(option.name) if option else None

    def number(self, name: str) -> int | None:
        value = self.get(name)
        return value if type(value) is int else None

    def path(self, name: str) -> Path | None:
        """The option's value as a directory on this machine; None when it is none (a hub's name, say)."""
        value = self.get(name)
        if not isinstance(value, str):
            return None
        path = self._here(value)
        return path if path.is_dir() else None

    def absent(self) -> dict[str, str]:
        """Options that name a file to read which is not on this machine, and the file. One three folders deep may
        be a hub's."""
        return {
            name: value
            for name, value in self.values.items()
            if isinstance(value, str)
            and _FILE.fullmatch(value)
            and not _WRITTEN.search(name)
            and (value.count("/") < 2 or value[0] in "./~")
            and not self._here(value).exists()
        }

    def _here(self, value: str) -> Path:
        path = Path(os.path.expanduser(value))
        return path if path.is_absolute() or self.folder is None else self.folder / path


def typed_launch(text: str, options: Options, source: str = "the launch command") -> Launch:
    """A launch as typed: a whole command line or only the engine's arguments.

    Raises SpecwireError when it holds no launch of SGLang, or more than one.
    """
    commands = split_commands(text, source)
    if commands and all(not _is_launch(words) for words in commands):
        bare = [word for words in commands for word in words]
        if bare and bare[0].startswith("-"):
            return _launch(source, bare, {}, options)
    found = [words for words in commands if _is_launch(words)]
    if len(found) != 1:
        raise SpecwireError(
            f"{source} holds {len(found) or 'no'} launch{'es' if len(found) != 1 else ''} of SGLang (python -m "
            "sglang.launch_server ..., sglang serve ..., or arguments that begin with --): give exactly one."
        )
    words = found[0]
    start = _start(words)
    before = commands[: commands.index(words)]
    environment = _assignments([word for command in before if command[0] == "export" for word in command[1:]])
    environment |= _assignments(words[:start])
    return _launch(source, _served(words, start), environment, options)


def _served(words: list[str], start: int) -> list[str]:
    """The engine's own arguments. `sglang serve` may name the model first, and has --model-type for itself."""
    own = words[start:]
    if words[start - 1] != "serve":
        return own
    if own and not own[0].startswith("-"):
        own.insert(0, "--model-path")
    place = next((place for place, word in enumerate(own) if word.startswith("--model-type")), None)
    if place is not None:
        del own[place : place + 1 + ("=" not in own[place])]
    return own


def launch_file(path: Path, options: Options) -> Launch:
    """A launch from a shell script, or from a file of plain arguments. Comments are skipped."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecwireError(f"cannot read the launch file {path}: {said(error)}. Give a text file.") from error
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if lines and all(line.lstrip().startswith("-") for line in lines):
        text = " ".join(line.rstrip().removesuffix("\\") for line in lines)
    return typed_launch(text, options, str(path))


def process_launch(pid: int, options: Options) -> Launch:
    """The launch of a running process, from /proc. Raises SpecwireError when it is no SGLang server."""
    place = Path("/proc") / str(pid)
    try:
        words = [part.decode("utf-8", "replace") for part in read_bytes(place / "cmdline").split(b"\0")][:-1]
    except OSError as error:
        raise SpecwireError(
            f"process {pid} cannot be read ({error.strerror}): give the pid of a running server."
        ) from error
    if not _is_launch(words):
        shown = " ".join(words)[:80] or "no command line"
        raise SpecwireError(
            f"process {pid} is no SGLang launch ({shown}): give the pid of the python that was started, "
            "not of one of its workers."
        )
    return _launch(f"process {pid}", _served(words, _start(words)), _environ(place), options, _folder(place))


def _environ(place: Path) -> dict[str, str]:
    try:
        parts = read_bytes(place / "environ").split(b"\0")
    except OSError:
        return {}
    return dict(part.decode("utf-8", "replace").split("=", 1) for part in parts if b"=" in part)


def _folder(place: Path) -> Path | None:
    try:
        return Path(os.readlink(place / "cwd"))
    except OSError:
        return None


def _is_launch(words: list[str]) -> bool:
    return _start(words) > 0


def _start(words: list[str]) -> int:
    """Where the engine's own arguments begin: after `-m sglang.launch_server` or `sglang serve`; 0: nowhere."""
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        before = words[index - 1] if index else ""
        if (word in _MODULE and before == "-m") or (name == "launch_server.py" and "sglang" in word):
            return index + 1
        if name == "sglang" and words[index + 1 : index + 2] == ["serve"]:
            return index + 2
    return 0


def _assignments(words: list[str]) -> dict[str, str]:
    """Environment from words before the command: `VAR=x`, also behind `env`, `-e` or `--env`."""
    found = [_ASSIGN.fullmatch(word.removeprefix("--env=").removeprefix("-e")) for word in words]
    return {match[1]: match[2] for match in found if match}


def _launch(
    source: str, words: list[str], environment: dict[str, str], options: Options, folder: Path | None = None
) -> Launch:
    values: dict[str, Any] = {}
    unknown: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            continue
        name, equals, attached = word.partition("=")
        option = options.find(name, source)
        if option is None:
            unknown += [name] * ("$" not in name)
            continue
        values[option.name] = _value(option, name, attached if equals else None, rest, source)
    launch = Launch(source, tuple(words), options, values, environment, tuple(unknown), folder)
    return _with_config_file(launch) if isinstance(launch.get("config"), str) else launch


def _with_config_file(launch: Launch) -> Launch:
    """The launch with the plain `key: value` lines of its `--config` file, which the command line overrules."""
    path = launch._here(launch.get("config"))
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecwireError(
            f"{launch.source}: --config {path} cannot be read ({said(error)}). Correct the path."
        ) from error
    pairs = [re.fullmatch(r"([\w-]+):\s*(.*?)\s*(?:#.*)?", line) for line in lines]
    values: dict[str, Any] = {}
    unknown = list(launch.unknown)
    for pair in filter(None, pairs):
        option = launch.options.by_name.get(f"--{pair[1].replace('_', '-')}")
        text = pair[2].strip("'\"")
        if option is None:
            unknown.append(f"{pair[1]} (in {path.name})")
        if option is not None and option.kind == "flag":
            values[option.name] = text.lower() == "true"
        elif option is not None and text:
            values[option.name] = _value(option, f"--{pair[1]}", text, [], str(path))
    return replace(launch, values=values | dict(launch.values), unknown=tuple(unknown))


def _value(option: Option, name: str, attached: str | None, rest: list[str], source: str) -> Any:
    if option.kind == "flag":
        return not name.startswith("--no-") or option.names[0].startswith("--no-")
    if option.kind == "many":
        taken = [attached] if attached is not None else []
        while rest and not rest[0].startswith("--"):
            taken.append(rest.pop(0))
        return taken
    if attached is None:
        if not rest or (rest[0].startswith("--") and len(rest[0]) > 2):
            if option.kind == "optional":
                return True
            raise SpecwireError(f"{source}: {name} is not followed by a value. Give one.")
        attached = rest.pop(0)
    if option.type in ("int", "float", "human_readable_int") and option.kind == "value":
        if option.type == "human_readable_int" and not attached.isdigit():
            return attached
        try:
            return int(attached) if option.type == "int" else float(attached)
        except ValueError as error:
            raise SpecwireError(f"{source}: {name} takes a number, not {attached[:40]!r}. Correct it.") from error
    return attached
