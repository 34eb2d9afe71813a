"""Where else a commit's blocks stand."""

import difflib

import pytest

from bisector.alignment import Alike, describe, find_alike
from bisector.contents import FileDiff, Hunk

BLOCK = """\
        per_token_loss = -advantages * ratio
        loss = (per_token_loss * mask).sum() / mask.sum()
"""
FIXED = """\
        per_token_loss = -advantages * ratio * importance_weights
        loss = (per_token_loss * mask).sum() / mask.sum().clamp(min=1.0)
"""
Files = dict[str, str]


def module(name: str, block: str) -> str:
    return f"import torch\n\n\nclass {name}:\n    def compute_{name}(self):\n{block}        return loss\n"


def hunks(old: str, new: str) -> tuple[Hunk, ...]:
    one, other = old.split("\n"), new.split("\n")
    codes = difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return tuple(
        Hunk(a + (b > a), tuple(one[a:b]), c + (d > c), tuple(other[c:d]))
        for tag, a, b, c, d in codes
        if tag != "equal"
    )


def alike(before: Files, after: Files, renamed: Files | None = None) -> tuple[Alike, ...]:
    """Return what is said of a commit from `before` to `after`; `renamed` maps new names to old ones."""
    renamed = renamed or {}
    diffs = []
    for new in after:
        old = renamed.get(new, new)
        if before.get(old) != after[new] or old != new:
            is_old = old in before
            found = hunks(before[old], after[new]) if is_old else hunks("", after[new])
            diffs.append(FileDiff(old if is_old else "", new, found))
    for old in before.keys() - after.keys() - set(renamed.values()):
        diffs.append(FileDiff(old, "", hunks(before[old], "")))
    return find_alike(diffs, before, after)


def removed(found: tuple[Alike, ...]) -> list[tuple[str, int, str, int, bool]]:
    return [
        (a.file, a.line, a.other, a.other_line, a.changed) for a in found if a.block == "removed"
    ]


def test_a_block_that_was_mended_in_one_file_still_stands_in_another() -> None:
    files = {"a.py": module("a", BLOCK), "b.py": "x = 1\n" + module("b", BLOCK)}
    found = alike(files, {**files, "a.py": module("a", FIXED)})
    assert found == (Alike("a.py", 6, "removed", "b.py", 7, False),)


def test_a_block_that_was_mended_in_both_is_changed_in_both() -> None:
    before = {"a.py": module("a", BLOCK), "b.py": module("b", BLOCK)}
    found = alike(before, {"a.py": module("a", FIXED), "b.py": module("b", FIXED)})
    assert all(each.changed for each in found)
    assert {(a.file, a.block, a.other) for a in found} == {
        (one, side, other)
        for one, other in (("a.py", "b.py"), ("b.py", "a.py"))
        for side in ("removed", "added")
    }


def test_a_file_that_was_changed_elsewhere_keeps_its_block_unchanged_at_its_new_line() -> None:
    before = {"a.py": module("a", BLOCK), "b.py": module("b", BLOCK)}
    after = {"a.py": module("a", FIXED), "b.py": "import os\nimport sys\n" + module("b", BLOCK)}
    assert removed(alike(before, after)) == [("a.py", 6, "b.py", 8, False)]


def test_what_was_added_stood_in_another_file_before() -> None:
    files = {"a.py": module("a", BLOCK), "b.py": module("b", FIXED)}
    found = alike(files, {**files, "a.py": module("a", FIXED)})
    assert found == (Alike("a.py", 6, "added", "b.py", 6, False),)


def test_indentation_blank_lines_and_comments_do_not_matter() -> None:
    lines = [line.strip() for line in BLOCK.splitlines()]
    other = f"if x:\n  {lines[0]}  # '#' once\n\n  # why\n  {lines[1]}\n"
    files = {"a.py": module("a", BLOCK), "b.py": other}
    found = alike(files, {**files, "a.py": module("a", FIXED)})
    assert removed(found) == [("a.py", 6, "b.py", 2, False)]


def test_a_number_sign_in_a_string_begins_no_comment() -> None:
    line = "        tokens = tokenizer.encode('#{}', allowed_special={})\n"
    files = {"a.py": module("a", line.format(1, 1)), "b.py": module("b", line.format(1, 2))}
    assert not alike(files, {**files, "a.py": module("a", "        pass\n")})


def test_a_block_that_was_only_indented_or_moved_inside_its_file_is_no_change() -> None:
    files = {"a.py": module("a", BLOCK), "b.py": module("b", BLOCK)}
    indented = "        if self.ready:\n" + "".join(f"    {line}\n" for line in BLOCK.splitlines())
    assert not alike(files, {**files, "a.py": module("a", indented)})
    moved = module("a", "        pass\n") + f"\n\ndef helper(self):\n{BLOCK}"
    assert not alike(files, {**files, "a.py": moved})


def test_a_file_that_was_renamed_is_no_other_file() -> None:
    before = {"old.py": module("a", BLOCK), "b.py": module("b", BLOCK), "old_b.py": "x = 1\n"}
    after = {"new.py": module("a", FIXED), "b.py": module("b", BLOCK)}
    found = alike(before, after, {"new.py": "old.py"})
    assert removed(found) == [("old.py", 6, "b.py", 6, False)]
    after = {"new.py": module("a", FIXED), "new_b.py": module("b", BLOCK)}
    found = alike(before, after, {"new.py": "old.py", "new_b.py": "b.py"})
    assert removed(found) == [("old.py", 6, "new_b.py", 6, False)]


def test_a_file_that_was_deleted_is_said_only_where_its_code_stands_elsewhere() -> None:
    other = "".join(f"value_{n} = compute_something(alpha, {n})\n" for n in range(10))
    files = {"a.py": module("a", BLOCK) + other, "b.py": module("b", BLOCK), "c.py": other}
    found = alike(files, {"b.py": files["b.py"], "c.py": other})
    assert [(a.block, a.other, a.changed) for a in found] == [("removed", "c.py", False)]


def test_a_block_of_which_less_than_half_stands_elsewhere_does_not_stand_there() -> None:
    mine = BLOCK + "".join(f"        step_{n} = first_{n} + second_{n}\n" for n in range(3))
    files = {"a.py": module("a", mine), "b.py": module("b", BLOCK)}
    assert not alike(files, {**files, "a.py": module("a", "        pass\n")})


@pytest.mark.parametrize(
    "line",
    [
        *("else:", "return", ")", "import torch", "from transformers import AutoModelForCausalLM"),
        *("model = self.model", "labels=labels,", "output_dir=self.tmp_dir,", "return loss"),
        '"""A docstring of many different words that is no code at all."""',
        "# a comment of many different words that is no code at all",
    ],
)
def test_a_trivial_line_is_not_looked_for(line: str) -> None:
    files = dict.fromkeys(("a.py", "b.py"), f"{line}\nx = 1\n")
    assert not alike(files, {**files, "a.py": "x = 1\n"})


def test_one_line_is_enough_where_it_says_much_and_is_rare() -> None:
    line = "loss = F.nll_loss(log_probs, labels, reduction='sum')\n"
    few = {f"{n}.py": line for n in range(6)}
    assert len(alike(few, {**few, "0.py": "loss = 0\n"})) == 5
    many = {f"{n}.py": line for n in range(7)}
    assert not alike(many, {**many, "0.py": "loss = 0\n"})
    two = dict.fromkeys(many, line + "scores = self.model.score(batch)\n")
    assert len(alike(two, {**two, "0.py": "loss = 0\n"})) == 6


def test_what_calls_for_a_look_comes_first() -> None:
    names = ["tests/test_a.py", "a.py", "b.py", "c.py"]
    before = {name: module("a", BLOCK) for name in names}
    after = {**before, "b.py": module("a", FIXED), "c.py": module("a", FIXED)}
    found = removed(alike(before, after))
    assert [(f, o, changed) for f, _, o, _, changed in found] == [
        ("b.py", "a.py", False),
        ("c.py", "a.py", False),
        ("b.py", "c.py", True),
        ("c.py", "b.py", True),
        ("b.py", "tests/test_a.py", False),
        ("c.py", "tests/test_a.py", False),
    ]


def test_text_that_is_no_python_is_compared_all_the_same() -> None:
    files = {"a.py": f"def (:\n{BLOCK}", "b.py": f"\0\udcff(((\n{BLOCK}"}
    assert removed(alike(files, {**files, "a.py": "def (:\n"})) == [("a.py", 2, "b.py", 2, False)]


def test_a_handful_of_lines_say_it() -> None:
    found = [
        Alike("a.py", 3, "removed", f"{name}.py", 7, changed=False) for name in ("b", "c", "d")
    ]
    found += [
        Alike("a.py", 9, "removed", "b.py", 8, changed=True),
        Alike("b.py", 8, "removed", "a.py", 9, changed=True),  # the same, seen from there
        Alike("a.py", 3, "added", "e.py", 1, changed=False),
        Alike("a.py", 9, "added", "e.py", 2, changed=True),
    ]
    assert describe(found) == [
        "removed from a.py:3; still in b.py:7, c.py:7 and 1 more, unchanged",
        "removed from a.py:9; and from b.py:8",
        "added to a.py:3; was in e.py:1 before",
        "and 1 more such block",
    ]
