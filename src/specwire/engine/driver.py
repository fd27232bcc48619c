"""Boots SGLang's engine on a job, in the engine's own interpreter: `python driver.py JOB.json`.

Run by path, so it needs SGLang and nothing of specwire. The job: `argv`, the server's arguments as
on its command line; `batches`, lists of prompts (token ids), those of one batch sent together;
`sampling_params`; `again`, whether the first answer is sent as a prompt; `output`, where the result goes. A job without
batches is a server: SGLang's own `launch_server` with these arguments. The engine lives as long as this process does, and this process
ends with the one that holds the other end of its standard input.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import signal
import sys
import threading
import time
from types import ModuleType
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]


def main(job_file: str) -> None:
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    with open(job_file, encoding="utf-8") as file:
        job = json.load(file)
    job = _whole(job)
    started = time.monotonic()
    if job["fork"]:
        _accept_newer_transformers()
    _insist_on(job["root"])
    _activate_plugin()
    if job["fork"]:
        _fork_instead_of_spawn()
    if "batches" not in job:
        _serve(job["argv"])
        return
    engine = _boot(job["argv"])
    booted = time.monotonic()
    print(f"specwire: engine up after {booted - started:.1f} s", flush=True)
    batches = _answers(engine, job)
    result = {
        "version": _version(),
        "batches": batches,
        "boot_seconds": round(booted - started, 3),
        "generate_seconds": round(time.monotonic() - booted, 3),
    }
    with open(job["output"] + ".part", "w", encoding="utf-8") as file:
        json.dump(result, file, default=str)
    os.replace(job["output"] + ".part", job["output"])
    print("specwire: done", flush=True)
    _end_the_others()
    engine.shutdown()
    os._exit(0)  # the interpreter would take seconds to unwind what is about to be killed anyway


def _whole(job: Any) -> Any:
    """The job with the words that were handed over apart from it, since it is a file."""
    for number, secret in enumerate(json.loads(os.environ.pop("SPECWIRE_HANDED", "[]"))):
        job = _replaced(job, f"<hidden {number}>", secret)
    return job


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [_replaced(each, old, new) for each in value]
    return {name: _replaced(each, old, new) for name, each in value.items()} if isinstance(value, dict) else value


def _insist_on(root: str) -> None:
    import sglang

    found = os.path.dirname(os.path.dirname(os.path.abspath(sglang.__file__)))
    if not os.path.samefile(found, root):
        raise RuntimeError(f"this interpreter imports sglang from {found}, although {root} comes first on its path")


def _boot(argv: list[str]) -> Any:
    import sglang
    from sglang.srt.server_args import prepare_server_args

    return sglang.Engine(server_args=prepare_server_args(argv))


def _serve(argv: list[str]) -> None:
    sys.argv = ["sglang.launch_server", *argv]
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


def _answers(engine: Any, job: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Each batch's answers. With `again`, the first prompt and what was said after it are then sent as a prompt."""
    asked: dict[str, Any] = {"sampling_params": job["sampling_params"]}
    if job.get("logprobs"):
        asked |= {"return_logprob": True, "logprob_start_len": 0}
    batches = [_generate(engine, prompts, asked) for prompts in job["batches"]]
    said = batches[0][0]["output_ids"][:-1] if batches and batches[0] else []
    if job.get("again") and said:
        try:
            again = {"sampling_params": {**job["sampling_params"], "max_new_tokens": 1}}
            _generate(engine, [[*job["batches"][0][0], *said]], asked | again)
        except Exception as error:  # what was asked for is there, and this is for one check alone
            print(f"specwire: the first answer could not be sent as a prompt: {error}", flush=True)
    return batches


def _generate(engine: Any, prompts: list[list[int]], asked: dict[str, Any]) -> list[dict[str, Any]]:
    answers = engine.generate(input_ids=prompts, **asked)
    return [{"output_ids": answer["output_ids"], "meta_info": answer["meta_info"]} for answer in answers]


def _activate_plugin() -> None:
    """The entry point does the same where specwire is installed; twice does no harm."""
    _beside("plugin").activate()


def _beside(name: str) -> ModuleType:
    """The module in the file of that name beside this one."""
    spec = importlib.util.spec_from_file_location(f"specwire_engine_{name}", os.path.join(HERE, f"{name}.py"))
    assert spec is not None and spec.loader is not None  # a file's always has one
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _accept_newer_transformers() -> None:
    """An earlier release registers models that a later transformers has of its own: no error here."""
    import transformers

    register = transformers.AutoConfig.register
    transformers.AutoConfig.register = staticmethod(lambda name, config, exist_ok=False: register(name, config, True))


def _fork_instead_of_spawn() -> None:
    """The engine asks for fresh interpreters, each of which imports it anew: ten seconds a rank. On the
    CPU, with no device context and no thread to lose, its processes can start as copies of this one."""
    import multiprocessing

    import sglang.srt.models.registry  # noqa: F401  (every rank would import all models)

    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda method, force=False: None


def _version() -> str:
    import sglang

    return str(getattr(sglang, "__version__", "unknown"))


def _end_with_the_caller() -> None:
    """Standard input ends when the caller does, however it ended; then nothing may stay behind."""
    while os.read(0, 4096):
        pass
    _end_the_others()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _end_the_others() -> None:
    """Kill the engine's processes, which take seconds when they are asked to end, so that they leave no memory."""
    segments = _beside("segments")
    if run_id := os.environ.get(segments.RUN_ID):
        segments.release(run_id, but=os.getpid())
        for pid in segments.processes_of(run_id):
            if pid != os.getpid():
                _kill(pid)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main(sys.argv[1])
