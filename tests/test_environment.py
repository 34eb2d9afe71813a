import os
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bisector.environment import (
    Gpu,
    find_lack,
    find_unsatisfied,
    is_device_shared,
    list_gpus,
    make_environment,
    releases_before,
)
from bisector.model import Environment

H100 = Gpu("0", "NVIDIA H100 80GB HBM3", 9.0, "570.1")
T4 = Gpu("0", "Tesla T4", 7.5, "570.1")
PACKAGES = {"transformers": "4.57.6", "kernels": "0.17.2"}


@pytest.mark.parametrize(
    ("requires", "gpus", "word"),
    [
        (["cuda"], [], "no GPU"),
        (["cuda"], [T4], ""),
        (["cuda", "bf16"], [T4], "bf16"),
        (["cuda", "bf16", "flash-attention"], [H100], ""),
        (["flash-attention"], [T4], "flash-attention"),
        (["devices:2"], [H100], "2 GPUs"),
        (["devices:2"], [H100, H100], ""),
        ([], [], ""),
    ],
)
def test_what_a_machine_lacks_is_said_before_anything_starts(
    requires: list[str], gpus: list[Gpu], word: str
) -> None:
    lack = find_lack(requires, PACKAGES, gpus)
    assert word in lack
    assert bool(lack) == bool(word)


def test_flash_attention_needs_the_kernels_package_too() -> None:
    assert "kernels" in find_lack(["flash-attention"], {}, [H100])


def environment(**packages: str) -> Environment:
    return make_environment(
        {"python": "3.11.7", "packages": packages, "processor": "x"},
        [],
        {"A": "1"},
        threads=1,
        data_fingerprint="d",
    )


@pytest.mark.parametrize(
    ("requirements", "python", "words"),
    [
        (["transformers>=4.56.2"], ">=3.10", ()),
        (["transformers>=5.2"], ">=3.10", ("transformers>=5.2", "installed: 4.57.6")),
        (["rich"], "", ("rich (not installed)",)),
        (["rich; python_version < '3.9'"], "", ()),
        (["not a requirement ==="], "", ()),
        ([], ">=3.12", ("Python >=3.12", "3.11.7")),
    ],
)
def test_what_a_commit_asks_for_is_compared_with_what_is_there(
    requirements: list[str], python: str, words: tuple[str, ...]
) -> None:
    found = find_unsatisfied(requirements, python, environment(transformers="4.57.6"))
    assert bool(found) == bool(words)
    for word in words:
        assert word in found


def test_an_environment_is_named_by_what_can_move_a_training() -> None:
    assert environment(torch="2.13.0").id == environment(torch="2.13.0").id
    assert environment(torch="2.13.0").id != environment(torch="2.14.0").id
    assert environment(trl="1.0").id == environment(trl="1.1").id, "each commit brings its own trl"


def fake_nvidia_smi(folder: Path, text: str) -> None:
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\ncat <<'X'\n{text}\nX\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def test_gpus_are_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(
        tmp_path, "0, NVIDIA H100 80GB HBM3, 9.0, 570.1, 81559\n1, Tesla T4, 7.5, 570.1, 15360"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    t4 = Gpu("1", "Tesla T4", 7.5, "570.1", 15360 << 20)
    assert list_gpus() == [replace(H100, memory=81559 << 20), t4]


def test_a_process_of_somebody_else_on_the_gpu_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvidia_smi(tmp_path, "4242")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert is_device_shared([])
    assert not is_device_shared([4242])


def test_without_an_index_there_are_no_releases_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("UV_INDEX", "")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_NO_CACHE", "1")
    assert releases_before(datetime(2025, 3, 13, tzinfo=UTC), ["transformers"]) == []
