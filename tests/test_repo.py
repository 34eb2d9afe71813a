from pathlib import Path

import pytest
from synthetic import git, make_repository

from bisector.contents import FileDiff, Hunk
from bisector.errors import BisectorError, InfraError
from bisector.repo import Repository, enclosing_repository


def test_names_of_all_kinds_resolve(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 4)
    git(tmp_path / "repo", "tag", "v1", shas[1])
    repository = Repository(str(tmp_path / "repo"), tmp_path / "state")
    repository.update()
    for name, sha in (("main", 3), ("v1", 1), ("HEAD~3", 0), (shas[2], 2), (shas[2][:12], 2)):
        assert repository.resolve(name) == shas[sha]
    assert repository.first_parents(shas[1], shas[3]) == shas[1:]


@pytest.mark.parametrize("name", ["absent", "", "-x", "\ud800", "a\0b", "^main", "main..v1"])
def test_what_names_no_commit_is_said(tmp_path: Path, name: str) -> None:
    make_repository(tmp_path / "repo", [{}])
    with pytest.raises(BisectorError, match="is no commit of"):
        Repository(str(tmp_path / "repo"), tmp_path / "state").resolve(name)


def test_a_commits_words_are_read(tmp_path: Path) -> None:
    (sha,) = make_repository(tmp_path / "repo", [{}], subject=lambda n: "Fix it (#1) again (#6321)")
    commit = Repository(str(tmp_path / "repo"), tmp_path).describe(sha)
    assert (commit.subject, commit.author, commit.pull_request) == (
        "Fix it (#1) again (#6321)",
        "x",
        6321,
    )


def test_a_checkout_is_the_commit_and_the_users_repository_stays_as_it_was(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{"loss": 1.0}, {"loss": 2.0}])
    (tmp_path / "repo" / "plan.json").write_text("work in progress")
    before = git(tmp_path / "repo", "status", "--porcelain")
    Repository(str(tmp_path / "repo"), tmp_path).checkout(shas[0], tmp_path / "out" / shas[0])
    assert '"loss": 1.0' in (tmp_path / "out" / shas[0] / "plan.json").read_text()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [shas[0]]
    assert git(tmp_path / "repo", "status", "--porcelain") == before
    assert (tmp_path / "repo" / "plan.json").read_text() == "work in progress"


def test_a_remote_is_mirrored_fetched_and_cloned_again_when_broken(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 2)
    url = f"file://{tmp_path}/repo"
    mirror = Repository(url, tmp_path / "state")
    mirror.update()
    assert mirror.resolve("main") == shas[1]
    git(tmp_path / "repo", "commit", "-q", "--allow-empty", "-m", "new")
    mirror.update()
    newest = git(tmp_path / "repo", "rev-parse", "main")
    assert mirror.resolve("main") == newest
    (mirror.path / "HEAD").unlink()
    mirror.update()
    assert mirror.resolve("main") == newest


def test_a_remote_that_does_not_answer_is_infrastructure_and_its_password_stays_out(
    tmp_path: Path,
) -> None:
    mirror = Repository("http://user:secret@127.0.0.1:1/x.git", tmp_path)
    with pytest.raises(InfraError) as caught:
        mirror.update()
    assert "secret" not in str(caught.value)
    assert not list((tmp_path / "mirror.git").iterdir())


@pytest.mark.parametrize("location", ["-x", "--upload-pack=touch x", "ext::sh -c true", "fd::3"])
def test_a_location_can_name_no_program(tmp_path: Path, location: str) -> None:
    with pytest.raises(BisectorError):
        Repository(location, tmp_path)


def test_hooks_of_a_repository_never_run(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 2)
    hook = tmp_path / "repo" / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    Repository(str(tmp_path / "repo"), tmp_path).checkout(shas[0], tmp_path / "out" / "x")
    assert not (tmp_path / "ran").exists()


def test_a_sparse_repository_is_checked_out_whole(tmp_path: Path) -> None:
    (sha,) = make_repository(tmp_path / "repo", [{}])
    git(tmp_path / "repo", "sparse-checkout", "set", "--no-cone", "/train.py")
    Repository(str(tmp_path / "repo"), tmp_path).checkout(sha, tmp_path / "out" / "x")
    assert {path.name for path in (tmp_path / "out" / "x").iterdir()} == {"train.py", "plan.json"}


def test_a_line_runs_between_two_commits_or_is_empty(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 4)
    repository = Repository(str(tmp_path / "repo"), tmp_path)
    assert repository.line(shas[1], shas[3]) == shas[1:]
    assert repository.line(shas[3], shas[3]) == [shas[3]]
    assert repository.line(shas[3], shas[1]) == []
    assert repository.line("0" * 40, shas[1]) == []


def test_the_fork_point_of_a_branch_that_was_pushed_anew_is_found(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 4)
    git(tmp_path / "repo", "reset", "-q", "--hard", shas[1])
    git(tmp_path / "repo", "commit", "-q", "--allow-empty", "-m", "other")
    other = git(tmp_path / "repo", "rev-parse", "main")
    repository = Repository(str(tmp_path / "repo"), tmp_path)
    assert repository.fork_point(shas[3], other) == shas[1]
    assert repository.fork_point("0" * 40, other) == ""


def test_commits_are_reverted_where_that_is_clean(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    shas = make_repository(repo, [{"loss": 0.0}, {"loss": 1.0}, {"loss": 2.0}])
    for name in ("a", "b"):
        (repo / name).write_bytes(b"\x00\xff" + name.encode())
        git(repo, "add", name)
        git(repo, "commit", "-q", "-m", name)
        shas.append(git(repo, "rev-parse", "main"))
    repository = Repository(str(repo), tmp_path)
    made = repository.revert(shas[4], [shas[3]], tmp_path / "scratch")
    assert git(repo, "diff", "--stat", shas[2], f"{made}~0", "--", "a") == ""
    assert git(repo, "ls-tree", "--name-only", made).split() == ["b", "plan.json", "train.py"]
    assert repository.revert(shas[4], [shas[3]], tmp_path / "scratch") == made
    assert repository.revert(shas[4], [shas[1]], tmp_path / "scratch") == "", "the next changed it"
    both = repository.revert(shas[4], [shas[2], shas[1]], tmp_path / "scratch")
    assert git(repo, "diff", "--stat", shas[0], both, "--", "plan.json") == ""


def test_a_bare_repository_without_a_config_file_is_read(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 2)
    git(tmp_path, "clone", "-q", "--bare", "repo", "bare")
    (tmp_path / "bare" / "config").unlink()
    repository = Repository(str(tmp_path / "bare"), tmp_path)
    repository.update()
    assert repository.resolve("main") == shas[1]


def test_the_enclosing_repository_is_found_from_a_folder_inside(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo", [{}])
    (tmp_path / "repo" / "docs").mkdir()
    assert enclosing_repository(tmp_path / "repo" / "docs") == str(tmp_path / "repo")
    assert enclosing_repository(tmp_path) is None


def test_a_commits_hunks_have_their_lines_and_follow_renames(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    make_repository(repo, [{}])
    odd = 'a "b" é\n\t-- +++ b.py'
    text = "".join(f"line {n}\n" for n in range(20))
    (repo / "one.py").write_text(text)
    (repo / odd).write_text(text)
    (repo / "gone.py").write_text("x = 1")
    (repo / "data.py").write_bytes(b"\0\xff")
    (repo / "notes.md").write_text("a\n")
    old = commit_all(repo)
    git(repo, "mv", "one.py", "two.py")
    (repo / "two.py").write_text(text.replace("line 3\n", "line three\n--- a\n+++ b\n"))
    (repo / odd).write_text(text + "@@ -1 +1 @@\ndiff --git a/x b/x")
    (repo / "gone.py").unlink()
    (repo / "data.py").write_bytes(b"\0\xfe")
    (repo / "notes.md").write_text("b\n")
    found = {diff.new: diff for diff in Repository(str(repo), tmp_path).diff(old, commit_all(repo))}
    assert found.keys() == {"two.py", odd, "", "data.py"}
    assert found["two.py"].old == "one.py"
    assert found["two.py"].hunks == (Hunk(4, ("line 3",), 4, ("line three", "--- a", "+++ b")),)
    assert found[odd].hunks == (Hunk(20, (), 21, ("@@ -1 +1 @@", "diff --git a/x b/x")),)
    assert found[""] == FileDiff("gone.py", "", (Hunk(1, ("x = 1",), 0, ()),))
    assert found["data.py"].hunks == ()


def test_a_file_that_became_a_link_is_two_changes_and_settings_of_diff_do_not_matter(
    tmp_path: Path,
) -> None:
    repo = tmp_path / "repo"
    make_repository(repo, [{}])
    (repo / "a.py").write_text("x = 1\n")
    (repo / "b.py").write_text("y = 1\n")
    (repo / "c.py").write_text("")
    old = commit_all(repo)
    (repo / "a.py").unlink()
    (repo / "a.py").symlink_to("b.py")
    (repo / "b.py").write_text("y = 2\n")
    (repo / "c.py").chmod(0o755)
    new = commit_all(repo)
    for key, value in (("external", "false"), ("noprefix", "true"), ("renames", "false")):
        git(repo, "config", f"diff.{key}", value)
    found = Repository(str(repo), tmp_path).diff(old, new)
    assert [(diff.old, diff.new, len(diff.hunks)) for diff in found] == [
        ("a.py", "", 1),
        ("", "a.py", 1),
        ("b.py", "b.py", 1),
        ("c.py", "c.py", 0),
    ]


def test_all_python_files_of_a_commit_are_read_at_once(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    make_repository(repo, [{}])
    files = {"a/b.py": "é\r\nx", 'q"\n\t.py': "", "one.py": "1\n", "two.py": "1\n"}
    for name, text in files.items():
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_bytes(text.encode())
    (repo / "bytes.py").write_bytes(b"\xff\0")
    (repo / "link.py").symlink_to("one.py")
    found = Repository(str(repo), tmp_path).python_files(commit_all(repo))
    train = (repo / "train.py").read_text()
    assert found == {**files, "train.py": train, "bytes.py": "\udcff\0"}


def commit_all(repo: Path) -> str:
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "x")
    return git(repo, "rev-parse", "HEAD")
