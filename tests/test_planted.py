"""Regressions planted in a history made from the installed trl, each found by a real hunt on suite `tiny`."""

import json
from pathlib import Path

import pytest
from driving import bisector, only_hunt

from bisector.demonstrating import SCALED, Edit, make_history
from bisector.session import Options, Session

pytestmark = pytest.mark.trains

TRAINER = "trl/trainer/sft_trainer.py"
WRAP_STEP = """

def _wrapped(training_step):
    def training_step_changed(self, model, *args, **kwargs):
        loss = training_step(self, model, *args, **kwargs)
        step = self.state.global_step + 1
        CHANGE
        return loss

    return training_step_changed


SFTTrainer.training_step = _wrapped(SFTTrainer.training_step)
"""
SCALED_LOSS = Edit("Scale the loss", TRAINER, SCALED)
SHIFTED_LABELS = Edit(
    "Shift the labels",
    TRAINER,
    """

def _shifted(torch_call):
    def torch_call_shifted(self, examples):
        batch = torch_call(self, examples)
        return {**batch, "labels": batch["labels"].roll(1, -1)}

    return torch_call_shifted


DataCollatorForLanguageModeling.torch_call = _shifted(DataCollatorForLanguageModeling.torch_call)
""",
)
UNMASKED_PROMPT = Edit(
    "Train on the prompt",
    TRAINER,
    'if False and "completion_mask" in column_names:',
    old='if self.completion_only_loss and "completion_mask" in column_names:',
)
OTHER_TRUNCATION = Edit(
    "Truncate the beginning",
    TRAINER,
    "sl = slice(-args.max_length, None)",
    old="sl = slice(None, args.max_length)",
)
CHANGED_HELPER = Edit(
    "Change a helper of tokenisation",
    "trl/data_utils.py",
    """

_tokenize_whole = _tokenize


def _tokenize(processing_class, input, **kwargs):
    found = _tokenize_whole(processing_class, input, **kwargs)
    return {key: value[:-1] for key, value in found.items()}
""",
)
CHANGED_DEFAULT = Edit(
    "Change a default",
    "trl/trainer/sft_config.py",
    'default=2.1e-5,\n        metadata={"help": "The initial learning rate',
    old='default=2e-5,\n        metadata={"help": "The initial learning rate',
)
DPO_DEFAULT = Edit(
    "Change a default of DPO",
    "trl/trainer/dpo_config.py",
    "default=2e-6,",
    old="default=1e-6,",
)
NAN_GRADIENT = Edit(
    "Lose a gradient from step 5 on",
    TRAINER,
    WRAP_STEP.replace(
        "CHANGE", "_ = step >= 5 and next(model.parameters()).grad.fill_(float('nan'))"
    ),
)
LATE_CHANGE = Edit(
    "Change step 30 alone",
    TRAINER,
    WRAP_STEP.replace(
        "CHANGE", "_ = step == 30 and [p.grad.mul_(1.5) for p in model.parameters()]"
    ),
)
BROKEN_IMPORT = Edit(
    "Import what is not there", "trl/scripts/sft.py", "\nimport a_module_that_is_not_there\n"
)
HARMLESS = (
    Edit("Document", "README.md", "A line.\n"),
    Edit("Comment", TRAINER, "\n# A comment.\n"),
    Edit("Comment again", "trl/data_utils.py", "\n# A comment.\n"),
)
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("config", "edit", "kind", "step"),
    [
        pytest.param("sft_default", CHANGED_HELPER, None, None, id="helper"),
        pytest.param("dpo_default", DPO_DEFAULT, "step", None, id="dpo-default"),
        pytest.param("sft_text", BROKEN_IMPORT, "crash", None, id="import", marks=slow),
        pytest.param("sft_default", SCALED_LOSS, "step", 1, id="scaled", marks=slow),
        pytest.param("sft_default", SHIFTED_LABELS, "step", 1, id="labels", marks=slow),
        pytest.param("sft_pc", UNMASKED_PROMPT, "step", 1, id="prompt", marks=slow),
        pytest.param("sft_default", OTHER_TRUNCATION, "step", 1, id="truncation", marks=slow),
        pytest.param("sft_default", CHANGED_DEFAULT, None, None, id="default", marks=slow),
        pytest.param("sft_default", NAN_GRADIENT, "non_finite", 5, id="nan", marks=slow),
        pytest.param("sft_default", LATE_CHANGE, None, None, id="late", marks=slow),
    ],
)
def test_the_planted_commit_is_named(
    tmp_path: Path, config: str, edit: Edit, kind: str | None, step: int | None
) -> None:
    shas = make_history(
        tmp_path / "repo", Session(Options()), [HARMLESS[0], HARMLESS[1], edit, HARMLESS[2]]
    )
    args = ("hunt", shas[0], shas[-1], "--repo", "repo", "--suite", "tiny", "--config", config)
    done = bisector(tmp_path, *args, "--json", timeout=1800)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    entry = only_hunt(done.stdout)
    assert (entry["outcome"], entry["culprit"]["sha"]) == ("culprit", shas[3])
    assert entry["others"] == []
    assert entry["explained"]
    assert entry["noise"] == {"loss": 0.0, "grad_norm": 0.0}, "a CPU training repeats bit for bit"
    deviation = entry["culprit"]["deviation"]
    assert kind in (None, deviation["kind"])
    assert step in (None, deviation["step"])
    if edit is CHANGED_HELPER:
        assert deviation["data_changed"], "a cached data set hid the change"
    shown = bisector(tmp_path, "show", entry["hunt"], "--format", "json")
    assert json.loads(shown.stdout)["hunts"] == [entry]
