"""The pages of causes and probes are what their docstrings say, and links in the papers lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAPERS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_pages_are_current():
    done = subprocess.run([sys.executable, ROOT / "docs" / "write_pages.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"run make docs\n{done.stderr}"


@pytest.mark.parametrize("paper", PAPERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(paper):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", paper.read_text("utf-8"))
    assert not [link for link in links if "://" not in link and not (paper.parent / link).exists()]
