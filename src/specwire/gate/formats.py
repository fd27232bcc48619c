"""A gate report in the formats that machines read: JSON, SARIF 2.1.0, GitHub annotations, JUnit XML."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from specwire import __version__
from specwire.gate.leftovers import RULES, Leftover, Report

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


def shown(report: Report, finding: Leftover) -> str:
    """The file as it is named from the working directory, which is where a repository's tools look for it."""
    path = os.path.join(os.path.abspath(report.base), finding.file)
    below = os.path.relpath(path)
    return path if below.startswith(os.pardir) else below


def to_json(report: Report) -> str:
    document: dict[str, Any] = {
        "schema": "specwire.gate/1",
        "clean": report.clean,
        "findings": [_entry(finding) for finding in report.findings],
        "allowed": [_entry(finding) | {"reason": finding.reason} for finding in report.allowed],
        "inconclusive": list(report.unknown),
        "files": report.files,
        "skipped": list(report.skipped),
        "excluded": list(report.excluded),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def to_sarif(report: Report) -> str:
    rules = list(RULES)
    driver = {
        "name": "specwire",
        "version": __version__,
        "rules": [
            {"id": rule, "shortDescription": {"text": text}, "defaultConfiguration": {"level": "error"}}
            for rule, text in RULES.items()
        ],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "utf16CodeUnits",
        "invocations": [
            {
                "executionSuccessful": not report.unknown,
                "exitCode": report.exit_code,
                "toolExecutionNotifications": [{"level": "error", "message": {"text": why}} for why in report.unknown],
            }
        ],
        "results": [_sarif_result(report, finding, rules) for finding in (*report.findings, *report.allowed)],
    }
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def to_github(report: Report) -> str:
    """Workflow commands: an error per finding, a notice per allowed one, a warning for what could not be told."""
    lines = []
    for finding in (*report.findings, *report.allowed):
        place = [f"file={_property(shown(report, finding))}"] + ([f"line={finding.line}"] if finding.line else [])
        title = f"title={_property(f'specwire {finding.rule}')}"
        level, message = (
            ("notice", f"{finding.message} - allowed: {finding.reason}")
            if finding.reason
            else ("error", finding.message)
        )
        lines.append(f"::{level} {','.join([*place, title])}::{_data(message)}")
    lines += [f"::warning title=specwire::{_data(f'inconclusive: {why}')}" for why in report.unknown]
    return "".join(line + "\n" for line in lines)


def to_junit(report: Report) -> str:
    """One test case per finding; a clean tree is one that passes, so that no run looks as if nothing ran."""
    from xml.etree import ElementTree as xml

    cases = len(report.findings) + len(report.allowed) + len(report.unknown) or 1
    counts = {
        "tests": str(cases),
        "failures": str(len(report.findings)),
        "errors": str(len(report.unknown)),
        "skipped": str(len(report.allowed)),
    }
    suite = xml.Element("testsuite", {"name": "specwire gate", **counts, "time": "0"})
    for finding in report.findings:
        failure = xml.SubElement(
            _case(suite, report, finding), "failure", {"type": finding.rule, "message": _xml(finding.message)}
        )
        failure.text = _xml(f"{shown(report, finding)}{f':{finding.line}' if finding.line else ''}: {finding.message}")
    for finding in report.allowed:
        xml.SubElement(_case(suite, report, finding), "skipped", {"message": _xml(f"allowed: {finding.reason}")})
    for why in report.unknown:
        case = xml.SubElement(suite, "testcase", {"classname": "specwire.gate", "name": "inconclusive", "time": "0"})
        xml.SubElement(case, "error", {"type": "inconclusive", "message": _xml(why)})
    if report.clean and not report.allowed:
        xml.SubElement(suite, "testcase", {"classname": "specwire.gate", "name": "clean", "time": "0"})
    suites = xml.Element("testsuites")
    suites.append(suite)
    xml.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(suites, encoding="unicode") + "\n"


FORMATS = {"json": to_json, "sarif": to_sarif, "github": to_github, "junit": to_junit}


def _entry(finding: Leftover) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "file": finding.file,
        "line": finding.line,
        "message": finding.message,
        "managed": finding.managed,
    }


def _sarif_result(report: Report, finding: Leftover, rules: list[str]) -> dict[str, Any]:
    from urllib.parse import quote

    path = shown(report, finding)
    uri = quote(os.fsencode(path.replace(os.sep, "/")))
    place: dict[str, Any] = {"artifactLocation": {"uri": f"file://{uri}" if os.path.isabs(path) else uri}}
    if finding.line:
        place["region"] = {"startLine": finding.line}
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": "error",
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": place}],
        "properties": {"managed": finding.managed},
    }
    if finding.reason:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.reason}]
    return result


def _case(suite: Element, report: Report, finding: Leftover) -> Element:
    from xml.etree import ElementTree as xml

    name = f"{finding.rule} at line {finding.line}" if finding.line else finding.rule
    return xml.SubElement(suite, "testcase", {"classname": _xml(shown(report, finding)), "name": name, "time": "0"})


def _xml(text: str) -> str:
    """XML 1.0 has no way to write most control characters, nor half a surrogate pair."""
    return "".join(
        char
        if char in "\t\n\r" or (char >= " " and not "\ud800" <= char <= "\udfff" and char not in "\ufffe\uffff")
        else "\ufffd"
        for char in text
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
