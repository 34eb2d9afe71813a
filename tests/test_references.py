from pathlib import Path

import pytest

from bisector.config import references_dir
from bisector.references import load_reference, save_reference


@pytest.mark.parametrize("name", ["sft", "dpo", "sft_fa2"])
def test_a_recording_is_written_as_it_was_read_byte_for_byte(tmp_path: Path, name: str) -> None:
    original = references_dir() / f"{name}.json"
    reference = load_reference(original)
    assert len(reference.trajectory) == 50
    save_reference(tmp_path / "new" / "copy.json", reference)
    assert (tmp_path / "new" / "copy.json").read_bytes() == original.read_bytes()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["copy.json"]
