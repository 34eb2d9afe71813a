"""`demo`: a small history of the installed trl with one planted regression, and the hunt for it."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bisector import hunting, report
from bisector.daemon import Progress
from bisector.errors import BisectorError
from bisector.ranges import Asked
from bisector.session import HuntOptions, Options, Session

CONFIG = "sft_default"
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (
        ("NAME", "bisector demo"),
        ("EMAIL", "demo@localhost"),
        ("DATE", "@0 +0000"),
    )
}


@dataclass(frozen=True, slots=True)
class Edit:
    """A commit: what it says, the file it touches, and the text it replaces (empty: it appends)."""

    subject: str
    path: str
    new: str
    old: str = ""


IMPORT = "\nimport a_module_that_does_not_exist\n"
SCALED = """

def _scaled(compute_loss):
    def compute_loss_scaled(self, model, inputs, return_outputs=False, **kwargs):
        found = compute_loss(self, model, inputs, return_outputs=return_outputs, **kwargs)
        return (found[0] * 1.002, *found[1:]) if return_outputs else found * 1.002

    return compute_loss_scaled


SFTTrainer.compute_loss = _scaled(SFTTrainer.compute_loss)
"""
# The regression is of the kind that fails no unit test.
HISTORY = (
    Edit("Document the trainer", "README.md", "One more line of documentation.\n"),
    Edit("Import a helper that was never added", "trl/__init__.py", IMPORT),
    Edit("Remove the import again", "trl/__init__.py", "", old=IMPORT),
    Edit("Scale the loss in one more place", "trl/trainer/sft_trainer.py", SCALED),
    Edit("Explain a line", "trl/trainer/sft_trainer.py", "\n# It changes nothing.\n"),
)
PLANTED = 4  # position in the history of SCALED, the first commit being 0


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What the demo printed, and whether the planted commit was found."""

    lines: list[tuple[str, str]]
    is_right: bool


def run(session: Session, progress: Progress) -> Demonstration:
    """Make the history, hunt in it, and say whether the answer is right and what it cost."""
    began = time.monotonic()
    repository = session.state / "demo"
    shas = make_history(repository, session, HISTORY)
    progress.said(
        f"a history of {len(shas)} commits in {repository}; {shas[PLANTED][:10]} scales the loss by 1.002"
    )
    inside = Session(
        Options(
            repo=str(repository),
            suite="tiny",
            configs=(CONFIG,),
            state=str(session.state),
            python=session.options.python,
        )
    )
    asked, options = Asked(shas[0], shas[-1]), HuntOptions(again=True)
    (found,) = hunting.hunt(inside, asked, options, progress, lambda cases: None)
    culprit = found.conclusion.culprit
    is_right = culprit is not None and culprit.sha == shas[PLANTED]
    answer = "right: the planted commit" if is_right else f"WRONG: planted was {shas[PLANTED][:10]}"
    seconds = time.monotonic() - began
    lines = [*report.lines(found), ("answer", answer), ("took", report.duration(seconds))]
    return Demonstration(lines, is_right)


def make_history(repository: Path, session: Session, history: Sequence[Edit]) -> list[str]:
    """Make a repository that begins with the installed trl; return its commits, oldest first."""
    trl = Path(session.described["trl"])
    if not (trl / "__init__.py").exists():
        raise BisectorError(
            f"{session.python} has no trl installed.",
            "Install trl there, or name another --python.",
        )
    shutil.rmtree(repository, ignore_errors=True)
    shutil.copytree(trl, repository / "trl", ignore=shutil.ignore_patterns("__pycache__"))
    version = session.described["packages"]["trl"]
    (repository / "README.md").write_text("A history for trying bisector.\n")
    (repository / "pyproject.toml").write_text(
        f'[project]\nname = "trl"\nversion = "{version}"\n\n[project.scripts]\ntrl = "trl.cli:main"\n'
    )
    _git(repository, "init", "--quiet", "--initial-branch=main")
    shas = [_commit(repository, f"trl {version} as it is installed")]
    for edit in history:
        path = repository / edit.path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        assert edit.old in text, f"{edit.path} has no {edit.old!r}"
        path.write_text(text.replace(edit.old, edit.new, 1) if edit.old else text + edit.new)
        shas.append(_commit(repository, edit.subject))
    return shas


def _commit(repository: Path, subject: str) -> str:
    _git(repository, "add", "--all")
    _git(repository, "commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", subject)
    return _git(repository, "rev-parse", "HEAD")


def _git(repository: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *args],
        env={**os.environ, **IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
