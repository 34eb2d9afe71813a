"""`status`: what the service watches, does and has found, and the last hunts and runs; writes nothing."""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bisector import looking, report, viewing
from bisector.config import load_suite
from bisector.documents import SCHEMA, moment, regression_json
from bisector.errors import BisectorError
from bisector.housekeeping import size_of
from bisector.ledger import Ledger
from bisector.model import Config
from bisector.reproduce import public
from bisector.session import Session
from bisector.slots import Lock
from bisector.watched import RegressionState

WEEK = 7 * 86_400.0

STYLES = {"good": "green", "bad": "red", "skipped": "yellow", "presumed": "dim green"}


def overview(session: Session) -> dict[str, Any]:
    """Return all of it as JSON."""
    store = session.store
    with store.reading():
        hunts, runs = store.recent_hunts(10), store.recent_runs(20)
        return {"watch": _watch(session), **looking.status_json(hunts, runs), "schema": SCHEMA}


def _watch(session: Session) -> dict[str, Any] | None:
    store = session.store
    if not session.ledger.get("about"):
        return None
    location, branch_name, suite_name = json.loads(session.ledger.get("about"))
    configs, suite_error = _configs(suite_name, json.loads(session.ledger.get("configs")))
    ledger = Ledger(store.db, store.transaction, configs)
    view = viewing.find(session, ledger, configs, location)
    return {
        "repository": public(location),
        "branch": branch_name,
        "suite": suite_name,
        "configs": [config.name for config in configs],
        "is_running": _is_running(session),
        "head": ledger.get("head"),
        "fetched": moment(ledger.get("fetched")),
        "fetch_error": ledger.get("fetch error"),
        "settings_error": ledger.get("reload error"),
        "suite_error": suite_error,
        "paused": bool(ledger.get("paused")),
        "held": "paused by a person" if ledger.get("paused") else ledger.get("held"),
        "running": _running(session, ledger),
        **view,
        "inquiries": [
            {
                "config": i.config,
                "good": i.good,
                "bad": i.bad,
                "hunt": i.hunt or None,
                "regression": i.regression or None,
            }
            for i in ledger.inquiries()
        ],
        "questions": [
            {"config": q.config, "record": q.record, "commit": q.commit, "attempts": q.attempts}
            for q in ledger.questions()
        ],
        "regressions": [regression_json(r) for r in ledger.regressions()[-50:]],
        "channels": _channels(session, ledger),
        "disk": _disk(session),
        "gpu_minutes_7_days": round(store.seconds_trained_since(time.time() - WEEK) / 60, 1),
    }


def _configs(suite: str, names: Sequence[str]) -> tuple[list[Config], str]:
    """Return the suite's configs of those names, or why there are none: the file is gone, or wrong by now."""
    try:
        known = load_suite(suite).configs
    except BisectorError as error:
        return [], error.problem
    return [known[name] for name in names if name in known], ""


def _is_running(session: Session) -> bool:
    lock = Lock(session.state / "locks" / "watch.lock")
    if lock.acquire():
        lock.release()
        return False
    return True


def _running(session: Session, ledger: Ledger) -> list[dict[str, Any]]:
    found = []
    for run in json.loads(ledger.get("running") or "[]") if _is_running(session) else []:
        logged = session.state / "scratch" / run["owner"] / run["run"] / "record" / "metrics.jsonl"
        try:
            steps = logged.read_bytes().count(b"\n")
        except OSError:
            steps = 0
        shown = {key: value for key, value in run.items() if key != "owner"}
        found.append({**shown, "began": moment(run["began"]), "steps": steps})
    return found


def _channels(session: Session, ledger: Ledger) -> list[dict[str, Any]]:
    counts = ledger.channels()
    found = []
    for each in session.settings.notify:
        last = ledger.last_of(each.name)
        state = "untried"
        if last:
            state = {"delivered": "well", "dead": "dead"}.get(last.state, "trying again")
        found.append(
            {
                "channel": each.name,
                "kind": each.kind,
                "state": state,
                "reason": last.reason if last else "",
                **{key: counts.get(each.name, {}).get(key, 0) for key in _STATES},
            }
        )
    return found


def _disk(session: Session) -> dict[str, int]:
    return {
        "used": size_of(session.state),
        "limit": session.settings.state.max_size,
        "free": shutil.disk_usage(session.state).free,
    }


_STATES = ("waiting", "delivered", "dead")


# As text


def show(found: Mapping[str, Any], console: Console) -> None:
    """Print it for a person."""
    watch = found["watch"]
    if watch:
        console.print(report.as_table(_lines(watch)))
        if watch["commits"]:
            console.print(_commit_table(watch))
        for regression in watch["regressions"]:
            if not RegressionState(regression["state"]).is_over:
                console.print(report.as_table(looking.regression_lines(regression)))
        console.print()
    looking.show_status(found, console)


def _lines(watch: Mapping[str, Any]) -> list[tuple[str, str]]:
    service = "running" if watch["is_running"] else "not running"
    lines = [("", f"{watch['branch']} of {watch['repository']}; the service is {service}")]
    fetched = watch["fetched"] or "never"
    lines.append(("head", f"{watch['head'][:10] or 'none yet'}, fetched {fetched}"))
    if watch["fetch_error"]:
        lines.append(("fetch", report.printable(watch["fetch_error"])))
    if watch["suite_error"]:
        lines.append(("suite", report.printable(watch["suite_error"])))
    if watch["settings_error"]:
        lines.append(("settings", report.printable(watch["settings_error"])))
    if watch["held"]:
        lines.append(("held", watch["held"]))
    for found in watch["broken"]:
        words = f"{', '.join(found['configs'])} since {found['sha'][:10]}: {found['reason']}"
        lines.append(("broken", report.printable(words)))
    for run in watch["running"]:
        lines.append(
            ("runs", f"{run['config']} {run['sha'][:10]} {run['role']}, {run['steps']} steps")
        )
    for found in watch["inquiries"]:
        hunt = f", hunt {found['hunt']}" if found["hunt"] else ""
        lines.append(
            ("inquiry", f"{found['config']} {found['good'][:10]} … {found['bad'][:10]}{hunt}")
        )
    for asked in watch["questions"]:
        lines.append(("why", f"{asked['config']} moved with the environment; it is being asked"))
    if watch["queue"]:
        first = watch["queue"][0]
        lines.append(
            (
                "queue",
                f"{report.count(len(watch['queue']), 'run')}, next {first['config']} {first['sha'][:10]}",
            )
        )
    for channel in watch["channels"]:
        words = f"{channel['channel']} ({channel['kind']}): {channel['state']}, {channel['waiting']} waiting"
        if channel["reason"]:
            words += f"; {report.printable(channel['reason'])}"
        lines.append(("channel", words))
    disk = watch["disk"]
    used, limit, free = (report.size(disk[key]) for key in ("used", "limit", "free"))
    over = ", over the limit" if disk["used"] > disk["limit"] else ""
    lines.append(("disk", f"{used} of {limit} used{over}, {free} free"))
    lines.append(("trained", f"{watch['gpu_minutes_7_days']:.0f} minutes in 7 days"))
    return lines


def _commit_table(watch: Mapping[str, Any]) -> Table:
    table = Table("commit", "verdicts", "subject", box=None, padding=(0, 2, 0, 0))
    for commit in watch["commits"][: viewing.SHOWN_COMMITS]:
        words: dict[str, list[str]] = {}
        for name, standing in commit["configs"].items():
            words.setdefault(standing["verdict"], []).append(name)
        verdicts = Text()
        for word, names in words.items():
            many = "" if len(words) == 1 else f" {', '.join(names)}"
            verdicts.append(f"{word}{many} ", style=STYLES.get(word, ""))
        table.add_row(
            commit["sha"][:10],
            verdicts,
            Text(report.printable(commit["subject"]), no_wrap=True, overflow="ellipsis"),
        )
    return table
