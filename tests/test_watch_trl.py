"""The service once with the real trl on suite `tiny`: a regression is found, and its mend."""

import shutil
from pathlib import Path

import pytest
from service import Listener, Remote, Service
from synthetic import git

from bisector.demonstrating import SCALED, Edit, make_history
from bisector.session import Options, Session

pytestmark = [pytest.mark.trains, pytest.mark.slow]

TRAINER = "trl/trainer/sft_trainer.py"
HISTORY = (
    Edit("Document the trainer", "README.md", "One more line.\n"),
    Edit("Scale the loss", TRAINER, SCALED),
    Edit("Explain a line", TRAINER, "\n# It changes nothing.\n"),
    Edit("Take the scale back", TRAINER, "", old=SCALED),
)


def test_a_real_regression_is_found_and_its_mend(tmp_path: Path, listener: Listener) -> None:
    shas = make_history(tmp_path / "history", Session(Options(state=str(tmp_path / "s"))), HISTORY)
    remote = Remote(tmp_path)
    shutil.rmtree(remote.clone)
    (tmp_path / "history").rename(remote.clone)
    git(remote.clone, "remote", "add", "origin", str(remote.path))
    service = Service(tmp_path, remote, listener.url, configs=["sft_default", "dpo_default"])
    settings = tmp_path / "bisector.toml"
    text = settings.read_text().replace(f"{tmp_path}/toy.toml", "tiny")
    text = text.replace(f'python = "{service.python}"\n', "").replace('"20s"', '"10m"')
    settings.write_text(text)
    for number in (0, 2, 4):
        git(remote.clone, "push", "-qf", "origin", f"{shas[number]}:refs/heads/main")
        if number == 0:
            service.start()
        seen = service.settle(shas[number], timeout=1500)
    assert service.stop() == 0
    assert listener.events == ["regression", "culprit", "fixed"]
    (found,) = seen["regressions"]
    assert (found["culprit"], found["ended_by"]) == (shas[2], shas[4])
    assert found["members"]["moved"] == ["sft_default"]
    assert listener.accepted[1]["members"]["unmoved"] == ["dpo_default"]
    verdicts = [commit["configs"]["sft_default"]["verdict"] for commit in seen["commits"]]
    assert verdicts == ["good", "bad", "bad", "good", "good"]
