"""The layers of the design, read from the imports."""

import ast
import sys
from pathlib import Path

import pytest

import bisector

PACKAGE = Path(bisector.__file__).parent
BASE = {"model", "errors", "series", "watched", "contents", "job", "patch", "resolving"}
CORE = {
    *(
        "compare",
        "judge",
        "search",
        "chain",
        "conclude",
        "stopping",
        "case",
        "plan",
        "report",
        "documents",
    ),
    *("footprint", "versions", "twobytwo", "pinning", "bayes", "noisy", "repeats"),
    *("alignment", "markup", "reproduce", "unchecked", "issue_text"),
    *("standing", "kinship", "acts", "inquest", "laws", "agenda", "telling"),
    *("settling", "ruling", "bulletin", "message"),
}
EFFECTS = {
    "config",
    "references",
    "store",
    "repo",
    "declared",
    "environment",
    "runner",
    "cold",
    "results",
    "interpreter",
    "slots",
    "warm",
    "processes",
    "tiny",
    "ledger",
    "notify",
    "service_manager",
    "housekeeping",
    "envs",
    "releases",
}
STACK = {"torch", "transformers", "trl", "datasets", "accelerate", "kernels", "huggingface_hub"}
WORKERS = {"worker", "warm_worker", "tracer", "cloner"}
IMPURE = {"os", "subprocess", "time", "pathlib", "sqlite3", "git", "shutil", "signal", "tempfile"}


def imports(module: str) -> tuple[set[str], set[str]]:
    """Return the modules of ours, and the top-level names of all others, that a module imports."""
    ours, others = set(), set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            is_ours = node.module == "bisector"
            names = [f"bisector.{a.name}" for a in node.names] if is_ours else [node.module or ""]
        for name in names:
            top, _, rest = name.partition(".")
            if top == "bisector":
                ours.add(rest.partition(".")[0])
            else:
                others.add(top)
    return ours, others


def modules() -> set[str]:
    return {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}


def test_base_imports_nothing_above_it() -> None:
    for module in BASE:
        assert imports(module)[0] <= BASE, module


def test_the_core_is_pure_and_knows_no_effect() -> None:
    for module in CORE:
        ours, others = imports(module)
        assert ours <= BASE | CORE, module
        assert not others & IMPURE, module


def test_effects_know_neither_the_core_nor_one_another() -> None:
    for module in EFFECTS:
        assert imports(module)[0] <= BASE, module


def test_only_the_worker_touches_the_training_stack() -> None:
    for module in modules() - WORKERS:
        assert not imports(module)[1] & STACK, module
    for module in WORKERS:
        assert imports(module)[0] == set(), f"{module} is run by path and imports nothing of ours"


@pytest.mark.parametrize("module", sorted(WORKERS))
def test_a_worker_needs_the_standard_library_alone_until_it_trains(module: str) -> None:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.partition(".")[0] in sys.stdlib_module_names, name


def test_the_warm_worker_never_imports_what_is_the_commits() -> None:
    tree = ast.parse((PACKAGE / "warm_worker.py").read_text())
    (stack,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "STACK"
    )
    assert "trl" not in {name.partition(".")[0] for name in (*stack, *imports("warm_worker")[1])}
