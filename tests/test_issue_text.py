"""The page of a hunt: every outcome, what it says, and that nothing in it is more than text."""

import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from bisector import markup, reproduce, runner
from bisector.alignment import Alike
from bisector.declared import Declared
from bisector.issue_text import page
from bisector.job import Job
from bisector.looking import Followed, to_markdown
from bisector.model import (
    Change,
    Commit,
    Conclusion,
    Config,
    Crash,
    Deviation,
    Environment,
    Hunt,
    Outcome,
    Role,
    Run,
    RunResult,
    Status,
    Step,
    Suspect,
    Tolerances,
)
from bisector.report import Report
from bisector.watched import Regression, RegressionState

GOOD, PARENT, CULPRIT, BAD = ("a" * 40, "b" * 40, "c" * 40, "d" * 40)
MOVED = Deviation("grad_norm", "step", 1, 5.03, 4.35, 0.01, data_changed=True)
TOLERANCES = Tolerances({"loss": 1e-4, "grad_norm": 1e-2}, {"loss": 1e-5, "grad_norm": 1e-3})
CONFIG = Config(
    name="dpo_default",
    suite="tiny",
    class_name="dpo",
    is_canonical=True,
    method="dpo",
    script=None,
    args={"model_name_or_path": "{tiny}/model", "dataset_name": "{tiny}/dpo", "max_steps": "50"},
    launch=("--num_processes", "2"),
    num_processes=2,
    requires=(),
    tolerances=TOLERANCES,
    identities=(),
    has_footprint=False,
    digest="d",
)
ENVIRONMENT = Environment(
    id="e1",
    python="3.13.13",
    packages={"torch": "2.9.0+cu128", "transformers": "5.9.0", "trl": "1.7.0", "jinja2": "3.1"},
    gpu="NVIDIA H100",
    devices=2,
    threads=1,
    machine={"driver": "570.1"},
    data_fingerprint="tiny-0123",
)
HUNT = Hunt("h1", "https://me:secret@example.org/trl", GOOD, BAD, 12, CONFIG, ENVIRONMENT)
CRASH = Crash("ValueError", "trl/cli.py:main", "no `such` @octocat")


def result(norm: float, steps: int = 3, tokens: float = 10) -> RunResult:
    taken = tuple(Step(n, 0.5, norm / n, tokens * n) for n in range(1, steps + 1))
    return RunResult(Status.STOPPED_EARLY, taken, seconds=6.0)


def runs_of(sha: str, role: Role, *results: RunResult) -> list[Run]:
    made = enumerate(results)
    return [Run(f"r{sha[0]}{role[0]}{n}", "h1", sha, role, each, n, "e1") for n, each in made]


LOW, HIGH = result(4.35), result(5.03, tokens=11)
CRASHED = RunResult(
    Status.CRASHED, crash=CRASH, log_tail="Traceback\n```\n# @octocat\n", seconds=2.0
)
ENDS = (*runs_of(GOOD, Role.END, LOW, LOW), *runs_of(BAD, Role.END, HIGH, HIGH))
CONFIRMED = (
    *runs_of(PARENT, Role.CONFIRM, replace(LOW, warm=True), LOW),
    *runs_of(CULPRIT, Role.CONFIRM, replace(HIGH, warm=True), HIGH),
)
WORDS = {
    CULPRIT: Commit(CULPRIT, "Drop examples (#6321)", "Ada", "2026-07-14T10:00:00+02:00", 6321)
}
FOUND = Conclusion(
    Outcome.CULPRIT,
    culprit=Change(CULPRIT, PARENT, MOVED),
    ends_deviation=MOVED,
    confirmed=True,
    explained=True,
    compared_steps=3,
    candidates=5,
)
CULPRIT_REPORT = Report(HUNT, FOUND, (*ENDS, *CONFIRMED), WORDS)


def of(outcome: Outcome, runs: tuple[Run, ...] = ENDS, **told: object) -> Report:
    return Report(HUNT, Conclusion(outcome, **told), runs, {})  # type: ignore[arg-type]


ENVIRONMENT_REPORT = replace(
    of(
        Outcome.ENVIRONMENT,
        tuple(runs_of(GOOD, Role.END, CRASHED, CRASHED)),
        reason="both ends: ValueError: no such",
        crash=CRASH,
    ),
    advice=("build an environment with those",),
)
CRASH_REPORT = Report(
    HUNT,
    replace(
        FOUND,
        crash=CRASH,
        culprit=Change(CULPRIT, PARENT, Deviation(None, "crash", None, 0.0, 0.0, 0.0)),
        compared_steps=0,
    ),
    (
        *runs_of(GOOD, Role.END, LOW, LOW),
        *runs_of(BAD, Role.END, CRASHED, CRASHED),
        *runs_of(PARENT, Role.CONFIRM, LOW, LOW),
        *runs_of(CULPRIT, Role.CONFIRM, CRASHED, CRASHED),
    ),
    WORDS,
)
REPORTS = {
    "culprit": CULPRIT_REPORT,
    "crash": CRASH_REPORT,
    "suspects": of(
        Outcome.SUSPECTS,
        suspects=(Suspect(PARENT, "skipped", "ImportError: x"), Suspect(CULPRIT, "untested")),
        compared_steps=3,
    ),
    "not_reproduced": of(
        Outcome.NOT_REPRODUCED,
        (*runs_of(GOOD, Role.END, LOW, LOW), *runs_of(BAD, Role.END, LOW, LOW)),
        reason="the ends agree here, to the bit",
        compared_steps=3,
    ),
    "contradiction": of(
        Outcome.CONTRADICTION, (*ENDS, *CONFIRMED), reason="the culprit was good once"
    ),
    "environment": ENVIRONMENT_REPORT,
    "budget": of(Outcome.BUDGET, reason="the allowed number of runs is used up"),
    "infra": of(Outcome.INFRA, (), reason="The disk is full. Free space."),
    "interrupted": of(Outcome.INTERRUPTED, ENDS[:1], reason="interrupted; goes on"),
}


def section(text: str, title: str) -> str:
    return text.split(f"### {title}\n")[1].split("\n### ", maxsplit=1)[0]


@pytest.mark.parametrize("name", REPORTS)
def test_every_outcome_is_a_whole_page(name: str) -> None:
    text = page(REPORTS[name])
    first, *_ = text.split("\n")
    assert re.fullmatch(r"\*\*dpo\\_default: .+\*\*", first)
    for title in ("Range and cost", "Environment", "How to reproduce it", "What was not checked"):
        assert f"### {title}\n" in text
    assert "None" not in text
    assert "\n\n\n" not in text
    is_accused = name in ("culprit", "crash")
    assert ("No commit was confirmed" in text) != is_accused
    assert ("the accused commit alone" in text) == is_accused
    assert "secret" not in text


def test_a_culprits_page_compares_the_first_steps_and_says_how_it_was_confirmed() -> None:
    text = page(CULPRIT_REPORT)
    assert "pull request 6321" in text
    assert "| 1 | 0.5 | 0.5 | 0 | 4.35 | 5.03 | +0.68 | 10 | 11 | +1 |" in section(
        text, "First steps"
    )
    rows = section(text, "How it was confirmed").strip().splitlines()[-4:]
    assert [row.split(" | ")[3:5] for row in rows] == [
        *(["warm", "good"], ["cold", "good"], ["warm", "bad"], ["cold", "bad"])
    ]
    cost = section(text, "Range and cost")
    assert "12 commits, of which 5 touch" in cost
    assert "8 runs, 24 training steps" in cost
    assert "**GPU time** 2 min over all runs" in cost  # eight runs of 6 s on two devices
    environment = section(text, "Environment")
    for row in ("| gpu | 2 x NVIDIA H100 |", "| threads | 1 |", "| data fingerprint | tiny-0123 |"):
        assert row in environment
    assert "jinja2==3.1\n" in environment
    assert "trl==" not in text


def test_long_trajectories_are_cut_and_numbers_that_are_not_finite_are_shown() -> None:
    low, high = result(4.0, 14), result(4.0, 14)
    odd = (Step(1, float("nan"), 4.0, 10.0), *high.trajectory[1:])
    runs = (
        *runs_of(PARENT, Role.CONFIRM, low),
        *runs_of(CULPRIT, Role.CONFIRM, replace(high, trajectory=odd)),
    )
    text = section(page(replace(CULPRIT_REPORT, runs=runs)), "First steps")
    assert "| 1 | 0.5 | nan | not finite | 4 | 4 | 0 |" in text
    assert "| 10 |" in text
    assert "| 11 |" not in text
    assert "4 more steps" in text


def test_a_crash_is_shown_with_the_end_of_its_log() -> None:
    text = section(page(CRASH_REPORT), "First steps")
    assert (
        "crashed, 0 steps; ValueError: no \\`such\\` \\@\u200boctocat in `trl/cli.py:main`" in text
    )
    assert "````\nTraceback\n```\n# @octocat\n````" in text


def test_what_was_not_checked_is_said() -> None:
    text = section(page(CULPRIT_REPORT), "What was not checked")
    assert "Steps after 3 of 50" in text
    assert "9 commits of 12 in the range were not run; 7 of the 12 touch nothing" in text
    assert "below tolerance" in text
    assert "revert" in text
    more = replace(FOUND, explained=False, transient=(FOUND.culprit,), others=(FOUND.culprit,))  # type: ignore[arg-type]
    exact = replace(HUNT, exact=True, skip=(PARENT,))
    text = section(
        page(replace(CULPRIT_REPORT, hunt=exact, conclusion=more)), "What was not checked"
    )
    for words in ("not wholly explained", "undone again", "1 commit left out"):
        assert words in text
    assert "below tolerance" not in text
    text = section(page(REPORTS["suspects"]), "What was not checked")
    assert "1 suspect could not be judged" in text
    assert "1 suspect had no run" in text


def test_where_the_blocks_stand_too_is_a_hint() -> None:
    alike = (Alike("trl/sft_trainer.py", 7, "removed", "trl/dpo_trainer.py", 9, changed=False),)
    text = section(page(replace(CULPRIT_REPORT, alike=alike)), "The same blocks elsewhere")
    assert "not evidence" in text
    assert "removed from trl/sft\\_trainer.py:7; still in trl/dpo\\_trainer.py:9, unchanged" in text


def test_a_regression_is_told_with_the_page_of_its_hunt() -> None:
    state = RegressionState.CULPRIT
    found = Regression("r1", "dpo", "dpo_default", state, GOOD, BAD, 1.0, "e1", reason="@octocat")
    text = to_markdown(Followed(found, CULPRIT_REPORT))
    assert text.startswith("**r1  culprit: dpo\\_default, ")
    assert "- **why** \\@\u200boctocat" in text
    assert text.endswith(page(CULPRIT_REPORT))
    assert "###" not in to_markdown(Followed(found, None))


# How to reproduce it


def test_the_commands_name_everything_that_was_asked() -> None:
    hunt = replace(HUNT, exact=True, thorough=True, skip=(PARENT,))
    assert reproduce.whole_command(hunt) == (
        f"bisector hunt {GOOD} {BAD} --repo https://example.org/trl --suite tiny --config dpo_default "
        f"--exact --thorough --skip {PARENT}"
    )


@pytest.mark.parametrize("is_script", [False, True])
def test_the_commands_without_bisector_are_those_of_a_run(tmp_path: Path, is_script: bool) -> None:
    args = {**CONFIG.args, "note": "it's `a` $b {tiny}"}
    config = replace(CONFIG, args=args)
    if is_script:
        config = replace(config, method=None, script="train it.py", launch=())
    text = reproduce.by_hand(replace(HUNT, config=config), [("parent", PARENT), ("bad", BAD)])
    job = Job(
        *("r", config, Path("parent"), Declared(), tmp_path, tmp_path, tmp_path, Path("TINY")),
        *("python", "", 1.0, {}),
    )
    ran = runner.command(config, job, Path("out-parent"))
    lines = text.replace(" \\\n", " ").splitlines()
    (line,) = (each for each in lines if "--output_dir out-parent" in each)
    words = shlex.split(line.replace('"$TINY"', "TINY"))
    assert set(ran) - set(words) <= {str(tmp_path / "front" / "trl"), "python"}
    added = {"trl", "PYTHONPATH=parent:parent/src", "HF_DATASETS_CACHE=$PWD/cache-parent"}
    assert set(words) - set(ran) <= added
    assert 'HF_DATASETS_CACHE="$PWD/cache-bad"' in text  # no commit is served another's data
    assert f'git -C repository worktree add --detach "$PWD/parent" {PARENT}' in lines
    assert "python3.13 -m venv env" in lines
    assert any("--extra-index-url https://download.pytorch.org/whl/cu128" in each for each in lines)
    assert any("make_assets" in each for each in lines)
    assert ("pip install -e ./bad" in lines) != is_script


# Hostile text

HOSTILE = (
    "**bold** `code` [link](http://evil) ![i](x) <img src=x> <!-- @octocat #12 a/b#3 GH-4 www.evil.org "
    "https://github.com/a/b/issues/5 me@evil.org | $x$ ~~s~~ \\ &lt; \r\n\n# title\n- item\n``` \x1b[1m\u202e"
)


class Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text, self.depth = "", 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        self.depth += tag in ("code", "pre")

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag in ("code", "pre")

    def handle_data(self, data: str) -> None:
        if not self.depth:  # a forge looks for nothing in code
            self.text += data


def rendered(text: str) -> Text:
    found = Text()
    found.feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))
    return found


def hostile_report() -> Report:
    crash = Crash(HOSTILE, HOSTILE, HOSTILE)
    run = RunResult(Status.CRASHED, crash=crash, log_tail=HOSTILE, reason=HOSTILE)
    config = replace(CONFIG, name=HOSTILE, suite=HOSTILE, args={"a": HOSTILE}, method="sft")
    environment = replace(ENVIRONMENT, packages={"torch": HOSTILE}, gpu=HOSTILE)
    hunt = replace(HUNT, repository=HOSTILE, config=config, environment=environment)
    words = {CULPRIT: Commit(CULPRIT, HOSTILE, HOSTILE, "2026-07-14", 6321)}
    conclusion = replace(FOUND, crash=crash, notes=(HOSTILE,), candidates=None)
    runs = tuple(runs_of(CULPRIT, Role.CONFIRM, run))
    alike = (Alike(HOSTILE, 1, "removed", HOSTILE, 2, changed=False),)
    return Report(hunt, conclusion, runs, words, (HOSTILE,), alike)


def test_nothing_from_outside_formats_calls_or_links() -> None:
    text = page(hostile_report())
    tame = rendered(page(CULPRIT_REPORT)).tags
    found = rendered(text)
    assert found.tags <= tame
    assert not re.search(r"@\w|#\d|GH-\d|://|www\.", found.text)
    assert text.count("\n### ") == len(re.findall(r"^### ", text, re.MULTILINE))
    assert not {"\x1b", "\u202e"} & set(text)


def test_text_is_shown_as_it_is() -> None:
    shown = rendered(markup.escape(HOSTILE)).text.replace("\u200b", "")
    assert shown.split() == HOSTILE.replace("\x1b", "").replace("\u202e", "").split()


@pytest.mark.parametrize("text", ["", "a", "`", "``a`", "a``", "a\nb", "```\n````\n`"])
def test_code_holds_what_it_is_given(text: str) -> None:
    spans, blocks = (MarkdownIt().parse(make(text)) for make in (markup.code, markup.block))
    (span,) = spans[1].children or []
    assert (span.type, span.content.strip()) == ("code_inline", text.replace("\n", " ").strip())
    (fence,) = blocks
    assert (fence.type, fence.content) == ("fence", f"{text}\n")
