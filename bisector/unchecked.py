"""Says what a hunt's runs cannot tell; pure."""

from bisector import report
from bisector.markup import code, escape
from bisector.model import Outcome, Status
from bisector.report import Report
from bisector.stopping import whole_steps


def unchecked(found: Report) -> list[str]:
    """Return it, each as a sentence in Markdown."""
    hunt, conclusion, config = found.hunt, found.conclusion, found.hunt.config
    texts = [*_unchecked_steps(found), *_unchecked_commits(found)]
    if conclusion.outcome in (Outcome.INFRA, Outcome.INTERRUPTED, Outcome.BUDGET):
        texts.insert(0, "The hunt did not come to its end; nothing is concluded.")
    has_confirmed = conclusion.confirmed or (hunt.probe_all and bool(conclusion.transient))
    if not has_confirmed:
        texts.append("No commit was confirmed by fresh runs, so none is accused.")
    elif conclusion.confirmed and not conclusion.explained:
        texts.append("Something else moves the bad end too; it is not wholly explained.")
    if conclusion.transient and not hunt.probe_all:
        texts.append("What was undone again was not run twice.")
    if conclusion.crash is None and not hunt.exact:
        limits = ", ".join(f"{escape(m)} {limit:g}" for m, limit in config.tolerances.step.items())
        texts.append(
            f"Changes below tolerance on every step ({limits}) were not hunted; `--exact` does."
        )
    texts.append(
        f"Other configs than {code(config.name)} of suite {code(config.suite)}, and other metrics than loss "
        "and grad\\_norm."
    )
    texts.append("Other environments and devices than the one above.")
    culprit = conclusion.culprit
    if culprit and hunt.may_revert and culprit.sha != hunt.bad and not conclusion.reverted:
        texts.append("Whether reverting it at the bad end restores the trajectory.")
    return texts


def _unchecked_steps(found: Report) -> list[str]:
    conclusion, total = found.conclusion, whole_steps(found.hunt.config)
    compared = conclusion.compared_steps
    if not compared or compared >= total:
        return []
    return [f"Steps after {compared} of {total}: what moved only those was not looked for."]


def _unchecked_commits(found: Report) -> list[str]:
    hunt, conclusion = found.hunt, found.conclusion
    trained = {r.sha for r in found.runs if r.result.status is not Status.SETUP_FAILED} - {
        hunt.good
    }
    left = hunt.commits - len(trained)
    texts = []
    if left > 0:
        text = f"{report.count(left, 'commit')} of {hunt.commits} in the range were not run"
        others = hunt.commits - found.candidates
        if others:
            text += f"; {others} of the {hunt.commits} touch nothing that the runs read"
        texts.append(
            f"{text}. A change that a later one takes back between two tested commits is not seen."
        )
    untested = sum(suspect.why == "untested" for suspect in conclusion.suspects)
    skipped = len(conclusion.suspects) - untested
    if skipped:
        texts.append(f"{report.count(skipped, 'suspect')} could not be judged.")
    if untested:
        texts.append(f"{report.count(untested, 'suspect')} had no run.")
    if hunt.skip:
        texts.append(f"{report.count(len(hunt.skip), 'commit')} left out as asked.")
    return texts
