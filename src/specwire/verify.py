"""The main job: a patched view of a tree, the real engine on the golden's tokens, a verdict, and the proof
that the tree is what it was."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import stat
import threading
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.answers import Answers, answer, write_answers
from specwire.capture import open_capture
from specwire.diagnosis.check import EXIT, check_capture
from specwire.diagnosis.context import make_context
from specwire.diagnosis.replays import beside
from specwire.engine.arguments import last_number
from specwire.engine.graphs import Eager, eager
from specwire.engine.run import resolve_device
from specwire.errors import FAULT, FINDING, SpecwireError
from specwire.goldens.golden import check_token_ids, open_golden
from specwire.model_files import checkpoint, read_config, text_config, weight_files
from specwire.patching import marks, surgery
from specwire.patching.overlay import make_overlay
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.launch import in_words
from specwire.preflight.option_source import read_options
from specwire.progress import Progress
from specwire.regular import make_private, open_regular, read_source
from specwire.sites.serving import serving_files
from specwire.trees.identity import model_identity, tree_identity
from specwire.trees.tree import Tree

if TYPE_CHECKING:
    from specwire.engine.run import EngineFailed, EngineResult, RunDriver

DUMP = "hidden-state-dump"
# One from the prefill, and rounds enough that one begins where another ended, if any draft is rejected: its place, its
# state and its tokens are judged as well.
NEW_TOKENS = 3
# Sent together: code that several requests go through is other code than for one. As many as an engine surely has room for.
TOGETHER, TOKENS_TOGETHER = 8, 4096


@dataclass(frozen=True)
class Job:
    """What to run on what. `engine_arguments` are the server's own, and win over the defaults."""

    tree: Tree
    target: Path
    draft: Path
    golden: Path | None
    ranks: int
    device: str
    python: str
    engine_arguments: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    timeout: float | None = None
    tokens: tuple[tuple[int, ...], ...] = ()  # without a golden: the prompts; default ones when there is none
    new_tokens: int = NEW_TOKENS
    graphs: str = "on"  # CUDA graphs: on, as launched; off, so that all runs as Python; or both, one after the other
    batches: tuple[tuple[int, ...], ...] = ()  # numbers of prompts that are sent together; by default see `_together`
    drafting: bool = True  # whether the engine is given the draft at all


def probes_of(names: Sequence[str], golden: bool) -> tuple[str, ...]:
    """The probes that a job taps with: those named, else all for debugging. Without a golden `hidden-state-dump`, too:
    its last boundary is the stream before the final norm."""
    own = () if golden or names else ("hidden-state-dump",)
    return (*surgery.chosen(names, ()), *own)


def check_job(job: Job) -> None:
    """Raises SpecwireError with one sentence for the first thing that is missing or does not fit.

    Nothing has been booted or written by then.
    """
    target = text_config(read_config(job.target))
    _check_one_node(job)
    check_token_ids(_prompts(job), target["vocab_size"], str(job.golden or "--tokens"))
    if not read_config(job.draft).get("architectures"):
        raise SpecwireError(f"{job.draft}/config.json names no architecture: is this a draft model's directory?")
    for role, place in (("target", job.target), ("draft", job.draft)):
        if not weight_files(place):
            raise SpecwireError(f"the {role}'s directory {place} holds no weights (*.safetensors or *.bin)")
    checkpoint(job.draft)


def _check_one_node(job: Job) -> None:
    """Raises SpecwireError for a launch whose ranks are not all this run's to watch."""
    by_hand = (
        "Tap a view (specwire apply --overlay DIR), start it by hand with EAGLE3_DEBUG=1 and EAGLE3_CAPTURE_DIR set on "
        "every node, bring all rank* folders into one directory, and give that to specwire check --capture"
    )
    nodes = last_number(job.engine_arguments, "--nnodes")
    if nodes > 1:
        raise SpecwireError(f"--nnodes {nodes}: one node is started and watched from here. {by_hand}.")
    replicas = last_number(job.engine_arguments, "--dp-size", "--data-parallel-size", "--dp")
    if replicas > 1 and "--enable-dp-attention" not in job.engine_arguments:
        raise SpecwireError(
            f"--dp-size {replicas} without --enable-dp-attention: replicas that each have a rank 0, whose rows would be "
            "mixed. Leave it out: they are all alike, and one is enough to look at."
        )


def _prompts(job: Job) -> list[list[int]]:
    """The golden's prompts, those that were given, or short default ones."""
    if job.golden:
        return [list(prompt.token_ids) for prompt in open_golden(job.golden).prompts]
    from specwire.goldens.build import default_prompts

    return [list(ids) for ids in job.tokens] or default_prompts(text_config(read_config(job.target))["vocab_size"])


def verify(
    job: Job,
    out: Path,
    progress: Progress,
    accept_length: float | None = None,
    trained: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Overlay, apply, run, check, remove, and the proof; the document of `check` with `tree_restored` added.

    `accept_length`: tokens per verification that were seen in service; a hint, never a proof. `trained` takes the
    place of the golden's list.

    Raises SpecwireError when the engine ends early and nothing is wrong with what it captured until then. The tree
    itself is never written.
    """
    check_job(job)
    before = fingerprint(job.tree)
    view = patched_view(job, out / "tree", progress)
    document = judged_run(job, view, out, progress, accept_length=accept_length, trained=trained)
    if job.graphs == "both":
        progress("once more, without graphs")
        eager_job = replace(job, graphs="off")
        other = judged_run(eager_job, view, out / "eager", progress, accept_length=accept_length, trained=trained)
        document = beside_eager(document, other, out)
    after = fingerprint(job.tree)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    document["tree_restored"] = restored(view, job.tree) and not changed
    if not document["tree_restored"]:
        where = f"changed meanwhile: {', '.join(changed[:3])}" if changed else "its view was edited"
        document["notes"].insert(0, f"NOT RESTORED: that the tree is what it was cannot be shown ({where})")
    return document


def judged_run(
    job: Job,
    view: Path,
    out: Path,
    progress: Progress,
    *,
    accept_length: float | None = None,
    trained: Sequence[int] | None = None,
    settings: Mapping[str, str] | None = None,
    driver: RunDriver | None = None,
) -> dict[str, Any]:
    """Run the job on `view` and judge what it captured; likewise when the engine ends early, if that shows a fault.

    `settings` are of the engine's environment; `driver` runs it otherwise than in a fresh interpreter.

    Raises SpecwireError when the engine ends early, and what it captured until then tells no reason.
    """
    from specwire.engine.run import EngineFailed

    # What compares takes a second to import, for which the engine's boot has room.
    threading.Thread(target=importlib.import_module, args=("torch",), daemon=True).start()
    comparing = "comparing with the golden" if job.golden else "comparing the last states with the answers"
    try:
        result = _run_engine(job, view, out, progress, settings or {}, driver)
    except EngineFailed as died:
        progress(comparing)
        document = _before_it_died(job, out, died, accept_length, trained)
        record = run_record(job, out, None, died)
    else:
        progress(comparing)
        document = check_run(job, out, _accepted(job, result) if accept_length is None else accept_length, trained)
        record = run_record(job, out, result)
    document["notes"] = [*document["notes"], *_eager_said(job)]
    document["run"] = record
    return document


def beside_eager(document: dict[str, Any], eager: dict[str, Any], out: Path) -> dict[str, Any]:
    """The document of a run as launched, with what a run without graphs (its capture is below `out`/eager) says of it.

    A match only where both are; a row that is another in a replay than in the eager forward is a mismatch.
    """
    found = beside(open_capture(out / "eager" / "capture").events, open_capture(out / "capture").events)
    reasons = list(found.off)
    if not found.replayed:
        reasons.append("no replay was recorded: nothing is known of the launch's graphs")
    if eager["verdict"] != "match":
        reasons.append(f"without graphs the verdict is {eager['verdict']}")
    verdict = document["verdict"]
    if eager["verdict"] == "mismatch" or found.off:
        verdict = "mismatch"
    elif reasons and verdict == "match":
        verdict = "inconclusive"
    return {
        **document,
        "verdict": verdict,
        "why": [*document["why"], *reasons] if verdict == "inconclusive" else document["why"],
        "notes": [*document["notes"], *(f"with graphs and without: {one}" for one in reasons)],
        "eager": {name: eager[name] for name in ("verdict", "why", "causes", "slots")},
        "replays": found.document(),
    }


def _before_it_died(
    job: Job, out: Path, died: EngineFailed, accept_length: float | None, trained: Sequence[int] | None
) -> dict[str, Any]:
    """The verdict on what was captured before the engine ended, which can be a fault and never a match."""
    try:
        document = check_run(job, out, accept_length, trained)
    except SpecwireError:
        document = None  # nothing was captured
    if document is None or EXIT[document["verdict"]] != FINDING:
        raise SpecwireError(f"{died}{_seen_before(job)}") from died
    document["notes"].insert(0, f"{died}; judged is what was captured until then")
    return document


def _accepted(job: Job, result: EngineResult) -> float | None:
    """Tokens per verification in this run, by the engine's own word, where enough were generated to tell."""
    said = [one.meta.get("spec_accept_length") for batch in result.batches for one in batch]
    known = [length for length in said if length is not None]
    return sum(known) / len(known) if known and job.new_tokens > NEW_TOKENS else None


def _seen_before(job: Job) -> str:
    """What preflight finds wrong with a job whose engine failed, as the end of the message about that."""
    from specwire.preflight import preflight

    paths = ["--model-path", str(job.target), "--speculative-draft-model-path", str(job.draft)]
    try:
        launch = in_words([*paths, *_as_launched(job), "--device", job.device])
        causes = preflight(job.target, job.draft, [job.tree], launch=launch, golden=job.golden)["causes"]
    except SpecwireError:
        return ""
    return "".join(
        f". preflight: {row['id']} ({row['confidence']}): {row['evidence']}; fix: {row['fix']}" for row in causes
    )


def patched_view(job: Job, where: Path, progress: Progress) -> Path:
    """An overlay of the job's tree with the taps in it: the chosen ones, or all of `debug` and, where the release's loop
    can be read, the dump, whose last boundaries tell what a golden's end is."""
    names = surgery.chosen(job.probes, ())
    outcome = surgery.plan_apply(job.tree, names if job.probes else [*names, DUMP], progress, _serving(job))
    failed = [site for site in outcome.sites if site.state in ("failed", "edited")]
    if outcome.exit_code == FAULT:
        bad = failed[0]
        raise SpecwireError(f"{bad.file}:{bad.line}: {bad.probe} in {bad.qualname or 'the file'}: {bad.why}")
    for name in sorted({site.file for site in failed}):
        progress(f"{name}: a site was not recognised; a model that goes through there is not seen whole")
    return make_overlay(outcome, where)


def _serving(job: Job) -> Container[str] | None:
    """The model files that serve the job's target; None, for all, where that cannot be told. To tap every target of a
    release takes seconds, and what does not run cannot tell anything."""
    try:
        return serving_files(job.tree, read_config(job.target).get("architectures") or ())
    except SpecwireError:
        return None


def run(
    job: Job,
    view: Path,
    out: Path,
    progress: Progress,
    *,
    settings: Mapping[str, str] | None = None,
    driver: RunDriver | None = None,
) -> EngineResult:
    """Boot the engine of `view` and give it the golden's prompts; captures go to `out`/capture. The rest: `judged_run`."""
    from specwire.engine.run import EngineFailed

    try:
        return _run_engine(job, view, out, progress, settings or {}, driver)
    except EngineFailed as error:
        raise SpecwireError(f"{error}{_seen_before(job)}") from error


def _run_engine(
    job: Job, view: Path, out: Path, progress: Progress, settings: Mapping[str, str], driver: RunDriver | None
) -> EngineResult:
    from specwire.engine.run import run_engine

    captures = out / "capture"
    make_private(captures)
    prompts = _prompts(job)
    together = _batches(job, prompts)
    # The golden's end needs the last two boundaries alone; whoever asks for the dump wants what he asked for.
    chosen = DUMP in job.probes or "EAGLE3_CAPTURE_BOUNDARIES" in os.environ
    boundaries = {} if chosen else {"EAGLE3_CAPTURE_BOUNDARIES": f"{_layers(job) - 1},{_layers(job)}"}
    graph_rows = {} if "EAGLE3_GRAPH_ROWS" in os.environ else {"EAGLE3_GRAPH_ROWS": str(max(1024, _tokens(job)))}
    result = run_engine(
        view,
        job.target,
        job.draft if job.drafting else None,
        [[prompts[number] for number in batch] for batch in together],
        tp=job.ranks,
        device=job.device,
        extra_args=list(as_run(job).arguments),
        env={"EAGLE3_CAPTURE_DIR": str(captures), "EAGLE3_DEBUG": "1", **boundaries, **graph_rows, **settings},
        out=out,
        max_new_tokens=job.new_tokens,
        python=job.python,
        on_progress=progress,
        timeout=job.timeout,
        run=driver,
        logprobs=job.golden is None,
        again=job.drafting and job.new_tokens > 1,
    )
    said = [
        answer(prompts[number], completion.output_ids, completion.meta, place)
        for place, (numbers, batch) in enumerate(zip(together, result.batches, strict=True))
        for number, completion in zip(numbers, batch, strict=True)
    ]
    write_answers(captures, Answers(tuple(said), job.ranks))
    return result


def _batches(job: Job, prompts: Sequence[Sequence[int]]) -> Sequence[tuple[int, ...]]:
    return job.batches or _together([len(prompt) for prompt in prompts])


def _together(lengths: Sequence[int]) -> list[tuple[int, ...]]:
    """Which prompts, of so many tokens, are sent together: the first alone, the others in as few batches as are small."""
    batches = [[0]]
    for number in range(1, len(lengths)):
        tokens = sum(lengths[each] for each in (*batches[-1], number))
        if len(batches) == 1 or len(batches[-1]) == TOGETHER or tokens > TOKENS_TOGETHER:
            batches.append([])
        batches[-1].append(number)
    return [tuple(batch) for batch in batches]


@functools.lru_cache(maxsize=4)
def as_run(job: Job) -> Eager:
    """The engine's arguments as they are given, or with its graphs off where the job wants that."""
    if not _may_have_graphs(job):
        return Eager(job.engine_arguments, ())
    if job.graphs != "off":
        return Eager((_chunks(job), *job.engine_arguments), ())
    try:
        options: Collection[str] = read_options(Source(job.tree)).by_name
    except SpecwireError:
        options = ("--disable-cuda-graph",)  # every release has it; what is replayed all the same, the taps will say
    return eager(job.engine_arguments, options)


def _chunks(job: Job) -> str:
    """Chunks of a prefill in which every prompt is whole: the release's own size, which is 2048 tokens or more, if it can
    be. Without chunks, as eager runs have it, 0.5.23 captures no prefill: the sizes of its graphs end at a chunk's."""
    tokens = _tokens(job)
    return "--no-chunked-prefill-size" if tokens <= 2048 else f"--chunked-prefill-size={1 << (tokens - 1).bit_length()}"


def _tokens(job: Job) -> int:
    """Of the largest batch of prompts that are sent together, with what is generated."""
    prompts = _prompts(job)
    return max(sum(len(prompts[number]) + job.new_tokens for number in batch) for batch in _batches(job, prompts))


def _may_have_graphs(job: Job) -> bool:
    """On a CPU the engine is started without graphs, unless the launch takes that back."""
    return resolve_device(job.device, job.python) == "cuda" or "--no-disable-cuda-graph" in job.engine_arguments


def _eager_said(job: Job) -> list[str]:
    """That what was judged ran without the launch's graphs, where that is so."""
    found = as_run(job)
    if job.graphs != "off" or found.arguments == job.engine_arguments:
        return []
    without = f"; {', '.join(found.left_out)} of the launch was left out" if found.left_out else ""
    return [
        "the launch's CUDA graphs were off (--graphs on leaves them as launched)"
        f"{without}: a fault of the replays alone is not seen"
    ]


def _layers(job: Job) -> int:
    layers: int = text_config(read_config(job.target))["num_hidden_layers"]
    return layers


def check_run(
    job: Job, out: Path, accept_length: float | None = None, trained: Sequence[int] | None = None
) -> dict[str, Any]:
    """The verdict on what a run of the job captured, judged with all that the job says about itself."""
    context = make_context(
        target=job.target,
        draft=job.draft,
        launch=in_words(_as_launched(job)),
        tree=job.tree,
        accept_length=accept_length,
        trained=trained,
    )
    return check_capture(job.golden, out / "capture", context)


def _as_launched(job: Job) -> list[str]:
    given = list(job.engine_arguments)
    algorithm = (
        [] if any(word.startswith("--speculative-algo") for word in given) else ["--speculative-algorithm", "EAGLE3"]
    )
    return [*algorithm, "--tp-size", str(job.ranks), *given]


def run_record(job: Job, out: Path, result: EngineResult | None, died: EngineFailed | None = None) -> dict[str, Any]:
    """What a report needs to tell how the numbers came about; without a result, how the engine `died`."""
    return {
        "tree": str(job.tree.root),
        "version": job.tree.version,
        "target": str(job.target),
        "draft": str(job.draft),
        "golden": str(job.golden) if job.golden else None,
        "device": result.device if result else job.device,
        "engine_arguments": list(job.engine_arguments),
        "graphs": "as launched" if job.graphs != "off" or as_run(job).arguments == job.engine_arguments else "off",
        "seconds": round(result.boot_seconds + result.generate_seconds, 1) if result else None,
        "died": None if died is None else str(died),
        "log": str(result.log if result else out / "engine.log"),
        "out": str(out),
        "sha256": {
            "tree": tree_identity(job.tree)["sha256"],
            "target": model_identity(job.target)["sha256"],
            "draft": model_identity(job.draft)["sha256"],
        },
    }


def restored(view: Path, tree: Tree) -> bool:
    """Take the taps out of the view again, and say whether every file of it is the tree's, byte for byte.

    A tree that had taps of its own before is compared as it is without them.
    """
    outcome = surgery.plan_remove(Tree.find(view))
    if outcome.exit_code:
        return False
    outcome.write()
    patched = [change.path for change in outcome.changes if change.after is not None]
    same = all(read_source(path) == marks.stripped(tree.read(os.fspath(path.relative_to(view)))) for path in patched)
    return same and surgery.status(Tree.find(view)).result == "nothing"


def fingerprint(tree: Tree) -> dict[str, tuple[int, str]]:
    """Mode and SHA-256 of every file of the package by name; caches of compiled code belong to whoever runs it."""
    found = {}
    for folder, folders, files in os.walk(tree.package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            path = Path(folder, name)
            mode = stat.S_IMODE(path.lstat().st_mode)
            with open_regular(path) as file:
                found[str(path.relative_to(tree.root))] = (mode, hashlib.file_digest(file, "sha256").hexdigest())
    return found
