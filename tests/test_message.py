import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisector.message import BLOCKS, ELEMENTS, HEADER, PLAIN, SECTION, mrkdwn, plain, slack_body
from bisector.model import Event

GOLDEN = Path(__file__).parent / "golden" / "slack_culprit.json"
UNCHECKED = {"regression", "culprit", "inconclusive", "changed", "fixed", "reopened"}
REFUSED = "no person has checked this yet"
HOSTILE = [
    "<!channel> look",
    "<!here|here>",
    "<@U012AB3CD>",
    "<#C024BE7LR>",
    "@here",
    "@Everyone",
    "x@everyone",
    "@channel",
    "@all",
    "(@maintainer)",
]
SHA = "3f2a9c81d0b14e6f8a7c5d2e9b0f1a4c6d8e7f50"
COMMAND = (
    "bisector hunt 91be04d7c2aa 3f2a9c81d0b1 --repo https://github.com/huggingface/trl "
    "--suite h100 --config dpo_pdb1_gas8"
)


def document(**changes: object) -> dict[str, Any]:
    """Return a culprit's message, with some of its fields replaced."""
    return {
        "schema": 1,
        "id": "m41c0ffee00",
        "event": "culprit",
        "time": "2026-07-16T10:38:00+00:00",
        "repository": "https://github.com/huggingface/trl",
        "branch": "main",
        "regression": "r7f3a2c9d10",
        "members": {
            "moved": ["dpo_default", "dpo_pdb1_gas8"],
            "unmoved": ["sft_default", "sft_ddp2"],
        },
        "text": "dpo_default: 3f2a9c81d0 moved the trajectory: 🐛 Fix the *mean* of losses <0 & __init__ (#6321)",
        "details": [
            ["by", "Ada Lovelace, 2026-07-14"],
            ["what", "grad_norm at step 1: 5.03 instead of 4.35 (off by 0.68, limit 0.01)"],
            ["points to", "only accumulation moved: loss normalisation"],
            ["confirmed", "culprit and parent run twice more, fresh: each on its side"],
            ["range", "302 commits"],
            ["cost", "17 runs, 850 training steps, 5 min"],
        ],
        "links": [
            ["3f2a9c81d0", f"https://github.com/huggingface/trl/commit/{SHA}"],
            ["#6321", "https://github.com/huggingface/trl/pull/6321"],
        ],
        "reproduce": COMMAND,
        "checked": False,
        "hunt": None,
        **changes,
    }


def bare(event: str, **changes: object) -> dict[str, Any]:
    """Return a message that has nothing but its sentence."""
    nothing: dict[str, object] = dict.fromkeys(("regression", "members"))
    return document(
        event=event, **{**nothing, "details": [], "links": [], "reproduce": "", **changes}
    )


def texts(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every text object of a body's blocks."""
    for block in body["blocks"]:
        yield from block.get("elements", [])
        if "text" in block:
            yield block["text"]


def shown(body: dict[str, Any]) -> str:
    return "\n".join(each["text"] for each in texts(body))


def test_a_culprit_is_told_as_it_was_reviewed() -> None:
    found = json.dumps(slack_body(document()), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("BISECTOR_GOLDEN"):
        GOLDEN.write_text(found, "utf-8")
    assert found == GOLDEN.read_text("utf-8")


@pytest.mark.parametrize("event", list(Event))
def test_every_event_is_told_with_all_that_it_has(event: Event) -> None:
    body = slack_body(document(event=str(event)))
    for text in (shown(body), body["text"]):
        for detail in ("by: Ada Lovelace", "5.03 instead of 4.35", "17 runs, 850 training steps"):
            assert detail in text
        assert "moved: dpo_default, dpo_pdb1_gas8" in text
        assert "unmoved: sft_default, sft_ddp2" in text
        assert f"/commit/{SHA}" in text
        assert "/pull/6321" in text
        assert COMMAND in text
        assert "regression r7f3a2c9d10" in text
        assert "branch main of https://github.com/huggingface/trl" in text
        assert (REFUSED in text) == (event in UNCHECKED)


@pytest.mark.parametrize("event", list(Event))
def test_an_event_with_nothing_but_its_sentence_is_told_too(event: Event) -> None:
    body = slack_body(bare(str(event), text="nothing happened"))
    for text in (shown(body), body["text"]):
        assert "nothing happened" in text
        assert "moved" not in text.replace("A trajectory moved", "")
        assert "`" not in text
    assert all(each["text"].strip() for each in texts(body))


def test_what_a_person_has_checked_is_not_called_unchecked() -> None:
    body = slack_body(document(checked=True))
    assert REFUSED not in shown(body) + body["text"]


@pytest.mark.parametrize("subject", HOSTILE)
@pytest.mark.parametrize("field", ["text", "details", "links", "members", "reproduce", "branch"])
def test_no_field_can_call_anybody(subject: str, field: str) -> None:
    value: dict[str, object] = {
        "details": [["what", subject], [subject, "what"]],
        "links": [[subject, f"https://example.org/{subject}"]],
        "members": {"moved": [subject], "unmoved": [subject]},
    }
    body = slack_body(document(**{field: value.get(field, subject)}))
    for text in (each["text"] for each in texts(body)):
        assert subject not in text
        assert "<!" not in text
    assert subject not in body["text"]
    assert "<" not in body["text"]


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("a < b && c > d", "a &lt; b &amp;&amp; c &gt; d"),
        ("&lt;!channel&gt;", "&amp;lt;!channel&amp;gt;"),
        ("*bold* ~gone~ `code`", "∗bold∗ ∼gone∼ ˋcodeˋ"),
        ("_slanted_ __init__", "ˍslantedˍ ˍˍinitˍˍ"),
        ("dpo_pdb1_gas8", "dpo_pdb1_gas8"),
        ("[here](https://evil.example)", "[here]\u200b(https://evil.example)"),
        ("<https://evil.example|safe>", "&lt;https://evil.example|safe&gt;"),
        ("red\x1b[31m\u202eback\nward\0s", "red[31mback wards"),
        ("git@github.com", "git@github.com"),
        ("@here", "@\u200bhere"),
        ("已修复 🐛 naïve", "已修复 🐛 naïve"),
    ],
)
def test_markup_is_made_harmless(hostile: str, harmless: str) -> None:
    assert mrkdwn(hostile) == harmless


def test_hostile_text_is_in_plain_objects_and_markup_is_ours() -> None:
    body = slack_body(document(text="*X*", details=[["what", "*Y*"]]))
    marked = [each["text"] for each in texts(body) if each["type"] == "mrkdwn"]
    assert marked == [
        f"<https://github.com/huggingface/trl/commit/{SHA}|3f2a9c81d0>",
        "<https://github.com/huggingface/trl/pull/6321|#6321>",
        f"```\n{COMMAND}\n```",
    ]


def test_a_link_cannot_be_left_through_its_address() -> None:
    body = slack_body(document(links=[["x", "https://e.org/a|b> <!channel>&c=`d`"]]))
    assert "<https://e.org/a%7Cb%3E%20%3C!channel%3E&amp;c=%60d%60|x>" in shown(body)


def test_a_command_cannot_leave_its_fence() -> None:
    body = slack_body(document(reproduce="bisector hunt '```' & echo `id`\n*x*"))
    command = next(each["text"] for each in texts(body) if each["text"].startswith("```"))
    assert command == "```\nbisector hunt 'ˋˋˋ' &amp; echo ˋidˋ *x*\n```"


@pytest.mark.parametrize("char", ["x", "&", "<", "_", "@a", "🐛", "a b "])
def test_no_message_is_larger_than_what_is_accepted(char: str) -> None:
    long = char * 3100
    body = slack_body(
        document(
            text=long,
            details=[["note", long]] * 60,
            links=[[long, "https://e.org"], ["a", f"https://e.org/{long}"]] + [["a", "b"]] * 20,
            members={"moved": [long] * 20, "unmoved": [long]},
            reproduce=long,
            regression=long,
            branch=long,
        )
    )
    assert len(body["text"]) <= PLAIN <= 3000
    assert len(body["blocks"]) <= BLOCKS == 50
    for block in body["blocks"]:
        assert len(block.get("elements", [])) <= ELEMENTS == 10
    assert all(0 < len(each["text"]) <= SECTION == 3000 for each in texts(body))
    header = body["blocks"][0]
    assert (header["type"], HEADER) == ("header", 150)
    assert len(header["text"]["text"]) <= HEADER
    assert body["blocks"][-1]["type"] == "context"


def test_many_details_are_all_shown_in_few_sections() -> None:
    details = [["differs", f"package{n}: 1.0 → 2.0"] for n in range(300)]
    body = slack_body(document(details=details))
    assert all(f"package{n}: 1.0 → 2.0" in shown(body) for n in range(300))
    assert len(body["blocks"]) < 12


def test_a_text_that_is_too_long_loses_details_and_keeps_the_answer_and_the_command() -> None:
    text = plain(document(details=[["note", "&" * 3000]]))
    assert text.startswith("Culprit found: dpo_default: 3f2a9c81d0 moved the trajectory")
    assert text.endswith(f"`{COMMAND}`")
    assert REFUSED in text
    assert "&amp;…\n" in text, "an escape is not cut in two"
