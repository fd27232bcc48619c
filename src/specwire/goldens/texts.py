"""Prompts from text: what the target's own tokenizer and chat template make of it, with what they made it from.

Text goes through the tokenizer as the engine sends it through, special tokens included; a conversation through the chat
template, up to where the assistant would answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError, said
from specwire.goldens.golden import PromptText
from specwire.regular import read_text

THINKING = ("enable_thinking", "thinking")  # what templates call their switch
Made = tuple[list[list[int]], list[PromptText]]


def from_texts(target: Path, files: Sequence[Path]) -> Made:
    """Token ids of each file's text, without the line break at its end. Raises SpecwireError."""
    texts = []
    for file in files:
        texts.append(_read(file, "text").removesuffix("\n"))
        if not texts[-1]:
            raise SpecwireError(f"{file} holds no text: a prompt has at least one token")
    tokenizer = _tokenizer(target)
    ids = []
    for file, text in zip(files, texts, strict=True):
        try:
            ids.append([int(token) for token in tokenizer(text)["input_ids"]])
        except Exception as error:
            raise SpecwireError(f"{target}: its tokenizer fails on {file}: {_first_line(error)}") from error
    return _checked(target, ids), [PromptText(text) for text in texts]


def from_messages(
    target: Path, file: Path, *, thinking: bool | None = None, arguments: Mapping[str, Any] | None = None
) -> Made:
    """Token ids of each conversation, one a line: a list of messages, or an object with `messages` and perhaps `tools`.

    `thinking` turns the template's own switch; `arguments` are further variables of the template. Raises SpecwireError,
    also for a template that has no such switch.
    """
    conversations = _conversations(file)
    tokenizer = _tokenizer(target)
    try:
        template = tokenizer.get_chat_template()
    except Exception as error:
        raise SpecwireError(
            f"{target} has no chat template: give the prompts as --text, as the engine would see them, or as --tokens"
        ) from error
    given = {**_switch(target, template, thinking), **(arguments or {})}
    ids, texts = [], []
    for where, messages, tools in conversations:
        settings = {"add_generation_prompt": True, "tools": tools, **given}
        try:
            texts.append(tokenizer.apply_chat_template(messages, tokenize=False, **settings))
            found = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **settings)
            ids.append([int(token) for token in found])
        except Exception as error:
            raise SpecwireError(f"{target}: its chat template fails on {where}: {_first_line(error)}") from error
    digest = hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return _checked(target, ids), [PromptText(text, digest, given) for text in texts]


def _tokenizer(target: Path) -> Any:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    try:
        return transformers.AutoTokenizer.from_pretrained(target, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise SpecwireError(
            f"{target} has no tokenizer that transformers can load ({_first_line(error)}). Put the model's tokenizer files "
            "there, or give --tokens"
        ) from error


def _switch(target: Path, template: str, thinking: bool | None) -> dict[str, bool]:
    if thinking is None:
        return {}
    names = [name for name in THINKING if re.search(rf"\b{name}\b", template)]
    if not names:
        raise SpecwireError(
            f"{target}: its chat template has no thinking switch ({' or '.join(THINKING)}). What else it takes can be given "
            "with --template-args"
        )
    return dict.fromkeys(names, thinking)


def _conversations(file: Path) -> list[tuple[str, list[Any], Any]]:
    """Where each is written, its messages, its tools."""
    found = []
    for number, line in enumerate(_read(file, "messages").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SpecwireError(f"{where}: no JSON ({said(error)}): one conversation a line is wanted") from error
        messages, tools = (
            (document.get("messages"), document.get("tools")) if isinstance(document, dict) else (document, None)
        )
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise SpecwireError(f"{where}: a list of messages is wanted, or an object with one as `messages`")
        found.append((where, messages, tools))
    if not found:
        raise SpecwireError(f"{file} holds no conversation: one a line is wanted, as JSON")
    return found


def _checked(target: Path, ids: list[list[int]]) -> list[list[int]]:
    for number, tokens in enumerate(ids):
        if not tokens:
            raise SpecwireError(f"{target}: its tokenizer makes no token of prompt {number}")
    return ids


def _read(file: Path, what: str) -> str:
    try:
        return read_text(file)
    except (OSError, ValueError) as error:
        raise SpecwireError(f"cannot read the {what} in {file}: {said(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
