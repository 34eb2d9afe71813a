"""Prepares one run: its folder, its environment variables, its command."""

import os
import re
import shutil
from pathlib import Path

from bisector.job import Job
from bisector.model import Config

WORKER = Path(__file__).with_name("worker.py")
TRACER = Path(__file__).with_name("tracer.py")
LOG_LIMIT = 4_000_000  # bytes of one run's output that are kept from its beginning
THREADS = 1
CLI = "import sys\nfrom trl.cli import main\nsys.exit(main())\n"
INHERITED = (
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "NVIDIA_VISIBLE_DEVICES",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
)


def prepare(job: Job) -> dict[str, object]:
    """Write what the run needs to its scratch directory; return what its supervisor is to be told."""
    scratch = job.scratch
    for name in ("output", "home", "work", "tmp", "front", "record"):
        (scratch / name).mkdir()
    _write_front(job)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    return {
        "argv": command(job.config, job, scratch / "output"),
        "env": _variables(job),
        "cwd": str(scratch / "work"),
        "log": str(job.log),
        "log_limit": LOG_LIMIT,
        "timeout": job.timeout,
        "result": str(scratch / "result.json"),
        "scratch": str(scratch),
    }


def command(config: Config, job: Job, output: Path) -> list[str]:
    """Return the users' command: `trl <method>` with the config's arguments, or the script with them."""
    args = ["--output_dir", str(output)]
    for key, value in config.args.items():
        args += [f"--{key}", value.replace("{tiny}", str(job.assets))]
    if config.script:
        return [job.python, str(job.checkout / config.script), *args]
    assert config.method
    return [job.python, str(job.scratch / "front" / "trl"), config.method, *config.launch, *args]


def base_variables(python: str) -> dict[str, str]:
    """Return the part of a training's environment variables that is the same for every run here."""
    count = str(THREADS)
    return {
        "PATH": f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        **{name: os.environ[name] for name in INHERITED if name in os.environ},
    }


def variables_of_place(python: str, scratch: Path, hub: Path, devices: str) -> dict[str, str]:
    """Return the variables of a training that depend on the place where it runs, not on the commit."""
    return {
        **base_variables(python),
        "HOME": str(scratch / "home"),
        "TMPDIR": str(scratch / "tmp"),
        "HF_HOME": str(scratch / "home" / "hf"),
        "HF_HUB_CACHE": str(hub),
        "HF_DATASETS_CACHE": str(scratch / "datasets"),
        "CUDA_VISIBLE_DEVICES": devices,
    }


def _variables(job: Job) -> dict[str, str]:
    scratch = job.scratch
    paths = [scratch / "front", job.checkout, job.checkout / "src"]
    return {
        **variables_of_place(job.python, scratch, job.hub, job.devices),
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path.is_dir()),
        "BISECTOR_RUN_DIR": str(scratch / "record"),
        "BISECTOR_CHECKOUT": str(job.checkout),
        **job.mark,
    }


def _write_front(job: Job) -> None:
    """Write what stands before the installed packages: recorder, metadata of the checkout, `trl`."""
    front = job.scratch / "front"
    (front / "bisector_worker.py").symlink_to(WORKER)
    (front / "bisector_tracer.py").symlink_to(TRACER)
    (front / "sitecustomize.py").write_text("import bisector_worker\nbisector_worker.record()\n")
    (front / "trl").write_text(CLI)
    declared = job.declared
    if declared.name:
        stem = re.sub(r"[-_.]+", "_", declared.name)
        info = front / f"{stem}-{declared.version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {declared.name}", f"Version: {declared.version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in declared.requirements]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "top_level.txt").write_text(f"{declared.name}\n")
    prepared = job.hub / "datasets"
    if prepared.is_dir():
        shutil.copytree(prepared, job.scratch / "datasets")
