"""Every leaf of a result, changed to every wrong kind: a report is a page or one sentence, never a traceback."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from results import bench, failed, point, profile, sweep, verify

from specwire import cli, outgoing
from specwire.errors import SpecwireError
from specwire.report.contents import contents
from specwire.report.markdown import markdown
from specwire.report.page import page
from specwire.report.read import read_results

WRONG = (
    None, True, False, -1, 0, 1, 5e-324, 1e308, -1e308, 10**400, float("nan"), float("inf"), "", "x", "\x1b]0;p\x07\u202e",
    "\ud800", "x" * 300_000, [], [None], [1], ["x"], [[1]], {}, {"x": 1}, {"x": {"x": None}},
)  # fmt: skip


def documents(folder):
    for name in ("a", "b"):
        (folder / name).mkdir()
    base = point("baseline", 100, 101, 99, profile=profile(folder / "a", target=10.0))
    parts = profile(folder / "b", draft=1.0, target=8.5, verify=0.5, draft_extend=1.5)
    draft = point("draft", 130, 131, 129, draft="d", profile=parts)
    cause = {"id": "boundary-offset", "confidence": "certain", "evidence": "one off", "fix": "subtract one"}
    swept = sweep(base, draft, failed("bad"))
    swept["left_out"] = [{"where": {"steps": 1}, "why": "no tree"}]
    swept["confirmation"] = [base, draft]
    return {
        "verify": verify("mismatch", cause) | {"run": {"tree": "/t", "version": "1", "sha256": {"tree": "ab"}}},
        "bench": bench(base, draft, failed("bad")),
        "sweep": swept,
    }


def places(value, path=()):
    """Every place of a document, leaves and branches."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for name in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[name], (*path, name))


def changed(document, path, value):
    document = copy.deepcopy(document)
    at = document
    for name in path[:-1]:
        at = at[name]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


def reported(folder, document):
    """The page's and the Markdown's text; None with a sentence."""
    file = folder / "result.json"
    file.write_text(json.dumps(document))
    try:
        blocks = contents(read_results([file]))
    except SpecwireError as error:
        assert str(error) and len(outgoing.sentence(str(error))) < 2500
        return None
    written = outgoing.clean(page("Title", blocks) + markdown("Title", blocks))
    written.encode()
    assert not any(char in written for char in "\x1b\x07\u202e")
    return written


@pytest.mark.parametrize("kind", ["verify", "bench", "sweep"])
def test_as_made(tmp_path, kind):
    assert reported(tmp_path, documents(tmp_path)[kind])


@pytest.mark.parametrize("kind", ["verify", "bench", "sweep"])
@pytest.mark.parametrize(
    "wrong, step",
    [
        pytest.param((None, "x", -1, [], {}, ...), 23, id="few"),
        pytest.param((*WRONG, ...), 1, marks=pytest.mark.slow, id="all"),
    ],
)
def test_every_place(tmp_path, kind, wrong, step):
    document, pages, sentences = documents(tmp_path)[kind], 0, 0
    for path in list(places(document))[::step]:
        for value in wrong:
            try:
                if reported(tmp_path, changed(document, path, value)) is None:
                    sentences += 1
                else:
                    pages += 1
            except Exception as error:
                raise AssertionError(f"{path} = {str(value)[:40]!r}: {error!r}") from error
    print(f"{kind}: {pages + sentences} changed: {pages} pages, {sentences} sentences")
    assert pages and sentences


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_several_places_at_once(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("x")
    document = documents(folder)[data.draw(st.sampled_from(["verify", "bench", "sweep"]))]
    for _ in range(data.draw(st.integers(2, 6))):
        known = list(places(document))
        if known:
            document = changed(document, data.draw(st.sampled_from(known)), data.draw(st.sampled_from((*WRONG, ...))))
    reported(folder, document)


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "5", "{}", '{"schema": []}', '{"schema": {}}', '{"schema": "x"}', "[" * 99_999]
)
def test_other_documents(tmp_path, text, capsys):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(SystemExit) as end:
        cli.main(["report", str(tmp_path / "result.json"), "--out", str(tmp_path / "r.html")])
    assert end.value.code == 2 and "Traceback" not in capsys.readouterr().err and not (tmp_path / "r.html").exists()
