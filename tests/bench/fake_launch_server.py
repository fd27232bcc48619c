"""Stands in for `sglang.launch_server`: the few endpoints that a benchmark uses, and ways to fail.

`--fake=WHAT` says how: no-boot, silent-boot, never-ready, error-500, error-event, hangs, dies, short, orphan.
Tokens take MILLISECONDS each; with speculation the same time brings two.
"""

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MILLISECONDS = float(os.environ.get("FAKE_MS", "2"))
arguments = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
fake, port = arguments.get("fake", ""), int(arguments["port"])
speculative = "speculative-draft-model-path" in arguments
if os.environ.get("FAKE_DRAFT_FAILS") and speculative:
    fake = os.environ["FAKE_DRAFT_FAILS"]
AFTER = int(os.environ.get("FAKE_AFTER", "8"))  # requests, before it fails
served = threading.Semaphore(0)
requests = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        if self.path == "/health":
            self.answer(503 if fake == "never-ready" else 200, {})
        elif self.path == "/server_info":
            self.answer(200, {"version": "9.9", "internal_states": [{"avg_spec_accept_length": 2.0}]})
        else:
            self.answer(404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if self.path == "/flush_cache":
            self.answer(200, {})
            return
        global requests
        requests += 1
        if fake == "error-500":
            sys.stderr.write(
                'Traceback (most recent call last):\n  File "x.py", line 1, in f\nMemoryError: no block left\n'
            )
            sys.stderr.flush()
            self.answer(500, {"error": "CUDA out of memory, says the fake"})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        wanted = body["sampling_params"]["max_new_tokens"]
        prompt = body["input_ids"]
        tokens, verifies = 0, 0
        while tokens < wanted:
            step = 2 if speculative and tokens else 1
            time.sleep(MILLISECONDS / 1000)
            verifies += step == 2
            tokens = min(tokens + step, wanted)
            meta = {"completion_tokens": tokens, "prompt_tokens": len(prompt), "finish_reason": {"type": "length"}}
            if verifies:
                meta |= {"spec_verify_ct": verifies, "spec_correct_drafts_histogram": [0, verifies]}
            self.event({"output_ids": [(sum(prompt) + i) % 97 for i in range(tokens)], "meta_info": meta})
            if tokens > 4 and requests > AFTER:
                self.fail()
            if fake == "short" and tokens > 4:
                break
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def fail(self):
        if fake == "dies":
            sys.stderr.write(
                'Traceback (most recent call last):\n  File "x.py", line 1, in f\nRuntimeError: the fake ran out of memory\n'
            )
            sys.stderr.flush()
            os._exit(7)
        if fake == "hangs":
            time.sleep(600)
        if fake == "error-event":
            self.event({"error": {"message": "the fake aborts"}})

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def event(self, value):
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data):
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        except OSError:
            sys.exit()


if __name__ == "__main__":
    print("Init torch distributed begin.", flush=True)
    if fake == "no-boot":
        raise ValueError("the fake does not like its arguments")
    if fake == "silent-boot":
        time.sleep(600)
    if fake == "orphan":  # a process in a session of its own, that no process group reaches
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
