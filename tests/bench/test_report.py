"""The report: plain about what was found, the same in both forms, safe and whole by itself."""

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from results import bench, failed, point, profile, sweep, verify

from specwire.bench.server import launch_line
from specwire.report.charts import Interval, columns, intervals, stacked
from specwire.report.contents import contents
from specwire.report.markdown import markdown
from specwire.report.page import page

SPECWIRE = [sys.executable, "-c", "from specwire.cli import main; main()"]


def both(*documents):
    blocks = contents(documents)
    return page("Title", blocks), markdown("Title", blocks)


def test_slower_is_said_plainly():
    for text in both(bench(point("baseline", 100, 101, 99), point("draft", 82, 83, 81, draft="d"))):
        assert "SLOWER" in text and "costs throughput" in text and "0.820 x baseline" in text


def test_faster_and_noise_are_said_plainly():
    for text in both(bench(point("baseline", 100, 101, 99), point("draft", 130, 131, 129, draft="d"))):
        assert "FASTER" in text
    for text in both(bench(point("baseline", 100, 120, 80), point("draft", 101, 80, 125, draft="d"))):
        assert "no difference beyond noise" in text and "FASTER" not in text


def test_wiring_comes_first_and_names_its_cause():
    cause = {"id": "boundary-offset", "confidence": "certain", "evidence": "one off", "fix": "subtract one"}
    whole, text = both(bench(point("baseline", 1, 2), point("draft", 1, 2, draft="d")), verify("mismatch", cause))
    for each in (whole, text):
        assert (
            "does NOT get" in each and each.index("boundary-offset") < each.index("Speed:") and "subtract one" in each
        )


def test_sweep_names_setting_and_launch_line():
    for text in both(sweep(point("base", 100, 101, 99), point("steps=2", 130, 131, 129, draft="d"), failed("steps=5"))):
        assert (
            "launch steps=2" in text
            and "out of memory; the log's last error: the log says so" in html.unescape(text)
            and "/log" in text
        )
        assert "steps=2: mind this" in text
    for text in both(sweep(point("base", 100, 101, 99), point("steps=2", 70, 71, 69, draft="d"))):
        assert "Speculation does not pay here" in text and "launch base" in text
    for text in both(sweep(failed("base"), point("steps=2", 70, 71, 69, draft="d"))):
        assert "no verdict" in text


def test_where_the_time_goes(tmp_path):
    base, draft = tmp_path / "a", tmp_path / "b"
    base.mkdir(), draft.mkdir()
    points = (
        point("baseline", 100, 101, profile=profile(base, target=10.0)),
        point("draft", 80, 81, draft="d", profile=profile(draft, draft=1.0, target=8.5, verify=0.5, draft_extend=1.5)),
    )
    whole, text = both(bench(*points))
    assert "verification takes 78% of a cycle" in text and "| target's forward | 6.67 | 5.67 |" in text
    assert whole.count("<svg") == 3


class Outside(HTMLParser):
    """Collects what a page would fetch or run, and checks that it is closed as it is opened."""

    def __init__(self):
        super().__init__()
        self.reaches, self.open = [], []

    def handle_starttag(self, tag, attributes):
        self.reaches += [
            value
            for name, value in attributes
            if name in ("src", "href", "xlink:href", "srcset") or name.startswith("on")
        ]
        self.reaches += [tag] if tag in ("script", "link", "iframe", "object", "img") else []
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


HOSTILE = st.text(st.sampled_from("<>&\"'`*_|[]\\$\n\r\u2028 ab"), max_size=12)


@given(name=HOSTILE, why=HOSTILE)
@settings(max_examples=20, deadline=None)
def test_names_from_outside_stay_text(name, why):
    bad = failed(name)
    bad["error"]["why"] = f"<script>alert(1)</script>{why}"
    whole, text = both(
        bench(point("baseline", 10, 11), point(name, 12, 13, draft="d"), bad),
        sweep(point(name, 10, 11), point(name + "x", 12, 13, draft="d")),
    )
    parser = Outside()
    parser.feed(whole)
    assert (
        not parser.open
        and not parser.reaches
        and "url(" not in whole
        and not re.search(r"(?<!\\)<", re.sub(r"(?ms)^(`{3,})$.*?^\1$", "", text))
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    heads = [number for number, row in enumerate(rows) if row.startswith("| ---")]
    for number in heads:
        width = rows[number].count(" | ")
        assert rows[number - 1].replace("\\|", "").count(" | ") == width


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=6))
def test_drawings_hold_for_any_values(values):
    for svg in (
        intervals([Interval("a", value, value / 2, value * 2, note="x") for value in values], 1.0, "base"),
        stacked([("a", [(str(n), value) for n, value in enumerate(values)])], "ms", ()),
        columns([("a", [min(value, 1.0) for value in values])]),
    ):
        assert "nan" not in svg and "inf" not in svg and svg.startswith("<svg") and svg.endswith("</svg>")


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
def test_an_axis_of_what_is_never_negative_starts_at_nought_or_above(value, low, high):
    svg = intervals([Interval("a", value, low, high)], 1.0, "base")
    ticks = re.findall(r'<text class="tick"[^>]*>([^<]*)</text>', svg)
    assert not [tick for tick in ticks if tick.startswith("-") and float(tick) < 0]


def run(*words):
    return subprocess.run([*SPECWIRE, "report", *map(str, words)], capture_output=True, text=True)


def test_command_writes_both_forms(tmp_path):
    (tmp_path / "bench.json").write_text(json.dumps(bench(point("baseline", 1, 2), point("draft", 1, 2, draft="d"))))
    done = run(tmp_path, "--out", tmp_path / "r.html", "--markdown", tmp_path / "r.md", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["written"] == [str(tmp_path / "r.html"), str(tmp_path / "r.md")]
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>") and (
        tmp_path / "r.md"
    ).read_text().startswith("# ")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "specwire.tree/1"}', '{"schema": "specwire.bench/1"}'])
def test_what_is_no_result(tmp_path, text):
    file = tmp_path / "x.json"
    file.write_text(text)
    done = run(file, "--out", tmp_path / "r.html")
    assert done.returncode == 2 and "x.json" in done.stderr and not (tmp_path / "r.html").exists()


def test_a_launch_line_has_nothing_that_only_a_measurement_wants():
    argv = ["--model-path=T", "--port=1", "--host=127.0.0.1", "--skip-tokenizer-init", "--random-seed=0", "--tp-size=2"]
    assert launch_line(argv, {"A": "x y"}) == "A='x y' python -m sglang.launch_server --model-path=T --tp-size=2"
    assert launch_line([*argv, "--random-seed=0"], {}).endswith("--tp-size=2 --random-seed=0")
