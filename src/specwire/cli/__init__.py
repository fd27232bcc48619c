"""The `specwire` command line: one module of this package per command, loaded when it is named."""

from __future__ import annotations

import importlib
import os
import sys

import click

from specwire import __version__
from specwire.errors import FAULT, SpecwireError


class Commands(click.Group):
    """Loads `specwire.cli.NAME` only when `specwire NAME` is called, so that starting stays quick."""

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
        return importlib.import_module(f"{__name__}.{name.replace('-', '_')}").command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="specwire")
def specwire() -> None:
    """Find out why an EAGLE-3 draft model serves badly: tap, run, compare, remove."""


def main(argv: list[str] | None = None) -> None:
    """Run one command and exit by the contract: a crash or a usage error must never look like a finding."""
    try:
        sys.exit(specwire.main(argv, prog_name="specwire", standalone_mode=False) or 0)
    except SpecwireError as error:
        print(f"specwire: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(FAULT)
    except click.exceptions.Abort:
        print("specwire: stopped", file=sys.stderr)
        sys.exit(130)
    except Exception:
        import traceback

        traceback.print_exc()
        print("specwire: this is a bug in specwire; nothing more was done", file=sys.stderr)
        sys.exit(FAULT)
