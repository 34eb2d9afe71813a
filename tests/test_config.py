from pathlib import Path

import pytest
from synthetic import SUITE

from bisector.config import load_settings, load_suite
from bisector.errors import BisectorError
from bisector.tiny import MAX_LENGTH


def test_the_public_suite_has_its_three_classes_with_members_and_tolerances() -> None:
    suite = load_suite("h100")
    assert {
        name: [c.name for c in suite.configs.values() if c.class_name == name]
        for name in suite.class_names
    } == {
        "sft": ["sft_default", "sft_pdb1_gas8", "sft_no_grad_ckpt", "sft_ddp2"],
        "sft_fa2": ["sft_fa2", "sft_fa2_padfree"],
        "dpo": ["dpo_default", "dpo_pdb1_gas8", "dpo_no_grad_ckpt", "dpo_ddp2"],
    }
    limits = {name: suite.canonical(name).tolerances for name in suite.class_names}
    assert (limits["sft"].step, limits["sft"].drift) == (
        {"loss": 1e-3, "grad_norm": 1e-1},
        {"loss": 1e-5, "grad_norm": 1e-3},
    )
    assert (limits["dpo"].step, limits["dpo"].drift) == (
        {"loss": 1e-4, "grad_norm": 1e-2},
        {"loss": 1e-5, "grad_norm": 1e-3},
    )
    assert (limits["sft_fa2"].step, limits["sft_fa2"].drift) == (
        {"loss": 1.5e-2, "grad_norm": 5.0},
        {"loss": 1e-3, "grad_norm": 2.5e-1},
    )


def test_the_tiny_suite_has_the_same_classes_on_cpu_and_four_more() -> None:
    suite = load_suite("tiny")
    assert suite.device == "cpu"
    assert suite.class_names == ["sft", "dpo", "sft_pack", "sft_pc", "sft_text", "sft_aonly"]
    for config in suite.configs.values():
        assert config.args["max_steps"] == "50"
        assert config.args["max_length"] == str(MAX_LENGTH)
        assert "{tiny}" in config.args["model_name_or_path"]
        assert not config.requires
    for name in suite.class_names:
        assert f"{suite.canonical(name).name.removesuffix('_default')}_pdb1_gas8" in suite.configs


def test_a_member_of_two_processes_asks_for_them(tmp_path: Path) -> None:
    config = load_suite("tiny").config("sft_ddp2")
    assert config.num_processes == 2
    assert config.launch == ("--num_processes", "2", "--multi_gpu", "--use_cpu")
    assert config.args["per_device_train_batch_size"] == "4"


def test_the_digest_follows_what_can_change_a_trajectory(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        (tmp_path / "s.toml").write_text(text)
        return load_suite(str(tmp_path / "s.toml")).config("toy").digest

    assert digest(SUITE) == digest("# a comment\n" + SUITE)
    assert digest(SUITE) == digest(SUITE.replace("1e-3", "2e-3")), "old runs are judged again"
    assert digest(SUITE) != digest(SUITE + "args = { seed = 1 }\n")


def test_settings_have_the_documented_defaults() -> None:
    settings = load_settings(None)
    assert settings.watch.repository == "https://github.com/huggingface/trl"
    assert (settings.watch.interval, settings.watch.heartbeat) == (300, 7 * 86400)
    assert (settings.train.timeout, settings.train.devices) == (1800, "all")
    assert (settings.state.dir, settings.state.max_size) == ("state", 50 * 10**9)


def test_every_key_of_the_contract_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "bisector.toml"
    path.write_text(
        """
[watch]
repository = "https://example.org/x"
branch = "main"
interval = "30s"
suite = "tiny"
configs = ["sft_default"]
max_backlog = 3
heartbeat = "1d"
[train]
python = "/opt/python"
devices = [0, 1]
jobs = 2
timeout = "2h"
[limits]
gpu_minutes_per_day = 60
hunts_per_day = 4
[state]
dir = "/var/lib/bisector"
max_size = "2TB"
[[notify]]
name = "team"
kind = "slack"
url_file = "/run/x"
events = ["culprit"]
[[notify]]
name = "pager"
kind = "exec"
command = ["/bin/page"]
"""
    )
    settings = load_settings(path)
    assert (settings.watch.interval, settings.train.timeout, settings.state.max_size) == (
        30,
        7200,
        2 * 10**12,
    )
    assert [channel.kind for channel in settings.notify] == ["slack", "exec"]


def test_an_unknown_config_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(BisectorError, match="sft_default"):
        load_suite("tiny").config("sft_defualt")
