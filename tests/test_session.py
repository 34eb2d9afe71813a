import os
import subprocess
import sys
from pathlib import Path

from bisector.bench import slot_names
from bisector.environment import Gpu
from bisector.session import Options, Session
from bisector.slots import Slots


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


def test_as_many_runs_go_on_a_gpu_as_its_memory_holds(tmp_path: Path) -> None:
    session = Session(Options(suite="h100", state=str(tmp_path)))
    session.gpus = [
        Gpu("0", "H200", 9.0, "570.1", 150 * 10**9),
        Gpu("1", "T4", 7.5, "570.1", 16 * 10**9),
    ]
    assert session.jobs == 4 + 1
    names = slot_names(session)
    assert names == ["cuda0", "cuda1", "cuda0.1", "cuda1.1", "cuda0.2", "cuda1.2"]
    slots = Slots(names)
    assert slots.take(2) == ["cuda0", "cuda1"]
    assert slots.take(1) == ["cuda0.1"]
    assert slots.take(2) == ["cuda1.1", "cuda0.2"], "never two of one device"
    slots.keep_one_a_device()
    assert slots.take(1) is None
    slots.give(["cuda0"])
    assert slots.take(1) == ["cuda0"]
