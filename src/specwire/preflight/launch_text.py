"""Where a launch of SGLang stands in a text: a script, a container's or a pod's YAML, a Dockerfile, plain arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specwire.errors import SpecwireError
from specwire.preflight.options import Refusal
from specwire.preflight.shell import LIMIT, Command, opened, shown, split_commands

_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
_MODULES = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
_INSIDE = re.compile(r"\s-m\s+sglang[.\w]+|sglang/\S*launch_server\.py|\bsglang\s+serve\b")
# What a word processor or a chat makes of two hyphens.
DASHES = {"\u2013": "en dash", "\u2014": "em dash", "\u2212": "minus sign", "\u2012": "figure dash", "\u2011": "hyphen"}
_DASHED = re.compile(f"-?[{''.join(DASHES)}][-{''.join(DASHES)}]*")
# Likewise of blanks and quotes; and what cannot be seen at all.
_BLANKS, _UNSEEN, _CURLY = "\u00a0\u2007\u202f\u3000", "\u200b\u200c\u2060\ufeff", "\u201c\u201d\u201e\u2018\u2019"
_HOLDER = re.compile(r"<[A-Za-z][^<>]*>")
_TO_FILL_IN = re.compile(r"/?path/to(?:/.*)?|\[[a-z][a-z _-]*\]|(?:.*[/_-])?YOUR[_-]\w.*", re.S)
_FENCE = re.compile(r"^[ \t]*```.*$", re.M)
_EXEC = re.compile(r"^[ \t]*(ENTRYPOINT|CMD)[ \t]+(\[[^\]]*\])", re.M | re.I)
_TEMPLATE = re.compile(r"\{\{.{0,300}?\}\}", re.S)
YAML_LIMIT = LIMIT // 4
_LEVELS = 4  # scripts within scripts
_NODES = 100_000


@dataclass(frozen=True)
class Found:
    """A launch: the engine's own arguments as written, whether `sglang serve` takes them, the environment that is
    given with it, and what is wrong with how it is written. `line` is where it begins, within its own text."""

    words: list[str]
    serves: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    line: int = 1


def launches(text: str, where: str, *, script: bool) -> list[Found]:
    """All launches of a text, or the bare arguments that it is. `script`: its lines are commands, as a shell has them.

    Raises SpecwireError where the text is too long, or a quote in it is not closed.
    """
    if len(text) > LIMIT:
        raise SpecwireError(f"{where} has more than {LIMIT:,} characters: give a launch command or a short script.")
    if script and (arguments := _plain_arguments(text)):
        text, script = arguments, False
    if script and (listed := _image(text)):
        return _of_words(listed, where)
    commands = split_commands(_FENCE.sub("", text) if script else text, where)
    found = list(_in_commands(commands, where, script, _LEVELS))
    if found or not commands:
        return found
    words = [word for command in commands for word in command.words]
    if words and words[0][:1] in ("-", *DASHES):
        torn = [line for command in commands for line in command.torn] if script else []
        return [_written(Found(words, line=commands[0].line), [], torn, script)]
    return []


def in_yaml(text: str, where: str) -> list[Found] | None:
    """The launches of a YAML or JSON text: compose services, pods, jobs, workflows. None when it is no such text."""
    import yaml

    if len(text) > YAML_LIMIT:
        raise SpecwireError(
            f"{where} has more than {YAML_LIMIT:,} characters: give a launch command or a short script."
        )
    try:
        documents = list(yaml.safe_load_all(_TEMPLATE.sub(lambda found: json.dumps(opened(found[0]))[1:-1], text)))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if not any(isinstance(document, (dict, list)) for document in documents):
        return None
    return [one for mapping in _mappings(documents) for one in _container(mapping, where)]


def in_process(words: list[str], environment: Mapping[str, str]) -> Found | None:
    """The launch that a process's command line is; None when it is none."""
    start = _start(words)
    return Found(words[start:], words[start - 1] == "serve", dict(environment)) if start else None


def _plain_arguments(text: str) -> str:
    """A file of nothing but arguments and comments, as one line; "" for any other."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines or not all(line.lstrip().startswith("-") for line in lines):
        return ""
    return "\n".join(line.rstrip().removesuffix("\\") for line in lines)


def _image(text: str) -> list[str]:
    """The words that a Dockerfile starts, by its last ENTRYPOINT and CMD in their list form; none for any other text."""
    if not re.search(r"^\s*FROM\s+\S", text, re.M):
        return []
    found = {}
    for match in _EXEC.finditer(text.replace("\\\n", " ")):
        try:
            found[match[1].upper()] = json.loads(match[2])
        except ValueError:
            return []
    words = [*found.get("ENTRYPOINT", []), *found.get("CMD", [])]
    return words if all(isinstance(word, str) for word in words) else []


def _mappings(documents: list[Any]) -> Iterator[dict[Any, Any]]:
    """Every mapping of the documents, outer ones first; each once, whatever aliases there are."""
    waiting, seen = list(reversed(documents)), set()
    while waiting and len(seen) < _NODES:
        one = waiting.pop()
        if id(one) in seen or not isinstance(one, (dict, list)):
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            yield one
        waiting += reversed(list(one.values()) if isinstance(one, dict) else one)


def _container(mapping: Mapping[Any, Any], where: str) -> Iterator[Found]:
    """The launch that a container's entry point, command and arguments are together, or the ones in a script."""
    environment = _given_environment(mapping.get("environment", mapping.get("env")))
    parts = [mapping[key] for key in ("entrypoint", "command", "args") if key in mapping]
    if parts and all(isinstance(part, str) or _is_words(part) for part in parts):
        words = [
            word for part in parts for word in (_unfolded(part, where) if isinstance(part, str) else map(_scalar, part))
        ]
        for one in _of_words([_composed(word) for word in words], where):
            yield replace(one, environment={**environment, **one.environment})
    for key in ("run", "script"):
        texts = mapping.get(key)
        for text in texts if _is_words(texts) else [texts]:
            if isinstance(text, str) and _INSIDE.search(f" {text}"):
                yield from launches(text, where, script=True)


def _is_words(part: Any) -> bool:
    return isinstance(part, list) and all(isinstance(word, (str, int, float)) for word in part)


def _scalar(word: Any) -> str:
    return str(word).lower() if isinstance(word, bool) else str(word)


def _unfolded(text: str, where: str) -> list[str]:
    """A command in one string: its lines are one command, as compose reads it."""
    return [word for command in split_commands(text.replace("\n", " "), where) for word in command.words]


def _composed(word: str) -> str:
    """A word of YAML: `$(VAR)` and `${VAR}` are filled in by whoever starts the container."""
    return re.sub(r"\$\(\w+\)|\$\{[^}]*\}|\$\w+", lambda found: opened(found[0]), word.replace("$$", "\0")).replace(
        "\0", "$"
    )


def _given_environment(given: Any) -> dict[str, str]:
    """Compose has a mapping, or `NAME=value` in a list; a pod a list of names with values."""
    if isinstance(given, dict):
        return {str(name): _scalar(value) for name, value in given.items() if isinstance(value, (str, int, float))}
    rows = given if isinstance(given, list) else []
    found = assignments([row for row in rows if isinstance(row, str)])
    named = [row for row in rows if isinstance(row, dict) and isinstance(row.get("value"), (str, int, float))]
    return found | {str(row.get("name")): _scalar(row["value"]) for row in named}


def _of_words(words: list[str], where: str) -> list[Found]:
    """The launch that words are, or the ones in a script among them (`bash -c "..."`)."""
    return list(_in_commands([Command(words, 1)], where, True, _LEVELS))


def _in_commands(commands: Sequence[Command], where: str, script: bool, levels: int) -> Iterator[Found]:
    """The launches that the commands start. One that is only put into a variable counts where no other is there."""
    exported: dict[str, str] = {}
    started, kept = False, []
    for place, command in enumerate(commands):
        words = command.words
        if words[0] == "export":
            given = assignments(words[1:])
            exported |= {name: opened(f"${name}") for name in given} if command.maybe else given
        start = _start(words)
        if start:
            environment = exported | assignments(words[:start])
            found = Found(words[start:], words[start - 1] == "serve", environment, line=command.line)
            started = True
            yield _written(found, _outside(commands[place + 1 :]), list(command.torn), script)
            continue
        for one in _inside(command, exported, where, script, levels):
            if all(_ASSIGN.fullmatch(word) for word in words):
                kept.append(one)
            else:
                started = True
                yield one
    if not started:
        yield from kept


def _inside(command: Command, exported: Mapping[str, str], where: str, script: bool, levels: int) -> Iterator[Found]:
    """The launches in a script that is a word of a command, or is handed to it as a here-document."""
    words = command.words
    if words[0] in (":", "true"):
        return  # a here-document in place of a comment
    inner = next((word for word in words if _INSIDE.search(f" {word}") and re.search(r"\s", word)), None)
    around = exported | assignments(words[: words.index(inner)] if inner is not None else words)
    scripts: list[tuple[str, Mapping[str, Any]]] = [(inner, around)] if inner is not None else []
    if _INSIDE.search(f" {command.here}"):
        scripts.append((command.here, {**around, **command.variables}))
    for text, variables in scripts if levels else ():
        for one in _in_commands(split_commands(text, where, variables), where, script, levels - 1):
            yield replace(one, environment={**around, **one.environment})


def _outside(after: Sequence[Command]) -> list[Command]:
    """The commands right behind a launch that are nothing but options: lines that were meant to belong to it."""
    found = []
    for command in after:
        first = command.words[0]
        if not (first.startswith("-") and len(first) > 1) and first[:1] not in DASHES:
            break
        found.append(command)
    return found


def _written(found: Found, outside: Sequence[Command], torn: list[int], script: bool) -> Found:
    """The launch as it was meant, with what a shell would make of how it is written.

    Lines pasted into --launch are one command; in a script they are not, and that is said.
    """
    refusals = []
    if torn and script:
        why = f"line{'s' * (len(torn) > 1)} {_spans(torn)} end{'s' * (len(torn) == 1)} in a backslash and a blank"
        refusals.append(Refusal(f"{why}: a shell ends the command there", "take the blank out", "\\", "likely"))
    if outside and script:
        lines = [command.line for command in outside]
        why = f"line{'s' * (len(lines) > 1)} {_spans(lines)} begin{'s' * (len(lines) == 1)} with - and"
        why += f" stand{'s' * (len(lines) == 1)} outside the command"
        fix = "end each line but the last in a backslash, with no comment between"
        refusals.append(Refusal(f"{why}: a backslash is missing", fix, outside[0].words[0], "likely"))
    words, typed = _typed([*found.words, *(word for command in outside for word in command.words)])
    refusals += typed
    for holder in dict.fromkeys(match[0] for word in words if (match := _HOLDER.search(shown(word)))):
        if any(_is_holder(word, holder) for word in words):
            refusals.append(Refusal(f"{holder} is a placeholder", f"write what {holder} stands for", holder))
    for word in words:
        if _TO_FILL_IN.fullmatch(value := shown(word).rpartition("=")[2]) and "<" not in value:
            refusals.append(
                Refusal(f"{value} looks like a placeholder", f"write what {value} stands for", value, "likely")
            )
    words = [opened(word) if _HOLDER.fullmatch(word) else word for word in words]
    return replace(found, words=words, refusals=(*found.refusals, *refusals))


def _typed(words: list[str]) -> tuple[list[str], list[Refusal]]:
    """The words with the characters that were meant, where a word processor, a chat or a web page put others."""
    made, refusals = [], []
    for word in words:
        plain = "".join(char for char in word if char not in _UNSEEN)
        if plain != word:
            refusals.append(Refusal(f"{plain!r} has a character in it that cannot be seen", "type it anew", word))
        if set(_BLANKS) & set(plain) and "--" in plain:
            why = f"{plain!r} has a no-break space in it, where a plain one was meant"
            refusals.append(Refusal(why, "type the space anew", word))
            plain = re.sub(f"[{_BLANKS}]", " ", plain)
        if re.match(f"(--[^=]*=)?[{_CURLY}]", plain):
            refusals.append(Refusal(f"{plain} has curly quotes, where plain ones were meant", "write ' or \"", word))
            plain = re.sub(f"[{_CURLY}]", "", plain)
        made += plain.split(" ") if plain != word and " " in plain else [plain]
    dashed = next((found for word in made if (found := _DASHED.match(word))), None)
    inside = next((word for word in made if word[:2] == "--" and set(DASHES) & set(word.partition("=")[0])), None)
    if dashed is not None:
        sign = next(char for char in dashed[0] if char in DASHES)
        why = f"{dashed.string.partition('=')[0]} begins with {sign} ({DASHES[sign]}), where -- was meant"
        refusals.append(Refusal(why, "write two hyphens", dashed.string))
    elif inside is not None:
        sign = next(char for char in inside if char in DASHES)
        why = f"{inside.partition('=')[0]} has {sign} ({DASHES[sign]}) in it, where - was meant"
        refusals.append(Refusal(why, "write hyphens", inside))
    if dashed or inside:
        made = [_hyphened(word) for word in made]
    return made, refusals


def _hyphened(word: str) -> str:
    """An option with the hyphens that were meant; another word as it is."""
    name, equals, value = word.partition("=")
    if found := _DASHED.match(name):
        name = "--" + name[found.end() :]
    return re.sub(f"[{''.join(DASHES)}]", "-", name) + equals + value if name.startswith("--") else word


def _is_holder(word: str, holder: str) -> bool:
    """Whether a placeholder is all of a word, or of the value behind its `=`, or a part of a path."""
    value = shown(word).rpartition("=")[2]
    return holder in value and all(not part or re.fullmatch(r"[\w./:-]*", part) for part in value.split(holder))


def _spans(lines: Sequence[int]) -> str:
    """Line numbers in ranges: 2-5, 8."""
    spans: list[list[int]] = []
    for line in sorted(lines):
        if spans and line <= spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def _start(words: Sequence[str]) -> int:
    """Where the engine's own arguments begin: after `-m sglang.launch_server` or `sglang serve`; 0: nowhere."""
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        before = words[index - 1] if index else ""
        if (word in _MODULES and before == "-m") or (name == "launch_server.py" and "sglang" in word):
            return index + 1
        if name == "sglang" and list(words[index + 1 : index + 2]) == ["serve"]:
            return index + 2
    return 0


def assignments(words: Sequence[str]) -> dict[str, str]:
    """Environment from words before the command: `VAR=x`, also behind `env`, `-e` or `--env`."""
    found = [_ASSIGN.fullmatch(word.removeprefix("--env=").removeprefix("-e")) for word in words]
    return {match[1]: match[2] for match in found if match}
