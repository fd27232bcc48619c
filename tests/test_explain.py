"""`specwire explain`: a page for every cause and every probe, made from its docstring without importing it."""

import json
import subprocess
import sys

import pytest

from specwire import explain
from specwire.diagnosis.check import documented
from specwire.errors import SpecwireError
from specwire.registry import modules


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "specwire", *words], capture_output=True, text=True, timeout=60)


def test_every_check_and_probe_has_its_page():
    plugged = {"cause": modules("specwire.checks"), "probe": modules("specwire.codemods")}
    for kind, known in plugged.items():
        pages = {page.id for page in explain.pages().values() if page.kind == kind}
        assert set(known) <= pages


def test_a_page_says_what_the_docstring_says():
    module = modules("specwire.checks")["slot-order"]
    page = explain.page("slot-order")
    assert " ".join(documented(module)["fix"].split()) in " ".join(page.body.split())
    assert page.summary.startswith("The slots hold trained boundaries")


@pytest.mark.parametrize("name", explain.pages())
def test_a_page_of_a_cause_tells_symptom_cause_and_fix(name):
    page = explain.page(name)
    assert page.summary
    if page.kind == "cause":
        assert all(f"{part}:" in page.body for part in ("Symptom", "Cause", "Fix"))


@pytest.mark.parametrize("typed", ["slot_order", "SLOT-ORDER", " slot-order "])
def test_an_id_is_known_however_it_is_typed(typed):
    assert explain.page(typed).id == "slot-order"


def test_an_unknown_id_gets_the_nearest():
    with pytest.raises(SpecwireError, match="Nearest: boundary-offset"):
        explain.page("boundary-ofset")
    with pytest.raises(SpecwireError, match="lists them all"):
        explain.page("qqqqqqqqqqq")


def test_the_command_prints_a_page_a_list_and_json():
    assert run("explain", "token-shift").stdout.startswith("token-shift (cause)\n\n")
    listed = run("explain").stdout.splitlines()
    assert len(listed) == len(explain.pages())
    assert json.loads(run("explain", "--json").stdout)["pages"][0]["id"]
    assert json.loads(run("explain", "norm", "--json").stdout)["kind"] == "cause"
    unknown = run("explain", "nothing-like-it")
    assert unknown.returncode == 2 and not unknown.stdout


def test_explaining_imports_neither_torch_nor_libcst():
    code = "import sys; from specwire import explain; explain.pages(); print({'torch', 'libcst'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
