"""The tiny suite's data is nasty on purpose, and the same everywhere."""

import json
from pathlib import Path

from bisector import tiny

DIGEST = "22a83617f0e760c15e27339cac47cb24d6de9256b6edb740c7037298781d3ea9"


def rows(folder: Path, name: str) -> list[dict[str, list[dict[str, str]]]]:
    return [json.loads(line) for line in (folder / name / "train.jsonl").read_text().splitlines()]


def tokens(turns: list[dict[str, str]]) -> int:
    """A token a byte, two marks a turn, the role and two line ends."""
    return sum(len(f"{turn['role']}\n{turn['content']}\n".encode()) + 2 for turn in turns)


def test_it_is_the_same_bytes_on_every_machine_and_python() -> None:
    assert tiny.assets_digest() == DIGEST


def test_it_is_made_once_and_whole(tmp_path: Path) -> None:
    home = tiny.make_assets(tmp_path)
    assert tiny.make_assets(tmp_path) == home
    assert [path.name for path in home.parent.iterdir()] == [home.name]
    assert {path.name for path in home.iterdir()} == {"model", "sft", "pc", "text", "dpo"}


def test_the_conversations_hold_every_kind_of_row_that_ever_mattered(tmp_path: Path) -> None:
    conversations = [row["messages"] for row in rows(tiny.make_assets(tmp_path), "sft")]
    count = len(conversations)
    assert count % 8 == 0
    assert sum(t[0]["role"] == "system" for t in conversations) > count / 8
    assert sum(len(t) > 3 for t in conversations) > count / 8, "several turns"
    assert sum(" " not in t[-1]["content"] for t in conversations) > count / 8, "one-word answers"
    over = [t for t in conversations if tokens(t) > tiny.MAX_LENGTH]
    assert len(over) > count / 8, "over-long"
    prompts = [t for t in conversations if tokens(t[:-1]) >= tiny.MAX_LENGTH]
    assert count / 40 < len(prompts) < count / 4, "over-long prompts"
    assert len({tokens(t) for t in conversations}) > count / 3, "uneven lengths"


def test_chosen_and_rejected_differ_and_some_prompts_leave_no_room(tmp_path: Path) -> None:
    pairs = rows(tiny.make_assets(tmp_path), "dpo")
    assert all(pair["chosen"] != pair["rejected"] for pair in pairs)
    assert all(pair["chosen"][:-1] == pair["rejected"][:-1] for pair in pairs)
    full = [pair for pair in pairs if tokens(pair["chosen"][:-1]) >= tiny.MAX_LENGTH]
    assert len(full) > len(pairs) / 40
