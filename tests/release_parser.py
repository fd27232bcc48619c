"""A release's own argument parser and config merger as an oracle, in a process of its own: for tests alone.

Run as a script with a release's directory on PYTHONPATH it answers one JSON object per line of stdin:
{"argv", "serve"} gives {"accepted", "message", "values"}; {"dump": true} gives the parser's actions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Oracle:
    """The parser of the release in `root`, asked over a pipe."""

    def __init__(self, root: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG")}
        environment |= {
            "PYTHONPATH": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "PYTHONWARNINGS": "ignore",
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=root,
            text=True,
        )

    def ask(self, **question: Any) -> Any:
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the release's parser ended"
        return json.loads(answer)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    parser, module = _parser()
    for line in sys.stdin:
        question = json.loads(line)
        if question.get("dump"):
            answer = [_described(action) for action in parser._actions]
        else:
            answer = _asked(module, question["argv"], question.get("serve", False))
        answers.write(json.dumps(answer, default=repr) + "\n")
        answers.flush()


def _parser() -> tuple[Any, Any]:
    import argparse

    _tolerant_registry()
    import sglang.srt.server_args as module

    parser = argparse.ArgumentParser()
    module.ServerArgs.add_cli_args(parser)
    return parser, module


def _tolerant_registry() -> None:
    """Older releases register model types that the installed transformers has by now."""
    try:
        from transformers.models.auto import configuration_auto as auto
    except ImportError:
        return
    register = auto._LazyConfigMapping.register
    auto._LazyConfigMapping.register = lambda self, key, value, exist_ok=False: register(
        self, key, value, exist_ok=True
    )


class _Parsed(Exception):
    pass


def _asked(module: Any, argv: list[str], serve: bool) -> dict[str, Any]:
    """What `prepare_server_args` makes of the words, up to where it would look at the machine and the model."""
    import contextlib
    import io

    def stop(cls: Any, args: Any) -> None:
        raise _Parsed(args)

    module.ServerArgs.from_cli_args = classmethod(stop)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            if serve:
                argv = _served(argv)
            module.prepare_server_args(argv)
    except _Parsed as done:
        values = {name: value for name, value in vars(done.args[0]).items() if not name.startswith("_")}
        return {"accepted": True, "message": "", "values": values}
    except SystemExit:
        return {"accepted": False, "message": said.getvalue().strip().rpartition("error: ")[2], "values": {}}
    except Exception as error:
        return {"accepted": False, "message": f"{type(error).__name__}: {error}", "values": {}}
    raise AssertionError("from_cli_args was not reached")


def _served(argv: list[str]) -> list[str]:
    """The words that `sglang serve` hands to the parser; raises as it does."""
    from sglang.cli import serve, utils

    if hasattr(serve, "_extract_model_type_override"):
        _, argv = serve._extract_model_type_override(argv)
    if hasattr(serve, "_normalize_positional_model_path"):
        argv, _ = serve._normalize_positional_model_path(argv)
    utils.get_model_path(argv)
    return list(argv)


def _described(action: Any) -> dict[str, Any]:
    kind = getattr(action.type, "__name__", str(action.type)) if action.type else None
    choices = action.choices
    return {
        "dest": action.dest,
        "names": list(action.option_strings),
        "action": type(action).__name__,
        "nargs": action.nargs,
        "const": action.const,
        "default": action.default,
        "type": kind,
        "choices": sorted(map(str, choices)) if choices is not None else None,
        "required": action.required,
    }


if __name__ == "__main__":
    _main()
