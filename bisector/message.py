"""Turns a message's document into what chat programs show: Block Kit, and one text that stands alone; pure.

Slack shows the blocks. Mattermost and Discord's Slack endpoint show the text, each in its own Markdown.
What a commit's author wrote can neither format, nor hide a link, nor call anybody in any of them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from bisector.model import Event
from bisector.report import printable

# Slack's limits, in characters or pieces: https://docs.slack.dev/reference/block-kit/blocks
HEADER, SECTION, BLOCKS, ELEMENTS = 150, 3000, 50, 10
PLAIN = 2000  # Discord refuses a longer text

TITLES = {
    Event.REGRESSION: "A trajectory moved",
    Event.CULPRIT: "Culprit found",
    Event.INCONCLUSIVE: "A hunt that names no single culprit",
    Event.CHANGED: "An open regression changed",
    Event.FIXED: "A regression is fixed",
    Event.REOPENED: "A regression is back",
    Event.ACCEPTED: "A change is accepted",
    Event.IDENTITY: "A law is broken",
    Event.ENVIRONMENT: "The environment changed",
    Event.BROKEN: "Training no longer runs",
    Event.STALLED: "Work is held back",
    Event.CHANNEL: "A channel is dead",
    Event.HEARTBEAT: "Still watching",
    Event.TEST: "A test",
}
UNCHECKED = {
    Event.REGRESSION,
    Event.CULPRIT,
    Event.INCONCLUSIVE,
    Event.CHANGED,
    Event.FIXED,
    Event.REOPENED,
}

# Slack has no escape for `*`, `~` and backticks; look-alikes are what every Markdown leaves alone.
_LOOKALIKES = str.maketrans("*~`", "∗∼ˋ")
_EDGE_OF_WORD = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # inside a word `_` means nothing
# The beginnings of mentions, and the middle of a Markdown link: a zero-width space after them parts both.
# The words call everybody even inside another word; `git@github.com` is left whole.
_CALLS = re.compile(
    r"<(?=[!@#])|(?<!\w)@(?=\w)|@(?=here|channel|everyone|all|group)|\](?=\()", re.IGNORECASE
)


def slack_body(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an incoming webhook of Slack's form takes for the document."""
    first = [
        {"type": "header", "text": _plain_text(_title(document), HEADER)},
        {"type": "section", "text": _plain_text(_quiet(document["text"]))},
    ]
    last = [*_links(document), *_command(document)]
    last.append({"type": "context", "elements": [_plain_text(_quiet(t)) for t in _foot(document)]})
    details = [{"type": "section", "text": _plain_text(text)} for text in _pack(_details(document))]
    room = BLOCKS - len(first) - len(last)
    return {"text": plain(document), "blocks": [*first, *details[:room], *last]}


def plain(document: Mapping[str, Any]) -> str:
    """Return the document as one text that stands alone; where it is too long, details are cut."""
    first = _clip(mrkdwn(f"{_title(document)}: {document['text']}"), PLAIN // 4)
    last = [mrkdwn(" · ".join(_foot(document)))]
    last += [f"{mrkdwn(label)}: {_address(url)}" for label, url in document["links"]]
    if document["reproduce"]:
        last.append(f"`{_code(document['reproduce'])}`")
    end = _clip("\n".join(last), PLAIN // 2)
    room = PLAIN - len(first) - len(end) - 2
    details = _clip("\n".join(mrkdwn(line) for line in _details(document)), room)
    return "\n".join(part for part in (first, details, end) if part)


# What is shown


def _title(document: Mapping[str, Any]) -> str:
    return TITLES[Event(document["event"])]


def _details(document: Mapping[str, Any]) -> list[str]:
    members = document["members"] or {}
    pairs = [(key, ", ".join(members.get(key, ()))) for key in ("moved", "unmoved")]
    pairs += document["details"]
    lines = (f"{label}: {text}" if label else text for label, text in pairs if text)
    return [_clip(_quiet(line), SECTION) for line in lines]


def _foot(document: Mapping[str, Any]) -> list[str]:
    foot = [f"regression {document['regression']}"] if document["regression"] else []
    foot.append(f"branch {document['branch']} of {document['repository']}")
    if document["event"] in UNCHECKED and not document["checked"]:
        foot.append("no person has checked this yet")
    return foot


# Blocks


def _links(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    links = [f"<{_address(url)}|{mrkdwn(label)}>" for label, url in document["links"]]
    elements = [_mrkdwn_text(link) for link in links if len(link) <= SECTION]
    return [{"type": "context", "elements": elements[:ELEMENTS]}] if elements else []


def _command(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not document["reproduce"]:
        return []
    command = _clip(_code(document["reproduce"]), SECTION - 8)  # the fences take eight
    return [{"type": "section", "text": _mrkdwn_text(f"```\n{command}\n```")}]


def _plain_text(text: str, limit: int = SECTION) -> dict[str, Any]:
    return {"type": "plain_text", "text": _clip(text, limit), "emoji": False}


def _mrkdwn_text(text: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _pack(lines: Iterable[str]) -> list[str]:
    """Return texts of whole lines, as many in each as one section holds."""
    texts: list[str] = []
    for line in lines:
        if texts and len(texts[-1]) + 1 + len(line) <= SECTION:
            texts[-1] += f"\n{line}"
        else:
            texts.append(line)
    return texts


# Hostile text


def mrkdwn(text: str) -> str:
    """Return text that Slack, Mattermost and Discord show as it is, and that calls nobody."""
    return _escape(_EDGE_OF_WORD.sub("ˍ", _quiet(text).translate(_LOOKALIKES)))


def _quiet(text: str) -> str:
    return _CALLS.sub("\\g<0>\u200b", printable(text))


def _code(text: str) -> str:
    """Return text for between backticks, where nothing else has a meaning."""
    return _escape(_quiet(text).replace("`", "ˋ"))


def _address(url: str) -> str:
    return _escape(quote(url, safe=":/?#[]!$&'()+,;=%"))


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clip(text: str, limit: int) -> str:
    """Return text of at most so many characters; an escape is not cut in two."""
    return text if len(text) <= limit else re.sub(r"&\w*$", "", text[: limit - 1]) + "…"
