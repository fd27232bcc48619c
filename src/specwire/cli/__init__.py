"""The `specwire` command line: one module of this package per command, loaded when it is named."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from specwire import __version__, outgoing
from specwire.cli import _signals
from specwire.errors import FAULT, SpecwireError, remedy

PIPE_CLOSED = 141  # what a shell gives for a process that SIGPIPE ended


class OutputLost(Exception):
    """What was printed could not be written: nobody reads it any more, or there is no room for it."""


@contextlib.contextmanager
def _output() -> Iterator[None]:
    """Until all that was printed is out. click would end with 1 where it cannot be, which is a finding's code."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.filename is None and _stdout_is_broken():
            raise OutputLost(error.errno, error.strerror) from error
        raise


def _first_sentence(command: click.Command) -> str:
    """The first sentence of a command's help, whole: click's own would be cut at 45 columns."""
    paragraph = " ".join((command.short_help or command.help or "").split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".") + "."


def _stdout_is_broken() -> bool:
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


# The order of `specwire --help`: what each group is for, and its commands. One that is missing here stands at the end.
GROUPS = {
    "Diagnose": ("preflight", "verify", "run", "check", "golden", "explain"),
    "Tap a tree": ("probes", "apply", "status", "remove"),
    "Ship": ("strip", "gate", "ship"),
    "Speed": ("bench", "sweep", "profile", "report"),
    "Set-up": ("env", "engine-args"),
}


class Commands(click.Group):
    """Loads `specwire.cli.NAME` only when `specwire NAME` is called, so that starting stays quick."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _output():  # --help and --version print here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with _output():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        files = (name for folder in __path__ for name in os.listdir(folder))
        return sorted(
            name.removesuffix(".py").replace("_", "-")
            for name in files
            if name.endswith(".py") and not name.startswith("_")
        )

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        found: click.Command = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            if near := get_close_matches(args[0], self.list_commands(ctx), n=3):
                raise click.UsageError(f"{error.message} Did you mean {' or '.join(near)}?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        groups = {title: [name for name in group if name in names] for title, group in GROUPS.items()}
        if others := [name for name in names if not any(name in group for group in groups.values())]:
            groups["Other"] = others
        for title, group in groups.items():
            commands = [(name, self.get_command(ctx, name)) for name in group]
            with formatter.section(title):
                formatter.write_dl([(name, _first_sentence(command)) for name, command in commands if command])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="specwire")
@click.pass_context
def specwire(ctx: click.Context) -> None:
    """Find out why an EAGLE-3 draft model serves badly: tap, run, compare, remove."""
    from specwire.cli._project import defaults

    named = ctx.invoked_subcommand
    ctx.default_map = {named: defaults(specwire, ctx, named)} if named else {}


def main(argv: list[str] | None = None) -> None:
    """Run one command and exit by the contract: a crash or a usage error must never look like a finding."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before we were started
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        if hasattr(getattr(sys, name), "reconfigure"):  # what the terminal has no character for is shown as a number
            getattr(sys, name).reconfigure(errors="backslashreplace")
    outgoing.know_words(sys.argv[1:] if argv is None else argv)
    outgoing.know_environment(os.environ)
    with _cleaned():
        _run(argv)


@contextlib.contextmanager
def _cleaned() -> Iterator[None]:
    """Whatever is printed within the block, a traceback too, goes out by way of `outgoing`."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = outgoing.Outlet(before[0]), outgoing.Outlet(before[1], drawn=True)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _run(argv: list[str] | None) -> NoReturn:
    try:
        with _signals.heard(), _put_away():
            sys.exit(specwire.main(argv, prog_name="specwire", standalone_mode=False) or 0)
    except SpecwireError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show(file=sys.stderr)
        sys.exit(FAULT)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _complain("stopped")
        sys.exit(_signals.exit_code())
    except OutputLost as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains at its end
        number, why = error.args
        if number == errno.EPIPE:
            sys.exit(PIPE_CLOSED)
        _complain(f"the output could not be written ({why})")
        sys.exit(FAULT)
    except OSError as error:
        _complain(f"{error.filename or 'a file'}: {error.strerror or error}. {remedy(error)}")
        sys.exit(FAULT)
    except Exception as error:
        import traceback

        from specwire.needs import missing_package

        package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if missing := missing_package(package):
            _complain(missing)
            sys.exit(FAULT)
        traceback.print_exc()
        _complain("this is a bug in specwire; nothing more was done")
        sys.exit(FAULT)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # whoever hung up does not read it
        print(f"specwire: {outgoing.sentence(text)}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _put_away() -> Iterator[None]:
    """At the end no temporary directory is left: a signal may have come before anybody was there to delete it."""
    try:
        yield
    finally:
        if made := sys.modules.get("specwire.temporary"):
            made.discard_all()
