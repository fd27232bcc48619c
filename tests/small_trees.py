"""A tree small enough to be changed hundreds of times: one target, one draft, the logits processor."""

import os
import stat
import textwrap
from pathlib import Path

from specwire.patching import surgery
from specwire.trees.tree import Tree

TARGET = b'''"""A target."""

import torch


class Target:
    def forward(self, input_ids, positions, forward_batch, input_embeds=None):
        if input_embeds is None:
            hidden_states = self.embed_tokens(input_ids)
        else:
            hidden_states = input_embeds
        residual = None
        aux_hidden_states = []
        for i in range(self.start_layer, self.end_layer):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states + residual)
            layer = self.layers[i]
            hidden_states, residual = layer(positions, hidden_states, forward_batch, residual)
        hidden_states, _ = self.norm(hidden_states, residual)

        if len(aux_hidden_states) == 0:
            return hidden_states
        return hidden_states, aux_hidden_states
'''

DRAFT = b"""import torch

from torch import nn


class Draft(nn.Module):
    # \xc3\xa9 is two bytes
    def forward(self, input_ids, positions, forward_batch):
        embeds = self.embed_tokens(input_ids)
        hidden_states = forward_batch.spec_info.hidden_states
        if hidden_states.shape[-1] != embeds.shape[-1]:
            hidden_states = self.fc(hidden_states)
        return self.midlayer(positions, embeds, hidden_states)


class Other:
    def method(self):
        return 1
"""

LOGITS = b"""import torch


class LogitsProcessor:
    def forward(self, hidden_states, aux_hidden_states, logits_metadata):
        hidden_states_to_store = None
        if logits_metadata.capture_hidden_mode.need_capture():
            if logits_metadata.capture_hidden_mode.is_full():
                aux_hidden_states = torch.cat(aux_hidden_states, dim=-1)
                hidden_states_to_store = aux_hidden_states
            elif logits_metadata.capture_hidden_mode.is_last():
                aux_hidden_states = torch.cat(aux_hidden_states, dim=-1)
                hidden_states_to_store = aux_hidden_states
        return hidden_states_to_store
"""

FILES = {
    "sglang/__init__.py": b"",
    "sglang/version.py": b'__version__ = "0.5.99"\n',
    "sglang/srt/__init__.py": b"",
    "sglang/srt/models/__init__.py": b"",
    "sglang/srt/models/target.py": TARGET,
    "sglang/srt/models/draft_eagle3.py": DRAFT,
    "sglang/srt/layers/logits_processor.py": LOGITS,
    "sglang/srt/managers/scheduler.py": b"import os\n",
}
TAPPED = (
    "sglang/srt/layers/logits_processor.py",
    "sglang/srt/models/draft_eagle3.py",
    "sglang/srt/models/target.py",
)
DEBUG = surgery.chosen((), ("debug",))


def make_tree(root: Path, files: dict[str, bytes] = FILES) -> Tree:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Tree.find(root)


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def dedent(text: str) -> bytes:
    return textwrap.dedent(text).lstrip("\n").encode()


def snapshot(root: Path) -> dict[str, tuple]:
    """Every entry below `root`: its kind and mode, and its bytes or where it leads."""
    found = {}
    for folder, folders, names in os.walk(root):
        for name in folders + names:
            path = Path(folder, name)
            status = path.lstat()
            what = os.readlink(path) if path.is_symlink() else None if path.is_dir() else path.read_bytes()
            found[path.relative_to(root).as_posix()] = (
                oct(stat.S_IFMT(status.st_mode)),
                oct(stat.S_IMODE(status.st_mode)),
                what,
            )
    return found


def applied(tree: Tree, names: list[str] = DEBUG) -> surgery.Outcome:
    outcome = surgery.plan_apply(tree, names)
    assert outcome.exit_code == 0, outcome.sites
    outcome.write()
    return outcome


def removed(tree: Tree, **how) -> surgery.Outcome:
    outcome = surgery.plan_remove(tree, **how)
    if outcome.exit_code == 0:
        outcome.write()
    return outcome
