"""Goldens from text: the ids are the target's own tokenizer's, and what each prompt was is said wherever it is compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from captures import concat, make_states, write_batch
from test_check_cli import run

from specwire.errors import SpecwireError
from specwire.goldens.golden import PromptText, open_golden
from specwire.goldens.write import States, write_golden

PROMPTS = [[4, 5, 6], [7, 8]]
WORDS = [PromptText("one\ntwo \u201c", "0123456789abcdef", {"enable_thinking": False}), None]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'odd' %}{{ raise_exception('no role is called odd') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    "{% if enable_thinking %}<think>{% endif %}{{ mood }}"
)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    states = make_states(PROMPTS)
    write_golden(
        tmp_path / "golden",
        [States(ids, held, words=words) for ids, held, words in zip(PROMPTS, states, WORDS, strict=True)],
        trained=[1, 3, 5], layers=6, dtype="float32", target="made for a test", source="tests",
    )  # fmt: skip
    return tmp_path / "golden"


def test_what_a_prompt_was_made_from_is_in_the_file(golden):
    assert [prompt.words for prompt in open_golden(golden).prompts] == WORDS


def test_show_and_check_say_what_each_prompt_was(golden, tmp_path, capsys):
    told = '"one\\ntwo \u201c" (chat template 0123456789abcdef, enable_thinking=false)'
    assert told in run(capsys, "golden", "show", golden)[1]
    states = make_states(PROMPTS)
    for number, ids in enumerate(PROMPTS):
        rows = concat(states[number], (1, 3, 5))
        write_batch(tmp_path / "capture", 0, number, [(ids, 0, len(ids))], [rows])
    arguments = ("check", "--golden", golden, "--capture", tmp_path / "capture")
    assert f"prompt 0  {told}" in run(capsys, *arguments)[1]
    prompts = json.loads(run(capsys, *arguments, "--json")[1])["golden"]["prompts"]
    assert prompts[0]["text"] == "one\ntwo \u201c" and prompts[1] == {
        "tokens": 2, "text": None, "template": None, "template_arguments": {}
    }  # fmt: skip
    assert json.loads(run(capsys, "golden", "show", golden, "--tokens")[1]) == PROMPTS


@pytest.mark.parametrize(
    "prompts", ["7", "[]", "[null]", "[null,{}]", '[null,{"text":1,"template":"","template_arguments":{}}]', "["]
)
def test_what_is_no_list_of_prompts_is_refused(prompts, tmp_path):
    path = tmp_path / "golden"
    write_golden(
        path, [States(ids, held) for ids, held in zip(PROMPTS, make_states(PROMPTS), strict=True)],
        trained=[1], layers=6, dtype="float32", target="", source="", extra={"prompts": prompts},
    )  # fmt: skip
    with pytest.raises(SpecwireError, match="^prompts in the metadata"):
        open_golden(path)


# --- with transformers ----------------------------------------------------------------------------------

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    """A tiny Llama with a tokenizer of bytes, which puts <s> before a text, and a chat template."""
    import transformers
    from test_golden_build import CONFIG
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("texts") / "target"
    vocabulary = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG | {"vocab_size": len(vocabulary)})).save_pretrained(
        folder
    )
    tokenizer = Tokenizer(models.BPE(vocab={word: id_ for id_, word in enumerate(vocabulary)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def without(target: Path, place: Path, *names: str, **settings) -> Path:
    """A copy of the target without some files, or with other settings of its tokenizer."""
    import shutil

    shutil.copytree(target, place)
    for name in names:
        (place / name).unlink()
    if settings:
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return place


def build(capsys, target: Path, out: Path, *arguments) -> tuple[int, str, str]:
    return run(
        capsys, "golden", "build", "--target", target, "-o", out, "--trained", "1,3,5", "--boundaries", "1,3,5", "-q",
        *arguments,
    )  # fmt: skip


@slow
def test_a_text_is_tokenized_as_the_engine_does(target, tmp_path, capsys):
    import transformers

    (tmp_path / "a.txt").write_text("Two lines,\nand a \u00fc.\n")
    (tmp_path / "b.txt").write_text("b")
    code, _, err = build(capsys, target, tmp_path / "out", "--text", tmp_path / "a.txt", "--text", tmp_path / "b.txt")
    assert code == 0, err
    first, second = open_golden(tmp_path / "out").prompts
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    assert list(first.token_ids) == tokenizer("Two lines,\nand a \u00fc.")["input_ids"] and first.token_ids[0] == 0
    assert first.words == PromptText("Two lines,\nand a \u00fc.") and second.words == PromptText("b")


@slow
def test_a_conversation_goes_through_the_chat_template(target, tmp_path, capsys):
    import hashlib

    import transformers

    said = [{"role": "user", "content": "hi"}]
    (tmp_path / "chat.jsonl").write_text(json.dumps(said) + "\n\n" + json.dumps({"messages": said * 2, "tools": None}))
    code, _, err = build(
        capsys, target, tmp_path / "out", "--messages", tmp_path / "chat.jsonl", "--thinking", "on",
        "--template-args", '{"mood": "!"}',
    )  # fmt: skip
    assert code == 0, err
    first, second = open_golden(tmp_path / "out").prompts
    assert (
        first.words.text == "[user]hi[assistant]<think>!" and second.words.text == "[user]hi[user]hi[assistant]<think>!"
    )
    assert first.words.template == hashlib.sha256(TEMPLATE.encode()).hexdigest()[:16]
    assert first.words.arguments == {"enable_thinking": True, "mood": "!"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    assert tokenizer.decode(first.token_ids) == first.words.text  # no <s> beside what the template says


@slow
@pytest.mark.parametrize(
    ("spoil", "arguments", "message"),
    [
        ({}, ["--text", "none.txt"], "cannot read the text in"),
        ({}, ["--text", "empty.txt"], "holds no text"),
        ({}, ["--text", "latin.txt"], "cannot read the text in"),
        ({}, ["--text", "a.txt", "--tokens", "3"], "give one of"),
        ({}, ["--tokens", "3", "--thinking", "on"], "give the conversations as --messages"),
        ({}, ["--messages", "bad.jsonl"], r"bad.jsonl:2: no JSON"),
        ({}, ["--messages", "shape.jsonl"], r"shape.jsonl:1: a list of messages"),
        ({}, ["--messages", "empty.txt"], "holds no conversation"),
        ({}, ["--messages", "odd.jsonl"], r"template fails on .*odd.jsonl:1: no role is called odd"),
        ({}, ["--messages", "half.jsonl"], r"template fails on .*half.jsonl:1"),
        ({}, ["--messages", "chat.jsonl", "--template-args", "[]"], "takes a JSON object"),
        ({"chat_template": "{{ messages[0].content }"}, ["--messages", "chat.jsonl"], "template fails on"),
        (
            {"chat_template": "{{ messages[0].content }}"},
            ["--messages", "chat.jsonl", "--thinking", "off"],
            "no thinking",
        ),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, ["--messages", "chat.jsonl"], "has no chat template"),
        ("tokenizer.json", ["--text", "a.txt"], "has no tokenizer that transformers can load"),
        ("tokenizer.json", ["--messages", "chat.jsonl"], "has no tokenizer that transformers can load"),
    ],
)
def test_what_cannot_become_a_prompt_is_one_sentence(spoil, arguments, message, target, tmp_path, capsys, monkeypatch):
    import re

    monkeypatch.chdir(tmp_path)
    files = {
        "a.txt": b"text", "empty.txt": b"\n", "latin.txt": b"\xff", "bad.jsonl": b"[{}]\n{", "shape.jsonl": b'{"messages": []}',
        "odd.jsonl": b'[{"role": "odd", "content": ""}]', "half.jsonl": rb'[{"role": "\ud800", "content": ""}]',
        "chat.jsonl": b'[{"role": "user", "content": "hi"}]',
    }  # fmt: skip
    for name, data in files.items():
        Path(name).write_bytes(data)
    if spoil:
        names, settings = ([spoil], {}) if isinstance(spoil, str) else ([], spoil)
        target = without(target, tmp_path / "spoilt", *names, **settings)
    code, out, err = build(capsys, target, tmp_path / "out", *arguments)
    assert code == 2 and out == "" and re.search(message, err) and len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "out").exists() and not (tmp_path / ".out.part").exists()
