import os
import subprocess
import sys
from pathlib import Path

from bisector.session import Options, Session


def test_what_a_dead_process_left_is_swept_and_a_live_ones_is_kept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone = [f"checkouts/{dead.pid}-1", f"scratch/{dead.pid}-1", f"mirror.git/r.{dead.pid}.partial"]
    session = Session(Options(state=str(tmp_path)))
    kept = [f"checkouts/{session.owner}", f"mirror.git/r.{os.getpid()}.partial", "mirror.git/r"]
    for name in gone + kept:
        (tmp_path / name / "inside").mkdir(parents=True)
    session.store.close()
    assert not [name for name in gone if (tmp_path / name).exists()]
    assert [name for name in kept if (tmp_path / name).exists()] == kept
