"""No false alarm on any release as it was published, and RECORD's word for every one of its files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from specwire.cli import gate, strip

_spec = importlib.util.spec_from_file_location("releases", Path(__file__).with_name("releases.py"))
releases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(releases)


@pytest.mark.release
@pytest.mark.parametrize("version", releases.sample())
def test_a_release_is_clean(version):
    tree = str(releases.release_tree(version))
    found = CliRunner().invoke(gate.command, [tree, "--pristine", "--json"], standalone_mode=False)
    document = json.loads(found.stdout)
    assert (found.return_value, document["findings"], document["inconclusive"]) == (0, [], [])
    assert document["files"] > 300
    assert CliRunner().invoke(strip.command, [tree, "--check"], standalone_mode=False).return_value == 0
