import pytest

from bisector.errors import BisectorError
from bisector.model import Release
from bisector.versions import between, nearest

RELEASES = [
    Release("1.0"),
    Release("1.1rc1"),
    Release("1.1", is_yanked=True),
    Release("1.2"),
    Release("1.9"),
    Release("1.10"),
    Release("1.10.post1"),
    Release("2.0rc1"),
    Release("2.0"),
]


def test_the_ends_count_and_versions_are_no_text() -> None:
    assert between(RELEASES, "1.0", "1.10") == ["1.0", "1.1", "1.2", "1.9", "1.10"]


def test_the_given_order_is_of_no_weight() -> None:
    mixed = RELEASES[::-1]
    assert between(mixed, "1.9", "2.0") == ["1.9", "1.10", "1.10.post1", "2.0"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("1.0", "2.0", ["1.0", "1.1", "1.2", "1.9", "1.10", "1.10.post1", "2.0"]),
        ("1.1rc1", "1.9", ["1.1rc1", "1.1", "1.2", "1.9"]),
        ("1.9", "2.0rc1", ["1.9", "1.10", "1.10.post1", "2.0rc1"]),
    ],
)
def test_previews_count_only_where_an_end_is_one_and_what_was_yanked_always(
    old: str, new: str, expected: list[str]
) -> None:
    assert between(RELEASES, old, new) == expected


def test_ends_the_wrong_way_round_are_said() -> None:
    with pytest.raises(BisectorError, match=r"2\.0 is newer than 1\.0\.\n.*1\.0 2\.0"):
        between(RELEASES, "2.0", "1.0")


def test_an_end_that_is_no_release_names_the_nearest() -> None:
    with pytest.raises(BisectorError, match=r"1\.3 is no release.*\n.*1\.2 or 1\.9"):
        between(RELEASES, "1.3", "2.0")
    with pytest.raises(BisectorError, match="'new' is no version"):
        between(RELEASES, "1.0", "new")


def test_a_development_version_lies_between_two_releases_and_says_so() -> None:
    found = nearest("1.9.0.dev0+g12ab", RELEASES)
    assert (found.before, found.after) == ("1.2", "1.9")
    assert found.sentence == (
        "1.9.0.dev0+g12ab is no release; its nearest are 1.2, the last before it and 1.9, the first after it."
    )


def test_the_nearest_are_never_yanked_nor_previews() -> None:
    assert nearest("1.1.0.dev1", RELEASES).before == "1.0"
    assert nearest("1.1.0.dev1", RELEASES).after == "1.2"
    assert nearest("3.0.dev0", RELEASES).after == ""


def test_a_release_and_its_local_build_are_the_release() -> None:
    assert nearest("1.9", RELEASES).sentence == ""
    assert nearest("1.9+cpu", RELEASES).before == "1.9"
