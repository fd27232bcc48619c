"""The options that a tree's server takes, and what its parser would make of words.

The engine parses with `argparse`, so does this: the options are read from the tree's source (`option_source`), their
parsing is the standard library's own.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, NoReturn

from specwire.preflight.interpreter.values import UNKNOWN
from specwire.preflight.shell import is_open, shown

_RECOVERIES = 30  # slips of one launch that are each taken out to read the rest


class Unread:
    """A value that is given, but that the source or the text alone does not tell. `text` is what stands there."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unread) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True)
class Option:
    """One option: `name` is its destination, such as `tp_size`, `names` are what it is written as.

    `action`: store, append, set (stores `const`), boolean (`--x` and `--no-x`), none (takes no effect), refused
    (`const` says why), or unread. `nargs` as in argparse. `type`, `choices`, `default` are UNKNOWN where they
    cannot be told from the source. `made_by` is the class of the action, as the reader of config files tells them apart.
    """

    name: str
    names: tuple[str, ...]
    action: str = "store"
    nargs: int | str | None = None
    type: Any = "str"
    choices: Any = None
    default: Any = None
    const: Any = None
    required: bool = False
    made_by: str = "_StoreAction"
    deprecated: str | None = None  # what to write instead, where the source says so


@dataclass(frozen=True)
class Refusal:
    """Why the engine's parser would not take a launch: `why` in its words, `fix`, and the word it is about."""

    why: str
    fix: str
    word: str = ""
    confidence: str = "certain"


@dataclass(frozen=True)
class Merger:
    """How a tree reads `--config FILE`. `strict`: keys of actions other than store and store_true are refused.

    `true_as`: what becomes of a key that is true: `flag` alone, `flag` of those known to be flags (`known`), or
    `value` throughout. `spellings`: a key may be any long name of an option. `nested`: mappings become JSON.
    """

    strict: bool = False
    true_as: str = "flag"
    spellings: bool = False
    nested: bool = False


@dataclass(frozen=True)
class Serve:
    """How a tree's `sglang serve` looks at the words before the parser does: `positional`, the model may come first;
    `model_type`, it takes --model-type for itself; `models`, the options of which it wants one."""

    positional: bool = False
    model_type: bool = False
    models: tuple[str, ...] = ("--model-path",)


@dataclass(frozen=True)
class Parsed:
    """What a parser made of words: what was given by destination, and what it would refuse or cannot be told."""

    values: Mapping[str, Any]
    given: frozenset[str]
    refusals: tuple[Refusal, ...] = ()
    unread: tuple[str, ...] = ()
    open: tuple[str, ...] = ()  # words that only a shell knows, and that may hold more options


@dataclass(frozen=True)
class Options:
    """All options of a tree by what they are written as, and how it reads config files and `sglang serve`."""

    by_name: Mapping[str, Option]
    listed: tuple[Option, ...]
    merger: Merger | None = None
    serve: Serve | None = None

    @cached_property
    def parser(self) -> _Parser:
        """A parser of these options."""
        return _Parser(self)

    def default(self, name: str) -> Any:
        """An option's default, by its name without the dashes; UNKNOWN where it is not told, None without one."""
        option = self.by_name.get(f"--{name}")
        return option.default if option else None

    def parse(self, words: list[str], complete: bool = True) -> Parsed:
        """Parse as the engine would. What it would refuse is noted, and the rest of the words is parsed all the same.

        `complete`: no more words are to come from elsewhere, so what is required must be among these.
        """
        refusals: list[Refusal] = []
        left = list(words)
        for _ in range(_RECOVERIES):
            run = _Run(self, left, complete)
            try:
                parsed = run.parse()
            except _Refused as error:
                refusals.append(error.refusal)
                left = error.rest
                continue
            return replace(parsed, refusals=(*refusals, *parsed.refusals))
        return Parsed({}, frozenset(), tuple(refusals))  # so many slips that the rest tells nothing

    def near(self, word: str) -> str | None:
        """The option that a wrong one was probably meant to be."""
        from difflib import get_close_matches

        plain = {name.lstrip("-"): name for name in self.by_name}  # hyphens that all begin with make nothing alike
        close = get_close_matches(word.partition("=")[0].lstrip("-"), plain, 1, 0.75)
        return plain[close[0]] if close else None


class _Refused(Exception):
    """A refusal that stopped the parser, and the words without what it was about."""

    def __init__(self, refusal: Refusal, rest: list[str]) -> None:
        self.refusal, self.rest = refusal, rest


class _Parser(argparse.ArgumentParser):
    """The standard library's parser, made once for a tree's options; what it meets is noted in the run under way."""

    run: _Run

    def __init__(self, options: Options) -> None:
        super().__init__(add_help=False, exit_on_error=False)
        self.add_argument("-h", "--help", action=_Help)
        for option in options.listed:
            self.add_argument(*option.names, dest=option.name, action=_acting(option), default=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentError(None, message)


class _Run:
    """One try at parsing words with the standard library, by the options as read."""

    def __init__(self, options: Options, words: list[str], complete: bool) -> None:
        self.options, self.words, self.complete = options, words, complete
        self.refusals: list[Refusal] = []
        self.unread: list[str] = []
        self.given: list[str] = []
        self.helped = False

    def parse(self) -> Parsed:
        parser = self.options.parser
        parser.run = self
        try:
            found, extras = parser.parse_known_args(self.words)
        except argparse.ArgumentError as error:
            raise self._recovered(error) from error
        values = {name: value for name, value in vars(found).items() if name != "help"}
        opened = [word for word in extras if is_open(word) and not word.startswith("-")]
        stray = [word for word in extras if word not in opened]
        if stray:
            refusal, meant = self._stray(stray), self._meant(stray)
            if meant:
                raise _Refused(refusal, [part for word in self.words for part in meant.get(word, [word])])
            self.refusals.append(refusal)
        if self.complete and not opened and not self.helped:
            self._required(values)
        return Parsed(
            values, frozenset(self.given), tuple(self.refusals), tuple(self.unread), tuple(map(shown, opened))
        )

    def _required(self, values: Mapping[str, Any]) -> None:
        lacking = [option for option in self.options.listed if option.required and option.name not in self.given]
        if lacking:
            names = ", ".join("/".join(option.names) for option in lacking)
            why = f"the following arguments are required: {names}"
            self.refusals.append(Refusal(why, f"give {lacking[0].names[0]}", lacking[0].names[0]))

    def _stray(self, words: list[str]) -> Refusal:
        more = f" and {len(words) - 40} more" if len(words) > 40 else ""
        why = f"unrecognized arguments: {' '.join(map(shown, words[:40]))}{more}"
        named = [word for word in words if word.startswith("-") and len(word) > 1]
        if meant := self._meant(words):
            if apart := next((parts for parts in meant.values() if len(parts) > 1), None):
                named = [shown(" ".join(apart))]
                return Refusal(
                    f"{why}: an option and its value in one word", f"make {apart[0]} a word of its own", named[0]
                )
            written = [parts[0].partition("=")[0] for parts in meant.values()]
            return Refusal(why, f"write {', '.join(written[:4])}{' ...' * (len(written) > 4)}", named[0])
        for word in named[:5]:
            if near := self.options.near(word):
                return Refusal(why, f"write {near}", word)
        fix = "take it out, or use a release that has it" if named else "take the stray word out, or quote the value"
        return Refusal(why, fix, words[0])

    def _meant(self, words: list[str]) -> dict[str, list[str]]:
        """Words that are options but for how they are written: underscores for hyphens, one hyphen for two, or an
        option and its value in one word."""
        found = {}
        for word in words:
            first, *rest = word.split(maxsplit=1) or [""]
            name, equals, value = first.partition("=")
            written = f"--{name.lstrip('-').replace('_', '-')}"
            if not name.startswith("-") or not isinstance(option := self._option(written), Option):
                continue
            if rest and not equals:
                found[word] = [option.names[0], *(rest[0].split() if "--" in rest[0] else rest)]
            elif not rest and written != name:
                found[word] = [f"{option.names[0]}{equals}{value}"]
        return found

    def _recovered(self, error: argparse.ArgumentError) -> _Refused:
        """The refusal, and the words without the one that it is about; the rest is still to be judged."""
        message = str(error)
        for place, word in enumerate(self.words):
            found = self._option(word)
            if isinstance(found, list) and f"ambiguous option: {word}" in message:
                names = sorted({option.names[0] for option in found})
                after = self._values_after(place)
                return _Refused(
                    Refusal(shown(message), f"write it out: {' or '.join(names[:3])}", word),
                    [*self.words[:place], *self.words[after:]],
                )
            if isinstance(found, Option) and error.argument_name == "/".join(found.names):
                alone = self._values_after(place) == place + 1
                if "ignored explicit argument" in message and "=" in word:
                    name = word.partition("=")[0]
                    rest = [*self.words[:place], name, *self.words[place + 1 :]]
                    return _Refused(Refusal(shown(message), f"write {name} alone: it takes no value", name), rest)
                if message.partition(": ")[2].startswith("expected") and "=" not in word and alone:
                    rest = [*self.words[:place], *self.words[place + 1 :]]
                    return _Refused(Refusal(shown(message), f"give {word} a value", word), rest)
        place = next((place for place, word in enumerate(self.words) if word.startswith("-")), 0)
        return _Refused(
            Refusal(shown(message), "correct it", self.words[place]), [*self.words[:place], *self.words[place + 1 :]]
        )

    def _values_after(self, place: int) -> int:
        """Where the words end that could be values of the option at `place`."""
        after = place + 1
        while after < len(self.words) and not self.words[after].startswith("-"):
            after += 1
        return after

    def _option(self, word: str) -> Option | list[Option] | None:
        """The option that a word means, or those that it could mean."""
        name = word.partition("=")[0]
        if name in self.options.by_name:
            return self.options.by_name[name]
        if not name.startswith("--"):
            return None
        fits = [option for written, option in self.options.by_name.items() if written.startswith(name)]
        return fits[0] if len(fits) == 1 else fits or None

    def take(self, option: Option, namespace: argparse.Namespace, values: Any, written: str) -> None:
        """Note what an option was given, as its action would."""
        self.given.append(option.name)
        if option.action == "refused":
            self.refusals.append(Refusal(str(option.const), f"take {written} out", written))
        elif option.action == "set":
            setattr(namespace, option.name, option.const)
        elif option.action == "unread":
            self.unread.append(written)
            setattr(namespace, option.name, Unread(written))
        elif option.action in ("store", "append"):
            if option.nargs == "?" and values is None:
                made = option.const
            else:
                made = (
                    [self.value(option, one) for one in values]
                    if isinstance(values, list)
                    else self.value(option, values)
                )
            if option.action == "append":
                made = [*(getattr(namespace, option.name, None) or []), made]
            setattr(namespace, option.name, made)

    def value(self, option: Option, text: str) -> Any:
        """One word as the option's type has it; what the type or the choices refuse is noted."""
        name = "/".join(option.names)
        if is_open(text):
            self.unread.append(f"{option.names[0]} {shown(text)}")
            return Unread(shown(text))
        try:
            made = convert(option.type, text)
        except ValueError as error:
            word = getattr(option.type, "name", option.type)
            why = str(error) if isinstance(error, _Worded) else f"invalid {word} value: {text!r}"
            self.refusals.append(Refusal(f"argument {name}: {why}", f"correct the value of {option.names[0]}", text))
            return Unread(text)
        if made is UNKNOWN or option.choices is UNKNOWN:
            self.unread.append(f"{option.names[0]} {text}")
            return Unread(text) if made is UNKNOWN else made
        if option.choices is not None and made not in option.choices:
            listed = ", ".join(map(repr, option.choices))
            why = f"argument {name}: invalid choice: {made!r} (choose from {listed})"
            self.refusals.append(Refusal(why, f"take one of {listed}", text))
            return Unread(text)
        return made


class _Help(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.run.helped = True
        parser.run.refusals.append(Refusal("prints its help and ends", f"take {option_string} out", str(option_string)))


def _acting(option: Option) -> Callable[..., argparse.Action]:
    """The class of an option's action, which does as the tree's own does."""
    if option.action == "boolean":

        class Boolean(argparse.BooleanOptionalAction):
            def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
                parser.run.given.append(option.name)
                super().__call__(parser, namespace, values, option_string)

        return Boolean

    class Acting(argparse.Action):
        def __init__(self, option_strings: list[str], dest: str, **more: Any) -> None:
            super().__init__(option_strings, dest, nargs=option.nargs, **more)

        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
            parser.run.take(option, namespace, values, str(option_string))

    return Acting


class _Worded(ValueError):
    """What a type says itself of a value that it refuses."""


def convert(kind: Any, text: str) -> Any:
    """A word as an argparse type has it; UNKNOWN for a type that is not known here. Raises ValueError if it refuses."""
    return _TYPES[kind](text) if isinstance(kind, str) and kind in _TYPES else UNKNOWN


def _human_readable(text: str) -> int:
    """`4k`, `1.5M`, `2Ki`: a whole number, plain or with a suffix of thousands (k, M, G, T) or of 1024 (Ki, Mi, Gi, Ti)."""
    plain, step = text.strip(), {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", plain)
    if found is None:
        return int(plain)
    number, suffix = found.groups()
    if suffix.endswith("i"):
        if "." in number:
            raise _Worded("Decimals are not allowed with IEC suffixes")
        return int(number) * 2 ** (10 * step[suffix[0]])
    return int(Decimal(number) * 10 ** (3 * step[suffix]))


def _graph_backend(text: str) -> str:
    if text == "tc_piecewise":
        raise _Worded("tc_piecewise was removed; select breakable, full, or disabled")
    return text


_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "json.loads": json.loads,
    "json_list_type": json.loads,
    "human_readable_int": _human_readable,
    "nullable_str": lambda text: None if text in ("", "None") else text,
    "parse_cuda_graph_backend_arg": _graph_backend,
}
