import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def _device_slots_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Device slots are machine-wide files in TMPDIR; workers of one test run must not wait for each other."""
    os.environ["TMPDIR"] = str(tmp_path_factory.mktemp("tmp"))
    tempfile.tempdir = None


@pytest.fixture
def listener() -> Iterator[Any]:
    """A channel on loopback for the service; `service.Listener`."""
    from service import Listener

    found = Listener()
    yield found
    found.close()
