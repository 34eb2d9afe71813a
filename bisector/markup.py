"""Markdown for a forge: text, code and tables that show what they hold, call nobody and link nowhere; pure."""

import re
from collections.abc import Sequence

from bisector.report import printable

_SPECIAL = re.compile(r"([\\`*_\[\]#|<>~@&$!])")
# A forge looks for these in the text that it shows, where a backslash has no effect any more: mentions, issues,
# addresses. A zero-width space parts them; in code nothing is looked for.
_CALLS = re.compile(r"@(?=\w)|#(?=\d)|\bGH-(?=\d)|:(?=//)|\bwww(?=\.)", re.IGNORECASE)
_PART = "\u200b"


def escape(text: str) -> str:
    """Return text in one line that is shown as it is."""
    parted = _CALLS.sub(lambda found: found[0] + _PART, printable(text))
    return _SPECIAL.sub(r"\\\1", parted).strip()


def code(text: str) -> str:
    """Return text in one line as code."""
    text = printable(text)
    fence = "`" * (_longest_run(text) + 1)
    space = " " if not text or text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{space}{text}{space}{fence}"


def block(text: str, language: str = "") -> str:
    """Return lines as a block of code that nothing in them can end."""
    lines = [printable(line) for line in text.split("\n")]
    fence = "`" * max(3, _longest_run(text) + 1)
    return "\n".join([fence + language, *lines, fence])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are escaped already."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def folded(title: str, text: str) -> str:
    """Return text that is shown when its title is clicked."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
