"""Whatever the file and whatever befalls it: taps leave every other byte, and changes are all or nothing.

SPECWIRE_EXAMPLES=N raises the number of examples of each property from a quick handful.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from faults import Fault, stopped
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trees import DRAFT, LOGITS, TARGET, make_tree, snapshot

from specwire.patching import marks, surgery
from specwire.patching.taps import TappedFile, unchanged
from specwire.trees.transaction import Change, commit, pending, recover

EXAMPLES = int(os.environ.get("SPECWIRE_EXAMPLES", "10"))
ends = st.sampled_from([b"\n", b"\r\n"])


@contextlib.contextmanager
def folder():
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where, prefix="specwire-") as name:
        yield Path(name)


def given_quickly(*strategies, share=1.0):
    def decorate(function):
        return settings(max_examples=int(EXAMPLES * share), deadline=None, derandomize=EXAMPLES <= 10)(
            given(*strategies)(function)
        )

    return decorate


# --- marks over any bytes -----------------------------------------------------------------------------

tap_lines = st.builds(
    lambda code, probe, hashed: marks.marked(code, probe, "0" * 64 if hashed else None).encode(),
    st.sampled_from(
        [
            "if _specwire.on: _specwire.x(a, b)",
            "@_specwire.timed('x')",
            "from sglang.srt import _specwire",
            "é = 1",
        ]
    ),
    st.sampled_from(["draft-input", "import", "x"]),
    st.booleans(),
)
pieces = st.one_of(
    st.binary(max_size=30),
    tap_lines,
    st.sampled_from([b"\n", b"\r", b"\r\n", b"\x0c", b"# specwire:", b'"""', b"\x85"]),
)


@given_quickly(st.lists(pieces, max_size=12).map(b"".join), share=10)
def test_stripped(data):
    after = marks.stripped(data)
    assert marks.marks(after) == []
    assert marks.stripped(after) == after
    assert after == b"".join(line for line in data.splitlines(keepends=True) if marks.LITERAL not in line)


@given_quickly(st.binary(max_size=200), st.sets(st.integers(1, 20)), share=10)
def test_without(data, lines):
    kept = marks.without(data, lines).splitlines(keepends=True)
    assert kept == [line for number, line in enumerate(data.splitlines(keepends=True), 1) if number not in lines]


@given_quickly(st.lists(pieces, max_size=12).map(b"".join), share=10)
def test_any_bytes_can_be_looked_at(data):
    file = TappedFile(data)
    for each in file.found:
        assert each.stuck or each.cuts
    loose = [each for each in file.found if not each.stuck]
    proof, problem = unchanged(file, loose, file.without(loose), [each for each in file.found if each.stuck])
    assert bool(proof) != bool(problem)


@given_quickly(st.binary(max_size=300), share=5)
def test_seal(rest):
    data = marks.sealed(b"# specwire:runtime " + rest)
    assert marks.seal(data) == "intact"
    assert marks.seal(data.replace(b"\r\n", b"\n")) == "intact"
    assert marks.seal(data + b"x") == "edited" and marks.seal(data[1:]) == "foreign"


# --- modules of all kinds -----------------------------------------------------------------------------


@st.composite
def modules(draw, depth=0):
    """Lines of a block, each with its depth: statements among comments, blanks, strings, decorators."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from("simple simple comment blank semicolons string call def class if try".split()))
        if kind == "simple":
            lines.append((depth, draw(st.sampled_from([b"x = 1", b"pass", b"x += 1  # \xc3\xa9", b"global_ = 'y'"]))))
        elif kind == "comment":
            lines.append((draw(st.sampled_from([depth, 0])), b"# a comment"))
        elif kind == "blank":
            lines.append((0, draw(st.sampled_from([b"", b"   ", b"\t"]))))
        elif kind == "semicolons":
            lines.append((depth, b"x = 1; y = 2;"))
        elif kind == "string":
            lines += [
                (depth, b'"""text'),
                (0, b"# specwire:draft-input 00000000"),
                (0, b"if _specwire.on: x()"),
                (0, b'"""'),
            ]
        elif kind == "call":
            lines += [(depth, b"print("), (0, b"  1,  # one"), (0, b")")]
        elif depth < 3:
            head = {"def": b"def f(self, x):", "class": b"class C:", "if": b"if x:", "try": b"try:"}[kind]
            if kind in ("def", "class") and draw(st.booleans()):
                lines.append((depth, b"@staticmethod"))
            lines += [(depth, head), *draw(modules(depth + 1)), (depth + 1, b"pass")]
            if kind == "if" and draw(st.booleans()):
                lines += [(depth, b"else:"), *draw(modules(depth + 1)), (depth + 1, b"pass")]
            if kind == "try":
                lines += [(depth, b"finally:"), *draw(modules(depth + 1)), (depth + 1, b"pass")]
    return lines


CODES = ("if _specwire.on: _specwire.x(self, a)", "_specwire.y()")


@st.composite
def tapped_modules(draw, codes=CODES):
    """(a module, the same with tap lines above some of its statements)."""
    lines = [*draw(modules()), (0, b"x = 0")]
    end, indent = draw(ends), draw(st.sampled_from([b"    ", b"\t", b"  "]))
    plain, tapped, inside = [], [], False
    for depth, text in lines:
        line = indent * depth + text + end
        starts = not inside and text.strip() and not text.startswith((b"#", b"else", b"finally", b"except", b"@"))
        inside = inside ^ (text.startswith((b'"""', b"print(")) or text == b")")
        if starts and not (plain and plain[-1].lstrip().startswith(b"@")) and draw(st.booleans()):
            code = draw(st.sampled_from(["if _specwire.on: _specwire.x(self, a)", "_specwire.y()", "older(1)"]))
            tapped.append(indent * depth + marks.marked(code, "draft-input").encode() + end)
        if text.startswith((b"def", b"class")) and draw(st.booleans()) and not plain[-1:][:1] == [b"@"]:
            tapped.append(indent * depth + marks.marked("@_specwire.timed('x')", "worker-profile").encode() + end)
        plain.append(line)
        tapped.append(line)
    return b"".join(plain), b"".join(tapped)


@given_quickly(tapped_modules((*CODES, "older(1)")), share=5)
def test_taps_leave_every_other_byte(both):
    plain, tapped = both
    file = TappedFile(tapped)
    assert file.module is not None, tapped.decode()
    assert len(file.found) == len(tapped.splitlines()) - len(plain.splitlines())
    assert all(each.intact for each in file.found)
    after = file.without(file.found)
    assert after == plain
    assert unchanged(file, list(file.found), after, []) == ("syntax-tree", "")


@given_quickly(tapped_modules(), st.randoms(), share=5)
def test_taps_edited_by_a_hand_or_a_formatter(both, random):
    """Every tap reflowed, unmarked or given another argument: gone by force, and nothing else with it."""
    plain, tapped = both
    end = b"\r\n" if b"\r\n" in tapped else b"\n"
    lines = []
    for line in tapped.splitlines(keepends=True):
        code, mark, tail = line.partition(b"  # specwire:")
        if not mark or b"_specwire." not in code:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        how = random.choice(["unmarked", "argument", "reflowed", "same"])
        if how == "unmarked":
            line = code + end
        elif how == "argument":
            line = code.replace(b"(", b"(0, ") + mark + tail
        elif how == "reflowed" and b": " in code:
            head, call = code.split(b": ")
            line = (
                head
                + b":"
                + end
                + indent
                + b"    "
                + call.replace(b"(", b"(" + end + indent + b"        ")
                + mark
                + tail
            )
        lines.append(line)
    file = TappedFile(b"".join(lines))
    assert all(each.cuts for each in file.found)
    after = file.without(file.found)
    assert after == plain
    assert unchanged(file, list(file.found), after, [])[0] == "syntax-tree"


# --- trees --------------------------------------------------------------------------------------------


@st.composite
def disguised(draw, source: bytes) -> bytes:
    """The same program in another dress: comments, blank lines, other line ends, a mark at its front."""
    lines = source.splitlines()
    out = []
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        if not line.strip() or draw(st.integers(0, 5)):
            out.append(line)
        else:
            out += [draw(st.sampled_from([indent + b"# note", b"", b"# note at the left", b"   "])), line]
    end = draw(ends)
    data = end.join(out) + draw(st.sampled_from([end, b"", end + end]))
    return draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"])) + data


trees = st.fixed_dictionaries(
    {
        "sglang/__init__.py": st.just(b""),
        "sglang/srt/__init__.py": st.just(b""),
        "sglang/srt/models/target.py": disguised(TARGET),
        "sglang/srt/models/draft_eagle3.py": disguised(DRAFT),
        "sglang/srt/layers/logits_processor.py": disguised(LOGITS),
        "sglang/srt/other.py": st.binary(max_size=40).filter(lambda data: marks.WORD not in data),
    }
)
names = st.lists(st.sampled_from(sorted(surgery.probes())), min_size=1, max_size=5, unique=True)


@given_quickly(trees, st.lists(st.tuples(st.booleans(), names), min_size=1, max_size=3))
def test_any_order_of_applying_and_removing(files, steps):
    """The tree depends on which taps are in, not on how they came; without any, it is the original."""
    with folder() as place:
        tree = make_tree(place, files)
        before, present = snapshot(place), set()
        for insert, chosen in steps:
            if insert:
                outcome = surgery.plan_apply(tree, chosen)
                assert outcome.result in ("applied", "already", "nothing"), outcome.sites
            else:
                outcome = surgery.plan_remove(tree, chosen)
                assert outcome.result in ("removed", "nothing"), outcome.sites
                assert set(outcome.proofs.values()) <= {"original-hash"}
            outcome.write()
            present = present | set(chosen) if insert else present - set(chosen)
            now = snapshot(place)
            assert surgery.plan_apply(tree, sorted(present)).changes == [] if present else now == before
        surgery.plan_remove(tree).write()
        assert snapshot(place) == before


@given_quickly(trees, st.data())
def test_edits_elsewhere_survive(files, data):
    with folder() as place:
        tree = make_tree(place, files)
        surgery.plan_apply(tree, surgery.chosen((), ("debug", "capture"))).write()
        expected = {}
        for name in ("sglang/srt/models/target.py", "sglang/srt/models/draft_eagle3.py"):
            end = b"\r\n" if b"\r\n" in tree.read(name) else b"\n"
            addition = (
                end
                + data.draw(st.sampled_from([b"extra = 1", b"def extra():" + end + b"    return '_x'", b"# a note"]))
                + end
            )
            tree.path(name).write_bytes(tree.read(name) + addition)
            expected[name] = files[name] + addition
        outcome = surgery.plan_remove(tree)
        assert outcome.result == "removed" and outcome.clean
        outcome.write()
        assert {name: tree.read(name) for name in expected} == expected
        assert not tree.path(marks.RUNTIME).exists()


# --- transactions -------------------------------------------------------------------------------------

contents = st.one_of(st.none(), st.binary(max_size=12))
file_names = st.sampled_from(["a.py", "b.py", "sub/c.py", "sub/ü d.py", "sub/deep/e"])


@given_quickly(
    st.dictionaries(file_names, contents, min_size=1),
    st.dictionaries(file_names, contents, min_size=1),
    st.integers(0, 120),
    st.sampled_from(["before", "after", "half", "error"]),
    st.sampled_from([5, 13, 28]),
    share=3,
)
def test_all_or_nothing(before, wanted, at, how, number):
    with folder() as root:
        for name in ("sub/deep", "sub"):
            (root / name).mkdir(parents=True, exist_ok=True)
        for name, data in before.items():
            if data is not None:
                (root / name).write_bytes(data)
        changes = [Change(root / name, before.get(name), data) for name, data in wanted.items()]
        old = snapshot(root)
        report = stopped(lambda: commit(root, changes), Fault(at, how, number))
        recover(root)
        now = {name: entry[2] for name, entry in snapshot(root).items() if entry[2] is not None}
        new = {name: data for name, data in {**before, **wanted}.items() if data is not None}
        assert not pending(root)
        assert snapshot(root) == old or now == new
        if report.end == "done":
            assert now == new
        if report.end == "raised":
            assert snapshot(root) == old or not isinstance(report.value, OSError)
