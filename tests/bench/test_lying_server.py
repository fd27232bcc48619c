"""A server that lies, drips or floods: that is the point's result, in one sentence, soon, and the other points' too."""

import json
import resource
import time

import pytest
from click.testing import CliRunner
from lying_server import HEAD, LyingServer, body, event, events, hang, one, repeated

from specwire.bench.client import Load, LoadPrompt
from specwire.bench.points import Patience, Setting, Workload, measure
from specwire.cli import specwire

SILENCE = 0.6  # seconds, where a test waits for it
NEW_TOKENS = 4


def point(answers, folder, prompt=(3, 4, 5), silence=20.0):
    workload = Workload(
        prompts=(LoadPrompt(prompt, NEW_TOKENS),) * 2,
        warm_up=(LoadPrompt(prompt, NEW_TOKENS),),
        loads=((Load("closed", 1), 2),),
        repeats=1,
        seed=0,
        patience=Patience(silent_request=silence),
    )
    with LyingServer(answers) as server:
        return measure(None, Setting("lying", url=server.url), workload, folder, lambda text: None)


def test_an_honest_server(tmp_path):
    found = point({}, tmp_path)
    assert found["state"] == "ok" and found["loads"][0]["runs"][0]["output_tokens"] == 2 * NEW_TOKENS


LIES = {
    "an event that is a number": (one(5), "no object"),
    "an event that is null": (one(b"null"), "no object"),
    "an event that is a list": (one([1]), "no object"),
    "an event that is a text": (one("error"), "no object"),
    "an event that is no JSON": (one(b"{"), "no JSON"),
    "an event that is deep": (one(b"[" * 100_000), "no JSON"),
    "an event with 5,000 digits": (one(b'{"meta_info": {"completion_tokens": %s}}' % (b"9" * 5000)), "no JSON"),
    "an error that is a book": (one({"error": "x" * 10**6}), "the server reports: 'xxx"),
    "an error that is a deep list": (one({"error": [[[[[[[[[[1]]]]]]]]]]}), "the server reports"),
    "meta_info that is a list": (one({"meta_info": [1]}), "meta_info that is no dict"),
    "meta_info that is a text": (one({"meta_info": "x"}), "meta_info that is no dict"),
    "tokens that are null": (one({"meta_info": {"completion_tokens": None}}), "completion_tokens that is no count"),
    "tokens that are a list": (one({"meta_info": {"completion_tokens": [1]}}), "completion_tokens that is no count"),
    "tokens that are infinite": (one(b'{"meta_info": {"completion_tokens": Infinity}}'), "completion_tokens that is no count"),
    "tokens that are NaN": (one(b'{"meta_info": {"completion_tokens": NaN}}'), "completion_tokens that is no count"),
    "tokens below nothing": (one({"meta_info": {"completion_tokens": -1}}), "completion_tokens that is no count"),
    "tokens of 400 digits": (one({"meta_info": {"completion_tokens": 10**400}}), "completion_tokens that is no count"),
    "more tokens than asked for": (one({"meta_info": {"completion_tokens": 10**9}}), "lies: 1,000,000,000 tokens where 4"),
    "output_ids that are a number": (one({"output_ids": 5}), "output_ids that is no list"),
    "output_ids of texts": (events()[:-2] + b"\n" + event(output_ids=["a"] * 4, meta_info={"completion_tokens": 4}), "no token ids"),
    "text that is a number": (one({"text": 5}), "text that is no str"),
    "a text beyond any answer": (repeated(event(text="x" * 4_000_000) + event(text="y" * 4_000_000), 4), "bytes of answer"),
    "verifies that are a text": (events(spec_verify_ct="4"), "spec_verify_ct that is no count"),
    "verifies that are NaN": (events(spec_verify_ct=float("nan")), "spec_verify_ct that is no count"),
    "a histogram of texts": (events(spec_verify_ct=1, spec_accept_histogram=["1"]), "histogram that is no count"),
    "a histogram that is a number": (events(spec_verify_ct=1, spec_accept_histogram=7), "spec_accept_histogram that is no list"),
    "a histogram without end": (events(spec_verify_ct=1, spec_accept_histogram=[1] * 5000), "histogram of 5,000 positions"),
    "too few tokens, and a reason that is a book": (events(2, finish_reason={"a": ["x" * 10**6]}), "ended after 2 of 4"),
    "nothing": (b"", "closed the connection without an answer"),
    "another protocol": (b"\x00\x01\x02\r\n", "not an HTTP answer"),
    "a status of 5,000 digits": (b"HTTP/1.1 " + b"2" * 5000 + b" x\r\n\r\n", "not an HTTP answer"),
    "a status that is none": (b"HTTP/1.1 999 x\r\n\r\n", "not an HTTP answer"),
    "a header line beyond the limit": (b"HTTP/1.1 200 OK\r\nX: " + b"a" * (1 << 18) + b"\r\n\r\n", "in a head"),
    "headers without end": (b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 1000, "a head of more than"),
    "a length that is no number": (b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n", "Content-Length that is no number: abc"),
    "a length below nothing": (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "Content-Length that is no number"),
    "a length of 5,000 digits": (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "Content-Length"),
    "a length beyond what comes": (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc", "96 bytes before the end"),
    "a chunk size that is no number": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "chunk size"),
    "a chunk size below nothing": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", "chunk size"),
    "a chunk longer than it said": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc", "longer than it said"),
    "a chunk of two TB": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1ffffffffff\r\nabc", "before the end"),
    "an answer that is packed": (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b", "compressed"),
    "an encoding of its own": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: mine\r\n\r\n", "encoding that is not known"),
    "an error that repaints the terminal": (body(b"\x1b]0;pwned\x07\x1b[2J", 500), "HTTP 500 from /generate: ]0;pwned"),
    "an error without end": (lambda client: (client.sendall(b"HTTP/1.1 500 x\r\n\r\n"), repeated(b"x" * 65536)(client)), "HTTP 500"),
    "a line without end": (repeated(b"a" * 65536), "a line of more than"),
    "lines without end": (repeated(b"\n" * 65536), "floods"),
    "events without end": (repeated(event(meta_info={"completion_tokens": 1}) * 500), "floods"),
    "tokens without end": (lambda client: [client.sendall(HEAD), [client.sendall(event(meta_info={"completion_tokens": n})) for n in range(9999)]], "lies"),
}  # fmt: skip
WAITS = {
    "comments, one now and then": (repeated(b": x\n", seconds=0.1), "hangs: silent for 0.6 s after 0 tokens"),
    "a letter now and then": (repeated(b"x", seconds=0.1), "hangs: silent"),
    "silence": (hang, "hangs: silent for 0.6 s after 0 tokens"),
    "silence after the head": (lambda client: (client.sendall(HEAD), hang(client)), "hangs: silent"),
    "silence after a token": (lambda client: (client.sendall(events(1)), hang(client)), "hangs: silent for 0.6 s after 1 tokens"),
    "a token now and then": (
        lambda client: [client.sendall(HEAD), [(client.sendall(event(meta_info={"completion_tokens": n})), time.sleep(0.35)) for n in range(9)]],
        "drips: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*LIES, *WAITS])
def test_a_lie_is_the_points_result(name, tmp_path):
    answer, why = (LIES | WAITS)[name]
    began = time.monotonic()
    found = point({"/generate": answer}, tmp_path, silence=SILENCE if name in WAITS else 20.0)
    assert found["state"] == "failed" and found["error"]["stage"] == "warm-up"
    assert why in found["error"]["why"] and len(found["error"]["why"]) < 700 and found["error"]["why"].isprintable()
    assert time.monotonic() - began < 15
    json.dumps(found, allow_nan=False)


def test_what_a_server_says_of_itself_is_kept_as_far_as_it_is_plain(tmp_path):
    info = b'{"version": NaN, "dtype": "\\u001b[2J", "tp_size": 1e999, "speculative_eagle_topk": [1], "attention_backend": "x"}'
    found = point({"/server_info": body(info)}, tmp_path)
    assert found["state"] == "ok" and found["engine"] == {"dtype": "[2J", "attention_backend": "x"}
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "info",
    [
        body(b"[" * 100_000), body(b'{"version": ' + b"9" * 5000 + b"}"), body(b"5"), body(b"{}", 500), b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n", repeated(b"x" * 65536),
    ],
)  # fmt: skip
def test_a_server_that_says_nothing_of_itself_is_measured(info, tmp_path):
    answers = {"/server_info": info, "/get_server_info": info, "/flush_cache": b"HTTP/1.1 200 OK\r\n\r\n"}
    assert point(answers, tmp_path)["state"] == "ok"


@pytest.mark.parametrize("length", [b"NaN", b"Infinity", b'"2"', b"[2]", b"1" * 400])
def test_its_average_is_kept_as_far_as_it_is_a_number(length, tmp_path):
    found = point({"/server_info": body(b'{"internal_states": [{"avg_spec_accept_length": %s}]}' % length)}, tmp_path)
    assert found["state"] == "ok" and found["loads"][0]["server_length"] is None


@pytest.mark.parametrize("health", [body(b"{}", 503), b"", b"\x00", b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n"])
def test_no_health_is_the_points_result(health, tmp_path):
    found = point({"/health": health}, tmp_path)
    assert (found["state"], found["error"]["stage"]) == ("failed", "boot")


def test_a_text_that_is_half_a_character_is_measured(tmp_path):
    found = point(
        {"/generate": one({"text": "\ud800", "meta_info": {"completion_tokens": 4}})}, tmp_path, prompt="\ud800"
    )
    assert found["state"] == "ok"


def test_a_flood_takes_no_memory(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    point({"/generate": repeated(b"a" * (1 << 20))}, tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KB


def bench(*words):
    done = CliRunner().invoke(
        specwire,
        ["bench", "--new-tokens", "4", "--requests", "2", "--repeats", "1", *map(str, words)],
        standalone_mode=False,
    )
    return done


def test_what_was_measured_is_on_the_disk_and_the_rest_goes_on(tmp_path):
    """An honest server, one that lies and one that lies only about itself: three results, the second one a failure."""
    (tmp_path / "prompts.jsonl").write_text("[3, 4, 5]\n")
    with (
        LyingServer({}) as honest,
        LyingServer({"/generate": hang}) as lying,
        LyingServer({"/server_info": body(b'{"version": NaN}')}) as odd,
    ):
        urls = [word for server in (honest, lying, odd) for word in ("--url", server.url)]
        done = bench(
            *urls, "--prompts", tmp_path / "prompts.jsonl", "--silence", 2, "--out", tmp_path / "out", "--quiet"
        )
    assert done.return_value == 2, done.output
    document = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [each["state"] for each in document["points"]] == ["ok", "failed", "ok"] and document["complete"] is True
    assert "hangs: silent for 2 s" in document["points"][1]["error"]["why"]  # --silence holds with --url


def test_points_are_kept_when_the_next_one_is_stopped(tmp_path, monkeypatch):
    from specwire.bench import run

    whole = run.measure

    def stopped(stand, setting, *rest):
        if setting.url == second.url:
            raise KeyboardInterrupt
        return whole(stand, setting, *rest)

    monkeypatch.setattr(run, "measure", stopped)
    (tmp_path / "prompts.jsonl").write_text("[3, 4, 5]\n")
    with LyingServer({}) as first, LyingServer({}) as second:
        words = [
            "--url",
            first.url,
            "--url",
            second.url,
            "--prompts",
            tmp_path / "prompts.jsonl",
            "--out",
            tmp_path / "out",
        ]
        assert bench(*words).exit_code != 0
    document = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [each["state"] for each in document["points"]] == ["ok"] and document["complete"] is False


def test_a_fault_of_ours_costs_one_point(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("specwire.bench.points.figures", lambda answers: 1 / 0)
    found = point({}, tmp_path)
    assert (found["state"], found["error"]["why"]) == ("failed", "ZeroDivisionError: division by zero")
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://[::1", "no address"), ("http://127.0.0.1:99999", "no address"), ("http://127.0.0.1:x", "no address"),
        ("http://\u2100.com", "no address"), ("http://user:SECRET@127.0.0.1:1", "a user, a password"),
        ("http://127.0.0.1:1?api_key=SECRET", "a query"), ("http://127.0.0.1:0", "only a server on this machine"),
        ("http://[::1%25lo]:1", "no address|only a server"), ("", "only a server"), ("http://", "only a server"),
    ],
)  # fmt: skip
def test_an_address_that_is_none(url, why, tmp_path):
    (tmp_path / "prompts.jsonl").write_text("[3, 4, 5]\n")
    done = bench("--url", url, "--prompts", tmp_path / "prompts.jsonl")
    assert done.exit_code != 0 and "SECRET" not in str(done.exception) + done.output
    assert any(each in str(done.exception) for each in why.split("|"))


@pytest.mark.parametrize(
    "option",
    [("--concurrency", "nan"), ("--concurrency", "inf"), ("--concurrency", "0.5"), ("--rate", "nan"), ("--rate", "inf"), ("--silence", "nan"), ("--silence", "0"), ("--boot-timeout", "-1")],
)  # fmt: skip
def test_a_number_that_is_none(option):
    done = bench("--url", "http://127.0.0.1:1", *option)
    assert done.exit_code != 0 and (
        "wanted numbers" in str(done.exception) or "is no" in str(done.exception) or "range" in str(done.exception)
    )


@pytest.mark.parametrize(
    "line", ["[" * 100_000, f"[{10**400}]", f"[{'9' * 5000}]", "[1.5]", "null", '{"text": 5}', '""']
)
def test_a_prompt_that_is_none(line, tmp_path):
    (tmp_path / "prompts.jsonl").write_text(line)
    done = bench("--url", "http://127.0.0.1:1", "--prompts", tmp_path / "prompts.jsonl")
    assert "prompts.jsonl:1" in str(done.exception) and len(str(done.exception)) < 600
