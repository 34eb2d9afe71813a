"""`compare`: two trajectory files, and the two environments beside one another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bisector import documents, report
from bisector.compare import deviations, has_data_changed, headline, largest_differences
from bisector.config import BUILT_IN_SUITES, Suite, load_suite
from bisector.errors import BisectorError
from bisector.model import METRICS, Config, Deviation
from bisector.references import Reference, load_reference
from bisector.series import plain

DEVICE_KEYS = ("gpu",)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two references held side by side under one class's tolerances."""

    paths: tuple[Path, Path]
    class_name: str
    references: tuple[Reference, Reference]
    deviations: tuple[Deviation, ...]
    headline: Deviation | None
    largest: dict[str, float]
    data_changed: bool | None

    @property
    def first_step(self) -> int | None:
        """Return the first step with a deviation; None where only the mean drifted, or nothing did."""
        return min((d.step for d in self.deviations if d.step is not None), default=None)

    @property
    def environment(self) -> list[tuple[str, str, str]]:
        """Return (key, first, second) of everything that either environment names."""
        one, other = (reference.environment for reference in self.references)
        keys = dict.fromkeys([*one, *other])
        return [(key, str(one.get(key, "")), str(other.get(key, ""))) for key in keys]


def compare_files(one: Path, other: Path, class_name: str, suite: str) -> Comparison:
    """Return how the second file's trajectory left the first one's."""
    first, second = load_reference(one), load_reference(other)
    config = _tolerant_config(first, class_name, suite)
    found = deviations(second.trajectory, first.trajectory, config.tolerances)
    return Comparison(
        paths=(one, other),
        class_name=config.class_name,
        references=(first, second),
        deviations=tuple(found),
        headline=headline(found, config.tolerances.step),
        largest=largest_differences(second.trajectory, first.trajectory),
        data_changed=has_data_changed(second.trajectory, first.trajectory),
    )


def _tolerant_config(reference: Reference, class_name: str, suite_name: str) -> Config:
    """Return a config of the class whose tolerances are to be used."""
    suites = [load_suite(name) for name in ([suite_name] if suite_name else BUILT_IN_SUITES)]
    if class_name:
        for suite in suites:
            if class_name in suite.class_names:
                return suite.canonical(class_name)
        known = dict.fromkeys(name for suite in suites for name in suite.class_names)
        raise BisectorError(f"There is no class {class_name!r}.", f"Classes: {', '.join(known)}.")
    name = str(reference.config.get("name", ""))
    found = _config_named(name, suites)
    if found is None:
        raise BisectorError(
            f"The first file's config {name!r} belongs to no class of {_names(suites)}.",
            "Name the class with --class, or the suite with --suite.",
        )
    return found


def _config_named(name: str, suites: list[Suite]) -> Config | None:
    return next((suite.configs[name] for suite in suites if name in suite.configs), None)


def _names(suites: list[Suite]) -> str:
    return " or ".join(suite.name for suite in suites)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return the document that `compare --json` prints."""
    return {
        "schema": documents.SCHEMA,
        "a": str(comparison.paths[0]),
        "b": str(comparison.paths[1]),
        "class": comparison.class_name,
        "agree": not comparison.deviations,
        "first_deviating_step": comparison.first_step,
        "deviation": documents.deviation_json(comparison.headline),
        "deviations": [documents.deviation_json(d) for d in comparison.deviations],
        "largest_difference": {m: plain(comparison.largest[m]) for m in METRICS},
        "data_changed": comparison.data_changed,
        "environment": [
            {"key": key, "a": one, "b": other, "differs": one != other}
            for key, one, other in comparison.environment
        ],
    }


def show(comparison: Comparison, console: Console) -> None:
    """Print the answer, every deviation by kind, and the two environments."""
    found = comparison.deviations
    if comparison.headline:
        where = f"first at step {comparison.first_step}" if comparison.first_step else "on the mean"
        count = f"{len(found)} deviation{'s' if len(found) > 1 else ''}"
        console.print(Text(f"differ: {count}, {where}", style="bold"))
        for deviation in found:
            console.print(Text(f"  {report.describe_deviation(deviation)}"))
    else:
        sizes = ", ".join(f"{m} by {comparison.largest[m]:.1e}" for m in METRICS)
        steps = len(comparison.references[0].trajectory)
        console.print(Text(f"agree over {steps} steps: at most {sizes}", style="bold"))
    console.print(Text(f"class {comparison.class_name}: B against A", style="dim"))
    console.print(_environment_table(comparison))
    if any(one != other for key, one, other in comparison.environment if key in DEVICE_KEYS):
        console.print(
            "warning: the two were recorded on different devices, so a difference may be the device's"
        )


def _environment_table(comparison: Comparison) -> Table:
    table = Table("", "A", "B", "", box=None, padding=(0, 2, 0, 0))
    for key, one, other in comparison.environment:
        mark = "" if one == other else "differs"
        table.add_row(
            *(Text(report.printable(cell), overflow="fold") for cell in (key, one, other, mark))
        )
    return table
