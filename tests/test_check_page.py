"""`check --html`: one page that needs nothing but itself, and says what the document says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from specwire.diagnosis.case import Case, evidence_of
from specwire.diagnosis.check import examine
from specwire.diagnosis.html import page, write_page
from specwire.diagnosis.render import render_text

VOID = {"meta", "br"}


class Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


CASES = [
    Case("as trained"),
    Case("off by one", slots=(2, 6, 9), ranks=2),
    Case("final states", slots=("final_norm",)),
    Case("short", slots=(3, 7)),
    Case("not a number", alter=lambda states, world: states * float("nan")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_page_is_whole_and_needs_nothing_else(case: Case, tmp_path: Path) -> None:
    document = examine(evidence_of(case, tmp_path))
    document["golden"]["target"] = "<script>alert(1)</script>"
    write_page(tmp_path / "page.html", document, "specwire check --capture '<b>'")
    text = (tmp_path / "page.html").read_text()
    checker = Balance()
    checker.feed(text)
    assert checker.open == []
    assert "<script" not in text and not re.search(r"https?://|@import|url\(", text)
    assert document["verdict"] in text and all(cause["id"] in text for cause in document["causes"])
    assert "specwire check --capture &#x27;&lt;b&gt;&#x27;" in text


def test_the_heatmap_has_every_slot_and_boundary(tmp_path: Path) -> None:
    text = page(examine(evidence_of(Case("as trained"), tmp_path)), "specwire")
    assert len(re.findall(r"<title>slot \d+, boundary \d+:", text)) == 3 * 13
    assert len(re.findall(r"<title>prompt \d+, position \d+:", text)) == 3 * 26


def test_the_bound_is_drawn_where_it_is(tmp_path: Path) -> None:
    document = examine(evidence_of(Case("as trained"), tmp_path))
    worst = 1e-6
    for slot, errors in zip(document["slots"], document["rows"]["errors"], strict=True):
        slot["tolerance"] = 8 * worst
        errors[:] = [worst] * len(errors)
    text = page(document, "specwire")
    bars = {float(top) for top in re.findall(r'<rect [^>]*y="([\d.]+)"[^>]*class="good"', text)}
    bounds = {float(level) for level in re.findall(r'y1="([\d.]+)" y2="[\d.]+" class="bound"', text)}
    (bar,), (bound,) = bars, bounds
    assert bar - bound > 5  # pixels: the bound is above each bar that is under it, and not on its top
    assert text.count(">8.00e-06</text>") == 3 and re.search(r'class="tick">1e-\d+</text>', text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_terminal_table_is_short_and_colours_only_when_asked(case: Case, tmp_path: Path) -> None:
    document = examine(evidence_of(case, tmp_path))
    text = render_text(document)
    assert "\x1b" not in text and text.startswith(document["verdict"].upper())
    assert all(f"{cause['id']} ({cause['confidence']})" in text for cause in document["causes"])
    assert len(text.splitlines()) < 45 and "\x1b[" in render_text(document, colour=True)
