"""`accept`: a change that is intended becomes the baseline; its references are written again if asked."""

import json
import time
from pathlib import Path

from bisector import bulletin
from bisector.bulletin import About
from bisector.config import load_suite
from bisector.delivering import channels_for
from bisector.errors import BisectorError
from bisector.ledger import Ledger
from bisector.probing import reference_environment
from bisector.references import Reference, save_reference
from bisector.ruling import accept
from bisector.session import Session
from bisector.watched import Message, Regression


def accept_regression(
    session: Session, prefix: str, reason: str, folder: Path | None
) -> tuple[Regression, list[Path]]:
    """Return the regression whose id begins so, accepted, and the reference files that were written."""
    if not reason.strip():
        raise BisectorError("The reason is empty.", "Say with --reason why the change is intended.")
    ledger = Ledger(session.store.db, session.store.transaction)
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
    message = Message(tell.id, tell.event, tell.regression, now, json.dumps(document))
    channels = channels_for(tell, session.settings.notify)
    ledger.write(regressions=record.regressions, messages=[(message, channels)])
    return record.regressions[0], written


def _write_references(session: Session, found: Regression, folder: Path) -> list[Path]:
    """Write the reference of the class again, from a stored run of its canonical member at the culprit."""
    about = Ledger(session.store.db, session.store.transaction).get("about")
    config = load_suite(json.loads(about)[2]).canonical(found.class_name)
    sha = found.culprit or found.bad
    run = session.store.completed_run(sha, config.digest, found.environment)
    if run is None:
        raise BisectorError(
            f"{config.name} has no completed run at {sha[:10]} in the regression's environment.",
            f"Record it with `bisector record {sha[:10]} {found.class_name} -o DIR`.",
        )
    environment = session.store.environments([run.environment])[run.environment]
    described = {
        "name": config.name,
        "method": config.method or config.script,
        "args": dict(config.args),
    }
    path = folder / f"{found.class_name}.json"
    reference = Reference(described, reference_environment(environment, sha), run.result.trajectory)
    save_reference(path, reference)
    return [path]
