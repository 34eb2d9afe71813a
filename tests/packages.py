"""Small pure-Python packages in a folder that is an index, and a base environment without a network."""

import base64
import hashlib
import io
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import uv


def write_wheel(
    index: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    python: str = ">=3.9",
    files: dict[str, str] | None = None,
    script: bool = False,
) -> Path:
    """Write a wheel whose module says its version; list it in the index's page."""
    info = f"{name}-{version}.dist-info"
    contents = {f"{name}/__init__.py": f"VERSION = {version!r}\n", **(files or {})}
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {python}\n{needs}"
    )
    contents[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if script:
        contents[f"{name}/main.py"] = "def main():\n    from . import VERSION\n    print(VERSION)\n"
        contents[f"{info}/entry_points.txt"] = (
            f"[console_scripts]\n{name}-tool = {name}.main:main\n"
        )
    record = "".join(f"{path},{_digest(text)},{len(text)}\n" for path, text in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    path = index / name / f"{name}-{version}-py3-none-any.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for place, text in contents.items():
            wheel.writestr(place, text)
    return _list(path, python)


def write_broken_sdist(index: Path, name: str, version: str) -> Path:
    """Write a source distribution whose build ends with an error of its own."""
    path = index / name / f"{name}-{version}.tar.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = {
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "broken"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n',
        "broken.py": "def build_wheel(*_, **__):\n    raise SystemError('no compiler for gears')\n",
    }
    with tarfile.open(path, "w:gz") as archive:
        for place, text in contents.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{place}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return _list(path, "")


def make_base(place: Path, index: Path, *pins: str) -> str:
    """Return the interpreter of a new environment that has the pins from the index and nothing else."""
    uv_bin = uv.find_uv_bin()
    run(uv_bin, "venv", "--quiet", "--offline", str(place))
    install(place, index, *pins)
    return str(place / "bin" / "python")


def install(place: Path, index: Path, *pins: str) -> None:
    """Install the pins from the index, and nothing else, into an environment."""
    options = ("--quiet", "--no-deps", "--default-index", index.as_uri(), "--link-mode", "copy")
    python = str(place / "bin" / "python")
    run(uv.find_uv_bin(), "pip", "install", *options, "--python", python, *pins)


def run(*argv: str) -> str:
    """Return what a command prints."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def yank(index: Path, name: str, version: str) -> None:
    """Mark a wheel in the index's page as yanked."""
    page = index / name / "index.html"
    link = f'<a href="{name}-{version}-'
    page.write_text(page.read_text().replace(link, link.replace("<a", '<a data-yanked=""')))


def _list(path: Path, python: str) -> Path:
    with (path.parent / "index.html").open("a") as page:
        asks = f' data-requires-python="{python.replace(">", "&gt;")}"' if python else ""
        page.write(f'<a href="{path.name}"{asks}>{path.name}</a>\n')
    return path


def _digest(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
