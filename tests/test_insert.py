"""What taps are not put into: each net below the promise, reached."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_trees import DEBUG, FILES, TAPPED, TARGET, applied, make_tree, snapshot

from specwire.patching import insert, marks, surgery
from specwire.patching.insert import NotTapped, render
from specwire.probe import Probe

NAME = "sglang/srt/models/target.py"
TAP = marks.marked("if _specwire.on: _specwire.captured(x)", "layer-capture").encode()


def test_lines_that_could_not_be_taken_out_again_are_not_put_in() -> None:
    known = surgery.probes()
    holds_a_mark = TARGET.replace(b"A target.", b"A target.  # specwire:x 00000000")
    with pytest.raises(NotTapped, match="would not be the same"):
        render(NAME, holds_a_mark, {name: known[name] for name in DEBUG})


@pytest.mark.parametrize(
    ("original", "data", "why"),
    [
        (b"x = 1\n", b"x = 1\n    " + TAP + b"\n", "would no longer be Python"),
        (b'"""\n"""\n', b'"""\n' + TAP + b'\n"""\n', "1 statements were to be inserted, 0 were"),
        (b"x = 1\n", b"x = 1\n" + TAP.replace(b"captured", b"seen") + b"\n", "1 statements were to be inserted"),
        (b"x = 1\n", b"x = 2\n", "would not be the same"),
    ],
    ids=["broken", "inside a string", "not by its checksum", "another line changed"],
)
def test_the_proof_can_fail(original: bytes, data: bytes, why: str) -> None:
    with pytest.raises(NotTapped, match=why):
        insert._prove(NAME, original, data, 0)


def test_a_tap_reads_nothing_that_may_not_be_bound() -> None:
    """An unbound name would raise into the engine: `hidden_states` is, `layer` is only once the loop ran."""

    def reading(names: str) -> dict[str, Probe]:
        def find(source):
            end = next(iter(surgery.probes()["forward-end"].find(source)))
            yield replace(end, code=f"forward_end(self, {names})")

        return {"made-up": Probe("debug", "", "", ("*",), (b"",), find)}

    assert render(NAME, TARGET, reading("hidden_states")).data != TARGET
    for names in ("layer", "nowhere", "hidden_states, layer"):
        with pytest.raises(NotTapped, match=f"would read {names.split(', ')[-1]}, which may not be bound there"):
            render(NAME, TARGET, reading(names))


@pytest.mark.parametrize(
    ("text", "why"),
    [(b"A target. _specwire", "uses the name _specwire"), (b"A target.  # specwire:x 00000000", "own mark as text")],
)
def test_a_file_with_our_name_or_mark_as_text_is_left_alone_and_said(text: bytes, why: str, tmp_path) -> None:
    tree = make_tree(tmp_path / "tree", FILES | {NAME: TARGET.replace(b"A target.", text)})
    outcome = surgery.plan_apply(tree, DEBUG)
    failed = [site for site in outcome.sites if site.state == "failed"]
    assert (outcome.result, outcome.exit_code) == ("partial", 3)
    assert {(site.file, site.probe) for site in failed} == {
        (NAME, name) for name in ("embedding-capture", "forward-end", "layer-capture")
    }
    assert all(why in site.why for site in failed) and NAME not in outcome.document()["files"]


def test_a_tap_that_would_not_be_put_there_now_is_not_lost(tmp_path) -> None:
    """The loop has been edited since: to render the file anew would drop the tap without a word."""
    tree = make_tree(tmp_path / "tree")
    applied(tree)
    captures = b"            if i in self.layers_to_capture:\n                aux_hidden_states.append(hidden_states + residual)\n"
    tree.path(NAME).write_bytes(tree.read(NAME).replace(captures, b""))
    outcome = surgery.plan_apply(tree, [*DEBUG, "hidden-state-dump"])
    failed = {site.probe for site in outcome.sites if site.state == "failed" and site.file == NAME}
    assert failed and all("would not be put there now" in site.why for site in outcome.sites if site.state == "failed")
    assert NAME not in outcome.document()["files"]


def test_a_tree_without_any_site_stays_as_it_is(tmp_path) -> None:
    tree = make_tree(tmp_path / "tree", {name: data for name, data in FILES.items() if name not in TAPPED})
    before = snapshot(tree.root)
    outcome = surgery.plan_apply(tree, DEBUG)
    outcome.write()
    assert (outcome.result, outcome.exit_code, {site.state for site in outcome.sites}) == ("nothing", 0, {"absent"})
    assert snapshot(tree.root) == before
