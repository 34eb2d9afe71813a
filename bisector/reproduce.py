"""The commands that show what a hunt showed, with bisector and without it; pure."""

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from bisector.model import COMPARED_PACKAGES, Axis, Environment, Hunt
from bisector.stopping import whole_steps

MAKE_TINY = (
    "from pathlib import Path; from bisector.tiny import make_assets; "
    "print(make_assets(Path('state').resolve()))"
)
CODE = "code"  # the checkout where all places share one
BUILDS = "https://download.pytorch.org/whl/"  # where PyTorch keeps builds such as 2.9.0+cu128


def public(repository: str) -> str:
    """Return a repository's location without the password that its URL may hold."""
    return re.sub(r"://[^/@]*@", "://", repository)


def hunt_command(hunt: Hunt, older: str, newer: str, *, repository: str, suite: str) -> str:
    """Return the commands that hunt the same between two places of the range."""
    ends, start = [older, newer], ""
    words = ["bisector", "hunt"]
    if hunt.axis is Axis.SOURCE:
        words += [
            "--package",
            hunt.package,
            *ends,
            "--at",
            hunt.at,
            "--source",
            public(hunt.source),
        ]
    elif hunt.axis is Axis.PACKAGE:
        words += ["--package", hunt.package, *ends, "--at", hunt.at]
    elif hunt.axis is Axis.ENVIRONMENT:
        files = {"older.json": older, "newer.json": newer}
        start = "".join(
            f"echo {shlex.quote(json.dumps({'packages': dict(hunt.pins[place])}))} > {file}\n"
            for file, place in files.items()
        )
        words += ["--environment", *files, "--at", hunt.at]
    else:
        words += ends
    words += ["--repo", public(repository), "--suite", suite, "--config", hunt.config.name]
    words += ["--exact"] * hunt.exact + ["--thorough"] * hunt.thorough
    words += ["--fixed"] * hunt.fixed + ["--probe-all"] * hunt.probe_all
    return start + shlex.join(words)


def whole_command(hunt: Hunt) -> str:
    """Return the commands of the hunt itself."""
    found = hunt_command(
        hunt, hunt.oldest, hunt.newest, repository=hunt.repository, suite=hunt.config.suite
    )
    return " ".join([found, *(f"--skip {sha}" for sha in hunt.skip)])


def narrow_command(hunt: Hunt, parent: str, sha: str) -> str:
    """Return the commands that look at one change alone."""
    return hunt_command(hunt, parent, sha, repository=hunt.repository, suite=hunt.config.suite)


def by_hand(hunt: Hunt, places: Sequence[tuple[str, str]]) -> str:
    """Return the shell commands that train at each of (name, place) without bisector."""
    location = public(hunt.repository)
    is_remote = "://" in location or re.match(r"[^/]+@[^/]+:", location)
    start = f"git clone {shlex.quote(location)} repository" if is_remote else ""
    clone = "repository" if is_remote else location
    lines = [start] if start else []
    is_of_commits = hunt.axis is Axis.COMMIT
    for name, sha in places if is_of_commits else [(CODE, hunt.at)]:
        target = f'"$PWD/{name}"'
        lines.append(f"git -C {shlex.quote(clone)} worktree add --detach {target} {sha}")
    python = ".".join(hunt.environment.python.split(".")[:2])
    if _is_tiny(hunt):
        lines.append(f'TINY=$(python -c "{MAKE_TINY}")  # a Python that has bisector')
    lines.append(f"export {' '.join(_variables(hunt.environment))}")
    if is_of_commits:
        lines += _enter(hunt.environment, python, "env")
    for name, place in places:
        if is_of_commits:
            lines += ["", *_train(hunt, name, name)]
        else:
            pins = dict(hunt.pins[place])
            if hunt.source:
                pins[hunt.package] = _installable(public(hunt.source), place)
            entry = _enter(_with(hunt.environment, pins), python, f"env-{name}", list(pins))
            lines += ["", *entry, *_train(hunt, name, CODE)]
    return "\n".join(lines)


def _installable(source: str, sha: str) -> str:
    """Return the URL by which pip installs a commit of a repository."""
    if source.startswith("/"):
        source = f"file://{source}"
    elif "://" not in source:  # git@host:path
        source = f"ssh://{source.replace(':', '/', 1)}"
    return f"git+{source}@{sha}"


def _enter(
    environment: Environment, python: str, name: str, pinned: Collection[str] = ()
) -> list[str]:
    """Return the commands that make an environment and enter it."""
    packages = install(environment, pinned)
    return [f"python{python} -m venv {name}", f". {name}/bin/activate", packages]


def _with(environment: Environment, pins: Mapping[str, str]) -> Environment:
    """Return an environment with other versions of some packages; "" for none."""
    packages = {n: v for n, v in {**environment.packages, **pins}.items() if v}
    return replace(environment, packages=packages)


def install(environment: Environment, names: Collection[str] = ()) -> str:
    """Return the command that installs what a training can be moved by, and the packages `names`."""
    wanted = [*COMPARED_PACKAGES, *(name for name in names if name not in COMPARED_PACKAGES)]
    found = [(n, environment.packages[n]) for n in wanted if n in environment.packages]
    pins = [f"{n} @ {v}" if "://" in v else f"{n}=={v}" for n, v in found]
    builds = sorted({v.partition("+")[2] for _, v in found if "+" in v and "://" not in v})
    return _broken(
        ["pip install", *(f"--extra-index-url {BUILDS}{build}" for build in builds)]
        + [shlex.quote(pin) for pin in pins]
    )


def pins(environment: Environment) -> str:
    """Return every package as a requirements file pins it; what is under test is left out."""
    names = sorted(name for name in environment.packages if name not in ("trl", "bisector"))
    return "\n".join(f"{name}=={environment.packages[name]}" for name in names)


def _variables(environment: Environment) -> list[str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    found = [f"{name}={environment.threads}" for name in names]
    found += ["PYTHONHASHSEED=0", "TOKENIZERS_PARALLELISM=false"]
    return [*found, "CUDA_VISIBLE_DEVICES="] if environment.gpu == "cpu" else found


def _is_tiny(hunt: Hunt) -> bool:
    return any("{tiny}" in value for value in hunt.config.args.values())


def _train(hunt: Hunt, name: str, code: str) -> list[str]:
    """Return the commands that train in the checkout `code`; what they write goes to `out-name`.

    Each has a cache of its own: `datasets` would serve one commit the tokenised data of the other.
    """
    config = hunt.config
    cache = f'HF_DATASETS_CACHE="$PWD/cache-{name}"'
    args = [f"--output_dir out-{name}"]
    args += [f"--{key} {_word(value)}" for key, value in config.args.items()]
    if config.script:
        start = (
            f"{cache} PYTHONPATH={code}:{code}/src python {shlex.quote(f'{code}/{config.script}')}"
        )
        return [f"mkdir -p out-{name}", _broken([start, *args])]
    assert config.method
    trl = shlex.join(["trl", config.method, *config.launch])
    return [f"pip install -e ./{code}", _broken([cache, trl, *args])]


def _word(value: str) -> str:
    """Return a value as the shell takes it; `{tiny}` becomes the variable that holds the directory."""
    parts = value.split("{tiny}")
    return '"$TINY"'.join(shlex.quote(part) if part else "" for part in parts) or "''"


def _broken(words: Sequence[str]) -> str:
    """Return one command over lines of at most about 100 characters."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > 96:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def what_to_compare(hunt: Hunt) -> str:
    """Return where the values of a training by hand are found."""
    if hunt.config.script:
        return "`metrics.jsonl`, or the last `trainer_state.json`, under each output directory"
    steps = whole_steps(hunt.config)
    folder = f"`checkpoint-{steps}`" if steps else "the last checkpoint"
    return (
        f"`log_history` in `trainer_state.json` of {folder} under each output directory (what is printed "
        "may be rounded)"
    )
