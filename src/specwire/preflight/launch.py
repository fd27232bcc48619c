"""A launch of SGLang: as typed, from a file, or of a running process, read against the tree's own options.

It is read once, where a command takes it in, and handed on as one object: environment, options, lists whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError, said
from specwire.outgoing import know_environment, know_text, know_words
from specwire.preflight.config_file import merged
from specwire.preflight.hub import snapshot
from specwire.preflight.launch_text import Found, in_process, in_yaml, launches
from specwire.preflight.options import Options, Parsed, Refusal, Unread
from specwire.preflight.shell import is_open, shown
from specwire.regular import read_bytes, read_text

_FILE = re.compile(r"[\w./~@+-]+\.(pt|pth|bin|safetensors|json|jinja|ya?ml|txt|pem|crt|key)")
_WRITTEN = re.compile("log|dump|trace|output|export|profile")
# Options that are asked for without a tree to tell their other names.
_ALIASES = {
    "speculative_algo": "speculative_algorithm",
    "speculative_draft_model": "speculative_draft_model_path",
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "model": "model_path",
}


@dataclass(frozen=True)
class Launch:
    """What was given, and nothing that was not.

    `values` are by destination; a value that the text does not tell is an `Unread`. `refusals`: why the engine would
    not take it. `unread`: options whose value is not known here. `open`: words that may hold more options. Relative
    paths are relative to `folder`. Without `options` (no tree is known) every `--name` counts as one.
    """

    source: str = "the launch command"
    words: tuple[str, ...] = ()
    options: Options | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    unread: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    folder: Path | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """The value given for an option, by any of its names without the dashes; `default` when it was not given, and
        for a value that is not known here."""
        value = self.values.get(self._destination(name), default)
        return default if isinstance(value, Unread) else value

    def gives(self, name: str) -> bool:
        """Whether an option was given, be its value known or not."""
        return self._destination(name) in self.values

    def unknown(self, name: str) -> bool:
        """Whether an option's value cannot be told: given as what only a shell knows, or maybe among what is open."""
        value = self.values.get(self._destination(name))
        return isinstance(value, Unread) or (value is None and not self.gives(name) and bool(self.open))

    def _destination(self, name: str) -> str:
        if self.options is not None:
            option = self.options.by_name.get(f"--{name.replace('_', '-')}")
            return option.name if option else name
        plain = name.replace("-", "_")
        return _ALIASES.get(plain, plain)

    def number(self, name: str) -> int | None:
        value = self.get(name)
        if self.options is None and isinstance(value, str) and value.isdigit():
            return int(value)
        return value if type(value) is int else None

    def has_option(self, name: str) -> bool:
        """Whether the tree has an option of this name."""
        return self.options is not None and f"--{name}" in self.options.by_name

    def path(self, name: str) -> Path | None:
        """The option's value as a directory on this machine, a hub's name as the one in the local cache; None when it
        is none."""
        value = self.get(name)
        if not isinstance(value, str):
            return None
        path = self.here(value)
        return path if _there(path, Path.is_dir) else snapshot(value, self.environment)

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
            and not _there(self.here(value), Path.exists)
        }

    def here(self, value: str) -> Path:
        """A path of the launch on this machine."""
        path = Path(os.path.expanduser(value))
        return path if path.is_absolute() or self.folder is None else self.folder / path


def _there(path: Path, test: Callable[[Path], bool]) -> bool:
    """Whether a path is there; one that no system would take is not."""
    try:
        return test(path)
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class Given:
    """A launch as it was given, before any tree's options are known: each tree then reads it for itself."""

    source: str
    found: Found
    folder: Path | None = None

    def read(self, options: Options | None) -> Launch:
        """The launch as a tree's options have it; with None, as far as words go."""
        return _launch(self.source, self.found, options, self.folder)


def typed(text: str, source: str = "the launch command") -> Given:
    """A launch as typed: a whole command line or only the engine's arguments, on any number of lines.

    Raises SpecwireError when it holds no launch of SGLang, or more than one.
    """
    know_text(text)
    return Given(source, _only(launches(text, source, script=False), source))


def in_file(path: Path) -> Given:
    """A launch from a shell script, a container's or a pod's YAML, a Dockerfile, or a file of plain arguments."""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise SpecwireError(f"cannot read the launch file {path}: {said(error)}. Give a text file.") from error
    know_text(text)
    found = in_yaml(text, str(path)) if path.suffix.lower() in (".yml", ".yaml", ".json") else None
    if not found:
        found = launches(text, str(path), script=True)
    return Given(str(path), _only(found, str(path)))


def in_words(words: Sequence[str], source: str = "the launch command") -> Given:
    """A launch by the engine's own arguments, each a word."""
    return Given(source, Found(list(words)))


def of_process(pid: int) -> Given:
    """The launch of a running process, from /proc. Raises SpecwireError when it is no SGLang server."""
    place = Path("/proc") / str(pid)
    try:
        words = [part.decode("utf-8", "replace") for part in read_bytes(place / "cmdline").split(b"\0")][:-1]
    except OSError as error:
        raise SpecwireError(
            f"process {pid} cannot be read ({error.strerror}): give the pid of a running server."
        ) from error
    found = in_process(words, _environ(place))
    if found is None:
        line = " ".join(words)[:80] or "no command line"
        raise SpecwireError(
            f"process {pid} is no SGLang launch ({line}): give the pid of the python that was started, "
            "not of one of its workers."
        )
    return Given(f"process {pid}", found, _folder(place))


def typed_launch(text: str, options: Options | None, source: str = "the launch command") -> Launch:
    """A launch as typed, by a tree's options."""
    return typed(text, source).read(options)


def _only(found: list[Found], source: str) -> Found:
    if len(found) == 1:
        return found[0]
    count = f"{len(found)} launches" if found else "no launch"
    lines = f" (lines {', '.join(str(one.line) for one in found)})" if found else ""
    raise SpecwireError(
        f"{source} holds {count} of SGLang{lines} (python -m sglang.launch_server ..., sglang serve ..., or arguments "
        "that begin with --): give exactly one."
    )


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


def _launch(source: str, found: Found, options: Options | None, folder: Path | None = None) -> Launch:
    know_words(found.words)
    know_environment(found.environment)
    environment = {name: shown(value) for name, value in found.environment.items() if not is_open(value)}
    if options is None:
        parsed, words, refusals, unread = _loosely(found.words), list(found.words), [], []
    else:
        served, refusals = _served(found, options) if found.serves else (list(found.words), [])
        words, more, unread = merged(served, options, folder)
        refusals += more
        parsed = options.parse(words, complete=not unread)
    return Launch(
        source=source,
        words=tuple(map(shown, words)),
        options=options,
        values=parsed.values,
        environment=environment,
        refusals=(*found.refusals, *refusals, *parsed.refusals),
        unread=parsed.unread,
        open=(*unread, *parsed.open),
        folder=folder,
    )


def _served(found: Found, options: Options) -> tuple[list[str], list[Refusal]]:
    """The parser's words, of those given to `sglang serve`: it may take the model first, and has --model-type."""
    words, serve = list(found.words), options.serve
    if serve is None:
        return words, [Refusal("this release has no `sglang serve`", "python -m sglang.launch_server", "serve")]
    while (
        serve.model_type and (place := next((p for p, w in enumerate(words) if w == "--model-type"), None)) is not None
    ):
        del words[place : place + 2]
    words = [word for word in words if not (serve.model_type and word.startswith("--model-type="))]
    if serve.positional and words and not words[0].startswith("-"):
        words.insert(0, "--model-path")
    named = any(
        word in serve.models and place + 1 < len(words) or word.startswith(tuple(f"{name}=" for name in serve.models))
        for place, word in enumerate(words)
    )
    if named or any(is_open(word) for word in words):
        return words, []
    why = "`sglang serve` wants --model-path on the command line, whatever a config file says"
    return words, [Refusal(why, "add --model-path", "--model-path")]


def _loosely(words: Sequence[str]) -> Parsed:
    """Words read without a tree: what stands behind a `--name` up to the next is its value, or it is a flag."""
    values: dict[str, Any] = {}
    open_words = []
    place = 0
    while place < len(words):
        name, equals, value = words[place].partition("=")
        place += 1
        if not name.startswith("--"):
            open_words += [shown(name)] if is_open(name) else []
            continue
        taken = [value] if equals else []
        while not equals and place < len(words) and not re.match("--|-[a-zA-Z]", words[place]):
            taken.append(words[place])
            place += 1
        plain = name.removeprefix("--").replace("-", "_")
        made = [Unread(shown(word)) if is_open(word) else word for word in taken]
        values[_ALIASES.get(plain, plain)] = True if not made else made[0] if len(made) == 1 else made
    return Parsed(values, frozenset(values), open=tuple(open_words))
