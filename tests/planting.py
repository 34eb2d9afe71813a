"""Histories made from the installed trl: one planted regression among commits that change nothing.

A third of the harmless commits change the syntax of files that a training opens, one of them the culprit's own
file; a sixth change comments there; the rest touch nothing that `sft` or `dpo` opens.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bisector.demonstrating import Edit
from bisector.demonstrating import make_history as write_history
from bisector.session import Options, Session

SFT, DPO = "trl/trainer/sft_trainer.py", "trl/trainer/dpo_trainer.py"
SFT_CONFIG, DPO_CONFIG = "trl/trainer/sft_config.py", "trl/trainer/dpo_config.py"
SHARED = ("trl/trainer/utils.py", "trl/data_utils.py", "trl/trainer/base_config.py")


@dataclass(frozen=True, slots=True)
class Regression:
    """A change of the installed trl that moves the trajectory of `config` beyond its class's tolerances."""

    name: str
    config: str
    edit: Edit


REGRESSIONS = tuple(
    Regression(name, config, Edit(name.capitalize(), path, new, old=old))
    for name, config, path, old, new in (
        (
            "raise beta",
            "dpo_default",
            DPO_CONFIG,
            'default=0.1,\n        metadata={\n            "help": "Parameter controlling the deviation',
            'default=0.15,\n        metadata={\n            "help": "Parameter controlling the deviation',
        ),
        (
            "keep the end of long pairs",
            "dpo_default",
            DPO_CONFIG,
            'truncation_mode: str = field(\n        default="keep_start"',
            'truncation_mode: str = field(\n        default="keep_end"',
        ),
        (
            "drop the last token of the answers chosen",
            "dpo_default",
            DPO,
            'output["chosen_ids"] = prompt_chosen_ids[len(prompt_ids) :]',
            'output["chosen_ids"] = prompt_chosen_ids[len(prompt_ids) : -1]',
        ),
        (
            "swap the log-probabilities of the reference",
            "dpo_default",
            DPO,
            "ref_chosen_logps, ref_rejected_logps = ref_logps.chunk(2, dim=0)  # batch is",
            "ref_rejected_logps, ref_chosen_logps = ref_logps.chunk(2, dim=0)  # batch is",
        ),
        (
            "average the loss over chosen and rejected",
            "dpo_default",
            DPO,
            "loss += per_sequence_loss.mean() * loss_weight",
            "loss += per_sequence_loss.sum() / len(completion_mask) * loss_weight",
        ),
        (
            "mask one token too many",
            "dpo_default",
            DPO,
            '[[0] * len(example["prompt_ids"]) + [1] * len(example["rejected_ids"])',
            '[[0] * (len(example["prompt_ids"]) + 1) + [1] * (len(example["rejected_ids"]) - 1)',
        ),
        (
            "pad labels with a token",
            "sft_default",
            SFT,
            'labels, padding_value=-100, padding_side="right", pad_to_multiple_of=self.pad_to_multiple_of\n',
            'labels, padding_value=0, padding_side="right", pad_to_multiple_of=self.pad_to_multiple_of\n',
        ),
        (
            "truncate one token early",
            "sft_default",
            SFT,
            "sl = slice(None, args.max_length)",
            "sl = slice(None, args.max_length - 1)",
        ),
        (
            "anneal the learning rate",
            "sft_default",
            SFT_CONFIG,
            "    # Parameters that control the model\n",
            '    lr_scheduler_type: str = field(default="cosine")\n\n    # Parameters that control the model\n',
        ),
        (
            "warm up by default",
            "sft_default",
            "trl/trainer/base_config.py",
            "    logging_steps: float = field(\n",
            "    warmup_steps: float = field(default=10)\n    logging_steps: float = field(\n",
        ),
    )
)

# Each turns back and forth, so that any number of commits can be made of them.
REWORDED = (
    (
        SHARED[0],
        "seq_slice = slice(seq_start, seq_start + t.shape[0])\n        slices = (seq_slice,)",
        "span = slice(seq_start, seq_start + t.shape[0])\n        slices = (span,)",
    ),
    (
        SHARED[0],
        "    squeeze = index.ndim == logits.ndim - 1\n",
        "    assert logits.ndim >= 2\n    squeeze = index.ndim == logits.ndim - 1\n",
    ),
    (
        SHARED[1],
        "    is_vlm = isinstance(processing_class, ProcessorMixin)\n    if isinstance(input, list):",
        "    needs_unwrapping = is_vlm = isinstance(processing_class, ProcessorMixin)\n"
        "    if isinstance(input, list):",
    ),
    (
        SHARED[0],
        "def disable_dropout_in_model(model: torch.nn.Module) -> None:\n",
        "def disable_dropout_in_model(model: torch.nn.Module) -> None:\n"
        '    """Set the probability of every dropout to zero."""\n',
    ),
)
OUTSIDE = (
    *("README.md", "docs/source/index.md", "tests/test_trainers.py", "examples/train.py"),
    *("trl/trainer/kto_trainer.py", "trl/trainer/grpo_trainer.py", "trl/scripts/vllm_serve.py"),
)


def make_history(
    path: Path, *, commits: int, regression: Regression, at: int, seed: int
) -> list[str]:
    """Make a repository at `path`: the installed trl, then `commits` commits of which number `at` is the
    regression; return all shas, oldest first. The same seed gives the same history."""
    assert 0 < at <= commits
    edits = list(harmless(commits - 1, regression.edit.path, seed))
    edits.insert(at - 1, regression.edit)
    return write_history(path, Session(Options()), edits)


def harmless(count: int, own_file: str, seed: int) -> Iterator[Edit]:
    """Give commits that change no trajectory, `own_file` among those whose syntax they touch."""
    rng = random.Random(seed)
    kinds = ["syntax"] * (count // 3) + ["comment"] * (count // 6)
    kinds += ["outside"] * (count - len(kinds))
    rng.shuffle(kinds)
    files = (*SHARED, own_file)
    places = {number: rng.choice(files) for number in range(count)}
    places[kinds.index("syntax")] = own_file
    turned: set[int] = set()
    for number, kind in enumerate(kinds):
        if kind == "outside":
            yield Edit(f"Work elsewhere ({number})", rng.choice(OUTSIDE), f"\n# {number}\n")
        elif kind == "comment":
            yield Edit(f"Comment ({number})", places[number], f"\n# Comment {number}.\n")
        elif places[number] == own_file or rng.random() < 0.5:
            function = f"\n\ndef _unused_{number}(value):\n    return value\n"
            yield Edit(f"Add a helper ({number})", places[number], function)
        else:
            yield _reword(rng.randrange(len(REWORDED)), turned, number)


def _reword(which: int, turned: set[int], number: int) -> Edit:
    path, plain, reworded = REWORDED[which]
    turned ^= {which}
    old, new = (plain, reworded) if which in turned else (reworded, plain)
    return Edit(f"Reword ({number})", path, new, old=old)
