"""Lists the releases of a package from the index that uv would ask; settings in a uv.toml are not read."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pypi_simple import (
    DistributionPackage,
    NoSuchProjectError,
    ProjectPage,
    PyPISimple,
    UnsupportedContentTypeError,
)
from requests import RequestException

from bisector.errors import BisectorError, InfraError
from bisector.model import Release

PYPI = "https://pypi.org/simple"
OFFLINE = "The package index cannot be reached: UV_OFFLINE is set."
TIMEOUT = 30.0  # seconds for one page; the largest is a few MB
REMEDY = (
    "Connect this machine, or set UV_DEFAULT_INDEX or UV_FIND_LINKS to an index that it reaches; "
    "run it again."
)


def list_releases(name: str) -> list[Release]:
    """Return a package's releases as `find_releases` does; BisectorError where no index knows the package."""
    found = find_releases(name)
    if not found:
        raise BisectorError(
            f"The package index knows no {name!r}.",
            "Write the name as `pip list` does, or name the index that has it in UV_INDEX.",
        )
    return found


def find_releases(name: str) -> list[Release]:
    """Return a package's releases, oldest version first, from the first index that knows it; none if none does.

    Folders in UV_FIND_LINKS add theirs, without dates and demands on Python. Raises InfraError when an index
    cannot be reached.
    """
    name = canonicalize_name(name)
    found = [each for place in _find_links() for each in _read_links(place, name)]
    indexes = [index for index in _indexes() if _folder_of(index) or not _is_offline()]
    if not (indexes or found):
        raise InfraError(OFFLINE, REMEDY)
    for index in indexes:
        if page := _read_index(index, name):
            found += page
            break
    return _group(found)


def check_reachable() -> None:
    """Raise InfraError where an index cannot be asked, as far as that is known without asking it."""
    for place in (*_indexes(), *_find_links()):
        folder = _folder_of(place)
        if folder and not folder.is_dir():
            raise InfraError(_no_folder(place), REMEDY)
        if folder is None and _is_offline():
            raise InfraError(OFFLINE, REMEDY)


def _is_offline() -> bool:
    return os.environ.get("UV_OFFLINE", "").lower() in {"1", "true"}


def _no_folder(place: str) -> str:
    return f"The package index cannot be reached: {place} is no folder."


def _indexes() -> list[str]:
    """Return the indexes in the order in which uv asks them."""
    value = os.environ.get
    extra = f"{value('UV_INDEX', '')} {value('UV_EXTRA_INDEX_URL', '')}".split()
    default = value("UV_DEFAULT_INDEX") or value("UV_INDEX_URL") or PYPI
    return [re.sub(r"^[\w.-]+=", "", index) for index in (*extra, default)]


def _find_links() -> list[str]:
    return [each.strip() for each in os.environ.get("UV_FIND_LINKS", "").split(",") if each.strip()]


def _folder_of(place: str) -> Path | None:
    """Return the folder that a path or a file:// address names; None for one on the network."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme in {"http", "https"} else Path(place)


def _read_index(index: str, name: str) -> Sequence[DistributionPackage]:
    """Return the files that an index has of a package; none where it does not know it."""
    if folder := _folder_of(index):
        if not folder.is_dir():
            raise InfraError(_no_folder(index), REMEDY)
        with suppress(FileNotFoundError):
            page = ProjectPage.from_html(name, (folder / name / "index.html").read_bytes())
            return list(page.packages)
        return []
    try:
        with PyPISimple(index) as client:
            return list(client.get_project_page(name, timeout=TIMEOUT).packages)
    except NoSuchProjectError:
        return []
    except (RequestException, UnsupportedContentTypeError) as error:
        raise InfraError(_unreachable(index, error), REMEDY) from None


def _read_links(place: str, name: str) -> Iterator[DistributionPackage]:
    """Yield the files of a package that a folder or a page of links holds."""
    folder = _folder_of(place)
    if folder is None:
        import httpx

        try:
            page = httpx.get(place, timeout=TIMEOUT, follow_redirects=True).raise_for_status()
        except httpx.HTTPError as error:
            raise InfraError(_unreachable(place, error), REMEDY) from None
        found = ProjectPage.from_html(name, page.content, place).packages
        yield from (each for each in found if canonicalize_name(each.project or "") == name)
        return
    if not folder.is_dir():
        raise InfraError(_no_folder(place), REMEDY)
    for path in sorted(folder.iterdir()):
        file = {"filename": path.name, "url": path.as_uri(), "hashes": {}}
        each = DistributionPackage.from_json_data(file, project_hint=name)
        if canonicalize_name(each.project or "") == name:
            yield each


def _unreachable(place: str, error: Exception) -> str:
    host = urlsplit(place).hostname or place  # the address may hold a password
    return f"The package index cannot be reached: {host} ({type(error).__name__})."


def _group(files: Sequence[DistributionPackage]) -> list[Release]:
    """Return one release a version: yanked where all its files are."""
    versions: dict[Version, list[DistributionPackage]] = {}
    for each in files:
        if each.package_type in {"wheel", "sdist"}:
            with suppress(InvalidVersion):
                versions.setdefault(Version(each.version or ""), []).append(each)
    return [_release(version, versions[version]) for version in sorted(versions)]


def _release(version: Version, files: Sequence[DistributionPackage]) -> Release:
    return Release(
        version=str(version),
        uploaded=min((each.upload_time for each in files if each.upload_time), default=None),
        is_yanked=all(each.is_yanked for each in files),
        is_pure=any(each.filename.endswith("-none-any.whl") for each in files),
    )
