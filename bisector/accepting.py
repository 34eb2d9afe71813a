"""`accept`: a change that is intended becomes the baseline; its references are written again if asked."""

import json
import time
from pathlib import Path

from bisector import bulletin
from bisector.bulletin import About
from bisector.config import load_suite
from bisector.errors import BisectorError
from bisector.posting import address
from bisector.probing import write_reference
from bisector.ruling import accept
from bisector.session import Session
from bisector.watched import Regression


def accept_regression(
    session: Session, prefix: str, reason: str, folder: Path | None
) -> tuple[Regression, list[Path]]:
    """Return the regression whose id begins so, accepted, and the reference files that were written."""
    if not reason.strip():
        raise BisectorError("The reason is empty.", "Say with --reason why the change is intended.")
    ledger = session.ledger
    found = ledger.regression(prefix)
    if found is None:
        raise BisectorError(
            f"No single regression has an id that begins with {prefix!r}.",
            "`bisector status` lists them.",
        )
    if found.state.is_over:
        raise BisectorError(
            f"{found.id} is {found.state} already.", "`bisector status` lists what is open."
        )
    written = _write_references(session, found, folder) if folder else []
    record = accept(found, reason.strip())
    repository, branch, suite = json.loads(ledger.get("about"))
    now = time.time()
    (tell,) = record.tells
    document = bulletin.compose(tell, About(repository, branch, suite), now)
    message = address(tell, document, now, session.settings.notify)
    ledger.write(regressions=record.regressions, messages=[message])
    return record.regressions[0], written


def _write_references(session: Session, found: Regression, folder: Path) -> list[Path]:
    """Write the reference of the class again, from a stored run of its canonical member at the culprit."""
    config = load_suite(json.loads(session.ledger.get("about"))[2]).canonical(found.class_name)
    sha = found.culprit or found.bad
    run = session.store.completed_run(sha, config.digest, found.environment)
    if run is None:
        raise BisectorError(
            f"{config.name} has no completed run at {sha[:10]} in the regression's environment.",
            f"Record it with `bisector record {sha[:10]} {found.class_name} -o DIR`.",
        )
    environment = session.store.environments([run.environment])[run.environment]
    return [write_reference(folder, config, environment, run)]
