"""Secrets planted where people put them, an engine that tells all that it is given, and a search for what got out."""

import base64
import html
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from small_trees import FILES, make_tree

# Stands in for an engine: says its arguments and its environment, as SGLang does, and fails with the key in its mouth.
TELLS = b"""
import json, os

def prepare_server_args(argv):
    print("server_args=ServerArgs(%r)" % (argv,), json.dumps(argv), " ".join(argv), dict(os.environ), flush=True)
    raise RuntimeError("not accepted: %s" % " ".join(argv))
"""
CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 100, "num_hidden_layers": 4, "hidden_size": 8}


def make_scene(folder: Path) -> Path:
    """A tree whose engine tells, a target and a draft, in `folder`."""
    launch = b"from sglang.srt.server_args import prepare_server_args\nimport sys\nprepare_server_args(sys.argv)\n"
    tree = {
        **FILES,
        "sglang/__init__.py": b"Engine = dict\n",
        "sglang/srt/server_args.py": TELLS,
        "sglang/launch_server.py": launch,
    }
    make_tree(folder / "tree", tree)
    for role in ("target", "draft"):
        (folder / role).mkdir()
        (folder / role / "config.json").write_text(json.dumps(CONFIG))
        (folder / role / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "tmp").mkdir()
    return folder


def specwire(folder: Path, *words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    """A command in `folder`; what it prints is kept there beside what it writes."""
    whole = {**os.environ, "TMPDIR": str(folder / "tmp"), **(env or {})}
    done = subprocess.run(
        [sys.executable, "-m", "specwire", *map(str, words)], cwd=folder, env=whole, capture_output=True, timeout=120
    )
    (folder / "printed").mkdir(exist_ok=True)
    number = len(os.listdir(folder / "printed"))
    (folder / "printed" / f"{number}").write_bytes(done.stdout + done.stderr)
    return done


def found(folder: Path, secret: str, but: tuple[str, ...] = (), names: bool = True) -> list[str]:
    """Files below `folder`, `names` among them, that hold the secret in any writing that is as good as plain."""
    forms = {secret, json.dumps(secret)[1:-1], html.escape(secret), quote(secret), quote(secret, safe="")}
    raw = {form.encode("utf-8", "surrogatepass") for form in forms}
    raw |= {base64.b64encode(secret.encode("utf-8", "surrogatepass"))}
    places = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name in but or name.startswith(("tree/", "target/", "draft/")):
            continue
        if (names and secret in name) or (
            path.is_file() and not path.is_symlink() and any(f in path.read_bytes() for f in raw)
        ):
            places.append(name)
    return places
