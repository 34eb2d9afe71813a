"""A folder of small wheels that stands for a package index, and a base environment that has some of them."""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import uv


def make_wheel(
    folder: Path, name: str, version: str, code: str, requires: Sequence[str] = ()
) -> None:
    """Write a wheel whose only module, `name`, holds `code`."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {each}" for each in requires]
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digest = {n: hashlib.sha256(text.encode()).digest() for n, text in files.items()}
    hashes = {n: base64.urlsafe_b64encode(d).rstrip(b"=").decode() for n, d in digest.items()}
    record = [f"{n},sha256={hashes[n]},{len(text.encode())}" for n, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def index_variables(folder: Path) -> dict[str, str]:
    """Return the variables with which uv finds packages in the folder, and nowhere else."""
    empty = folder / "simple"
    empty.mkdir(exist_ok=True)
    return {"UV_FIND_LINKS": str(folder), "UV_DEFAULT_INDEX": empty.as_uri()}


def make_base(folder: Path, index: Path, *pins: str) -> Path:
    """Make an environment with those packages and return its interpreter."""
    variables = {**os.environ, **index_variables(index)}
    program = uv.find_uv_bin()
    subprocess.run(
        [program, "venv", "--quiet", "--python", sys.executable, str(folder)],
        env=variables,
        check=True,
    )
    python = folder / "bin" / "python"
    subprocess.run(
        [program, "pip", "install", "--quiet", "--python", str(python), *pins],
        env=variables,
        check=True,
    )
    return python
