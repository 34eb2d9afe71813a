"""Git, through GitPython: mirrors of remotes, first-parent ranges, commits' words, plain checkouts.

GitPython is not meant for long-running processes, so each call opens a repository, uses and closes it.
Nothing of a user's own repository is written; hooks never run, and no URL can name a program.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import git

from bisector import patch
from bisector.contents import CommitChange, FileDiff
from bisector.errors import BisectorError, InfraError
from bisector.model import Commit

GIT_VARIABLES = {
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_HTTP_LOW_SPEED_LIMIT": "100",  # bytes a second; a server that stalls is given up
    "GIT_HTTP_LOW_SPEED_TIME": "60",
    "GIT_CONFIG_COUNT": "4",
    "GIT_CONFIG_KEY_0": "core.hooksPath",
    "GIT_CONFIG_VALUE_0": os.devnull,
    "GIT_CONFIG_KEY_1": "gc.auto",  # it would outlive us, and drop commits that are on no branch
    "GIT_CONFIG_VALUE_1": "0",
    "GIT_CONFIG_KEY_2": "maintenance.auto",
    "GIT_CONFIG_VALUE_2": "false",
    "GIT_CONFIG_KEY_3": "fetch.writeCommitGraph",  # the line of 16,000 commits in 0.02 s, not 0.11 s
    "GIT_CONFIG_VALUE_3": "true",
    "LC_ALL": "C",
}
# A forge has refs for pull requests too, thousands of them.
MIRRORED = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_MAKER = (("NAME", "bisector"), ("EMAIL", "bisector@localhost"), ("DATE", "2000-01-01T00:00:00Z"))
# A path, a URL, or `user@host:path`; nothing that begins with a dash, and no remote helper (`ext::…`).
LOCATION = r"[^-:][^:]*|(https?|ssh|git|file)://[^-].*|[^-:/][^:/]*@[^-:/][^:/]*:[^-:].*"


class Repository:
    """A repository to hunt in: a path, or a URL and its mirror under the state directory."""

    def __init__(self, location: str, state: Path) -> None:
        self.location = location
        if not re.fullmatch(LOCATION, location):
            raise BisectorError(
                f"{location!r} is not a repository.", "Give a path, or an https, ssh or git URL."
            )
        self._is_remote = bool(re.match(r"[a-z+]+://|[^/]+@[^/]+:", location))
        self.path = _mirror_path(location, state) if self._is_remote else Path(location).resolve()

    @property
    def home(self) -> str:
        """Return the location as it is the same from any directory."""
        return self.location if self._is_remote else str(self.path)

    def update(self) -> None:
        """Bring a remote's mirror up to date; BisectorError where there is no whole repository."""
        if self._is_remote:
            self.fetch()
        with self._open() as repo:
            if repo.git.rev_parse("--is-shallow-repository") == "true":
                raise BisectorError(
                    f"{self.location} is a shallow clone: most of its history is missing.",
                    "Run `git fetch --unshallow` there first.",
                )

    @contextmanager
    def _open(self) -> Iterator[git.Repo]:
        try:
            repo = git.Repo(self.path, search_parent_directories=not self._is_remote)
        except (git.InvalidGitRepositoryError, git.NoSuchPathError):
            raise BisectorError(
                f"{self.location} is not a git repository.",
                "Give --repo a repository's path or URL.",
            ) from None
        try:
            repo.git.update_environment(**GIT_VARIABLES, GIT_DIR=str(repo.git_dir))
            yield repo
        except git.GitCommandError as error:
            raise BisectorError(
                f"git failed in {self.location}: {_last_line(error)}.",
                "Check the repository with `git fsck`.",
            ) from None
        finally:
            repo.close()

    def fetch(self) -> bool:
        """Bring the mirror up to date, cloning it first if it is missing or broken; say whether it was."""
        if not self.path.exists():
            self._clone()
            return True
        try:
            with self._open() as repo:
                repo.git.fetch("--prune", "--quiet", "origin", *MIRRORED)
        except (git.GitCommandError, BisectorError) as error:
            if _is_usable(self.path):
                raise _unreachable(self.location, error) from None
            shutil.rmtree(self.path)
            self._clone()
            return True
        return False

    def _clone(self) -> None:
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            runner = git.Git()
            runner.update_environment(**GIT_VARIABLES)
            runner.clone("--bare", "--quiet", "--", self.location, str(partial))
            made = git.Git(partial)
            made.update_environment(**GIT_VARIABLES)
            made.commit_graph("write", "--reachable", "--no-progress")
            if not self.path.exists():  # else another process was first
                partial.rename(self.path)
        except git.GitCommandError as error:
            raise _unreachable(self.location, error) from None
        except OSError:
            if not _is_usable(self.path):
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def resolve(self, revision: str) -> str:
        """Return the commit that a sha, tag, branch or expression such as `HEAD~3` names."""
        with self._open() as repo:
            try:
                name = f"{revision}^{{commit}}"
                found = str(repo.git.rev_parse("--verify", "--end-of-options", name))
                if re.fullmatch(r"[0-9a-f]{40,64}", found):
                    return found
            except git.GitCommandError as error:
                if "ambiguous" in str(error.stderr):
                    raise BisectorError(
                        f"{revision!r} is ambiguous: several objects begin so.", "Give more digits."
                    ) from None
            except ValueError:  # a name that no command line can carry
                pass
        raise BisectorError(
            f"{revision!r} is no commit of {self.location}.",
            "Give a sha, tag or branch that is there; fetch it first if it is new.",
        )

    def first_parents(self, good: str, bad: str) -> list[str]:
        """Return the first-parent commits from `good` to `bad`, oldest first, both included."""
        if good == bad:
            raise BisectorError(
                "Both ends are the same commit, so there is nothing to hunt.",
                "Give two commits.",
            )
        with self._open() as repo:
            after = repo.git.rev_list("--first-parent", "--reverse", bad, f"^{good}").split()
            if after and good in repo.git.rev_list("--parents", "-1", after[0]).split()[1:2]:
                return [good, *after]
            if _is_ancestor(repo, bad, good):
                raise BisectorError(
                    "The second commit is older than the first.", "Swap the two commits."
                )
        raise BisectorError(
            "The first commit is not on the first-parent line of the second, so no range lies between them.",
            "Give two commits of the same branch.",
        )

    def commits_since(self, old: str, new: str) -> list[str]:
        """Return the first-parent commits of `new` that `old` has not, oldest first, behind the one that they
        stand on; that is `old` itself where it lies on that line."""
        with self._open() as repo:
            after = repo.git.rev_list("--first-parent", "--reverse", new, f"^{old}").split()
            below = repo.git.rev_list("--parents", "-1", after[0]).split()[1:2] if after else []
        if not below:
            raise BisectorError(
                f"{new[:10]} holds no commit on top of {old[:10]}.",
                "Give an older and a newer one.",
            )
        return [*below, *after]

    def line(self, oldest: str, newest: str) -> list[str]:
        """Return the first-parent commits, oldest first, both ends included; empty where `oldest` is not
        on that line."""
        with self._open() as repo:
            try:
                found = repo.git.rev_list(
                    "--first-parent", "--reverse", newest, "--not", f"{oldest}^@"
                ).split()
            except git.GitCommandError:  # the commit is gone
                return []
            return found if found[:1] == [oldest] else []

    def fork_point(self, old: str, new: str) -> str:
        """Return the newest commit that the first-parent lines of two commits share; empty if none."""
        with self._open() as repo:
            try:
                lines = [repo.git.rev_list("--first-parent", sha).split() for sha in (old, new)]
            except git.GitCommandError:
                return ""
            shared = set(lines[1])
            return next((sha for sha in lines[0] if sha in shared), "")

    def revert(self, sha: str, reverts: Sequence[str], folder: Path) -> str:
        """Return a commit that is `sha` with others reverted, in order; empty where that is not clean.

        It depends on its arguments alone, is on no branch, and is written to the mirror. `folder` holds
        files for a while.
        """
        index, file = folder / f"{sha}.index", folder / f"{sha}.patch"
        folder.mkdir(parents=True, exist_ok=True)
        fixed = {
            f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER") for key, value in _MAKER
        }
        with self._open() as repo:
            repo.git.update_environment(GIT_INDEX_FILE=str(index), **fixed)
            try:
                repo.git.read_tree(sha)
                for each in reverts:
                    patch = repo.git.diff_tree(
                        "-p", "--binary", "--full-index", f"{each}^", each,
                        strip_newline_in_stdout=False, stdout_as_string=False,
                    )  # fmt: skip
                    if patch:
                        file.write_bytes(patch)
                        repo.git.apply("--cached", "-R", str(file))
                tree = repo.git.write_tree()
                words = f"{sha[:10]} without {', '.join(each[:10] for each in reverts)}"
                return str(repo.git.commit_tree(tree, "-p", sha, "-m", words))
            except git.GitCommandError:
                return ""
            finally:
                for path in (index, file):
                    path.unlink(missing_ok=True)

    def describe(self, sha: str) -> Commit:
        """Return the words of one commit."""
        with self._open() as repo:
            text = repo.git.show("-s", "--no-show-signature", "--format=%s%x00%an%x00%aI", sha)
        subject, author, date = text.split("\0")
        found = re.search(r"\(#(\d+)\)\s*$|^Merge pull request #(\d+) ", subject)
        return Commit(sha, subject, author, date, int(found[1] or found[2]) if found else None)

    def changes(self, commits: Sequence[str]) -> list[CommitChange]:
        """Return what each commit but the first changes against the one before it, renames as two changes."""
        pairs = "".join(f"{new} {old}\n" for old, new in pairwise(commits))
        options = ("-r", "-z", "-m", "--raw", "--numstat", "--no-renames", "--no-abbrev")
        with self._open() as repo, tempfile.TemporaryFile() as given:
            given.write(pairs.encode())
            given.seek(0)
            paths = _raw(repo.git.ls_tree("-r", "-z", "--name-only", commits[0], **_RAW)).split(
                "\0"
            )
            how = (*options, "--no-ext-diff", "--stdin")
            text = _raw(repo.git.diff_tree(*how, istream=given, **_RAW))
        changed = patch.parse_changes(text)
        tree = patch.Tree(path for path in paths if path)
        return [
            CommitChange(tuple(files), tree.follow(files))
            for files in (changed.get(sha, []) for sha in commits[1:])
        ]

    def diff(self, old: str, new: str) -> list[FileDiff]:
        """Return what differs between two commits in Python files, line by line; renamed files are followed."""
        how = ("-r", "-M", "--no-ext-diff", "--no-textconv", "--no-color", old, new, "--", "*.py")
        with self._open() as repo:
            files = patch.parse_files(_raw(repo.git.diff_tree("--raw", "-z", *how, **_RAW)))
            hunks = patch.parse_hunks(_raw(repo.git.diff_tree("-p", "-U0", *how, **_RAW)))
        return patch.pair(files, hunks)

    def python_files(self, sha: str) -> dict[str, str]:
        """Return the text of every Python file of a commit, by path; links are left out."""
        with self._open() as repo, tempfile.TemporaryFile() as given:
            blobs = patch.parse_blobs(
                _raw(repo.git.ls_tree("-r", "-z", "--full-tree", sha, **_RAW))
            )
            given.write("".join(f"{blob}\n" for _, blob in blobs).encode())
            given.seek(0)
            contents = patch.parse_batch(repo.git.cat_file("--batch", istream=given, **_RAW))
        return {
            path: os.fsdecode(content)
            for (path, _), content in zip(blobs, contents, strict=True)
            if content is not None
        }

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of blobs, named by id or as `sha:path`; None for those that are not there."""
        found: list[bytes | None] = []
        with self._open() as repo:
            for name in names:
                try:
                    found.append(repo.git.get_object_data(name)[3])
                except ValueError:
                    found.append(None)
        return found

    def subjects(self, shas: Sequence[str]) -> dict[str, str]:
        """Return the subjects of commits; those that are gone are left out."""
        with self._open() as repo:
            text = repo.git.log(
                *("--no-walk=unsorted", "--ignore-missing", "--no-show-signature"),
                *("--format=%H%x00%s", *shas, "--"),
            )
        return dict(line.split("\0", 1) for line in text.splitlines())

    def checkout(self, sha: str, target: Path) -> None:
        """Write the commit's files to `target`, which is there only when it is whole."""
        with self._open() as repo:
            _write_tree(repo, sha, target)

    def checkout_without(self, sha: str, culprit: str, target: Path) -> bool:
        """Write the files of a commit with another one reverted, against its first parent; False: that conflicts.

        Index and new objects lie beside `target` for a while; the repository is only read.
        """
        index, patch, objects = (
            target.with_name(f"{target.name}.{kind}") for kind in ("without", "patch", "objects")
        )
        objects.mkdir(parents=True)
        with self._open() as repo:
            own = Path(repo.common_dir, "objects")
            quoted = str(own).replace("\\", "\\\\").replace('"', '\\"')
            repo.git.update_environment(
                GIT_INDEX_FILE=str(index),
                GIT_OBJECT_DIRECTORY=str(objects),
                GIT_ALTERNATE_OBJECT_DIRECTORIES=f'"{quoted}"',
            )
            try:
                repo.git.read_tree(sha)
                change = repo.git.diff_tree(
                    *("-p", "-M", "--binary", "--full-index", "--no-ext-diff", "--no-textconv"),
                    *(f"{culprit}^1", culprit),
                    **_RAW,
                )
                if change:
                    patch.write_bytes(change)
                    how = ("--cached", "--3way", "--reverse", "--whitespace=nowarn")
                    repo.git.apply(*how, str(patch))
                tree = str(repo.git.write_tree())
            except git.GitCommandError:
                return False
            else:
                _write_tree(repo, tree, target)
                return True
            finally:
                shutil.rmtree(objects, ignore_errors=True)
                for path in (index, patch):
                    path.unlink(missing_ok=True)


def _write_tree(repo: git.Repo, sha: str, target: Path) -> None:
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    index = target.with_name(f"{target.name}.index")
    repo.git.update_environment(GIT_INDEX_FILE=str(index), GIT_WORK_TREE=str(partial))
    try:
        repo.git.read_tree("--reset", "-u", "--no-sparse-checkout", sha)
    except git.GitCommandError as error:
        raise InfraError(
            f"git could not check out {sha[:10]}: {_last_line(error)}.",
            "Free space on the disk or mend the repository; run it again.",
        ) from None
    index.unlink(missing_ok=True)
    partial.rename(target)


_RAW: dict[str, Any] = {"strip_newline_in_stdout": False, "stdout_as_string": False}


def _raw(output: bytes) -> str:
    """Return git's output with every byte of a path kept, as file names are in Python."""
    return os.fsdecode(output)


def enclosing_repository(folder: Path) -> str | None:
    """Return the root of the git repository that holds `folder`, if one does."""
    try:
        with git.Repo(folder, search_parent_directories=True) as repo:
            return str(repo.working_tree_dir or repo.git_dir)
    except (git.InvalidGitRepositoryError, git.NoSuchPathError):
        return None


def _mirror_path(location: str, state: Path) -> Path:
    name = (
        re.sub(r"\W+", "-", location.rstrip("/").removesuffix(".git").rpartition("/")[2]) or "repo"
    )
    return state / "mirror.git" / f"{name}-{hashlib.sha256(location.encode()).hexdigest()[:8]}"


def _is_usable(path: Path) -> bool:
    try:
        with git.Repo(path) as repo:
            return bool(repo.git.rev_parse("--is-bare-repository"))
    except (git.GitError, OSError):
        return False


def _is_ancestor(repo: git.Repo, old: str, new: str) -> bool:
    try:
        repo.git.merge_base("--is-ancestor", old, new)
    except git.GitCommandError:
        return False
    return True


def _unreachable(location: str, error: Exception) -> InfraError:
    location = re.sub(r"//[^/@]*@", "//", location)  # a URL may carry a password
    return InfraError(
        f"{location} did not answer: {_last_line(error)}.",
        "Check the URL and the network; run it again.",
    )


def _last_line(error: Exception) -> str:
    text = str(getattr(error, "stderr", "") or error)
    text = text.strip().removeprefix("stderr:")
    lines = [line.strip(" '") for line in text.splitlines() if line.strip(" '")]
    return re.sub(r"//[^/@]*@", "//", lines[-1]).rstrip(".") if lines else "no reason given"
