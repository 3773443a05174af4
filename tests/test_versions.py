from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from kerncheck.versions import flavour, flavour_cuda, holds, minor, same_release

HOPPER = SpecifierSet(">=3.4.0,<3.7.1")


@pytest.mark.parametrize(
    ("wanted", "version", "answer"),
    [
        (HOPPER, "3.3.1", False),
        (HOPPER, "3.4.0", True),
        (HOPPER, "3.7.0", True),
        (HOPPER, "3.7.1", False),
        (HOPPER, "3.7.1+git1f8dc1d", False),
        (HOPPER, "3.4.0.dev20250701", None),
        (HOPPER, "not a version", None),
        (SpecifierSet("<=2.7.4"), "2.7.4.post1", False),
        (SpecifierSet("<=2.7.4.post1"), "2.7.4.post1", True),
        (SpecifierSet(">=2.7.1,<=2.7.4"), "2.8.0.post2", False),
        (SpecifierSet(">=2.3"), "2.3.0a0+40ec155e58.nv24.03", None),
        (SpecifierSet(">=2.2"), "2.3.0a0+40ec155e58.nv24.03", True),
        (SpecifierSet("==2.6.0"), "2.6.0+cu126", True),
        (SpecifierSet("~=3.8.0"), "3.9.0", False),
    ],
)
def test_ranges_mind_local_tags_post_releases_and_builds_between_releases(wanted, version, answer):
    assert holds(wanted, version) is answer


@pytest.mark.parametrize(
    ("version", "tag", "cuda"),
    [
        ("2.2.0+cpu", "cpu", ""),
        ("2.2.0", "", ""),
        ("2.2.0+cu121", "cu121", "12.1"),
        ("2.3.0a0+40ec155e58.nv24.03", "", ""),
        ("2.7.0+rocm6.3", "rocm6.3", ""),
        ("2.10.0.dev20250924+cu128", "cu128", "12.8"),
        ("1.7.0+cu92", "cu92", "9.2"),
        ("nonsense", "", ""),
    ],
)
def test_flavours_of_torch(version, tag, cuda):
    assert flavour(version) == tag
    assert flavour_cuda(tag) == cuda


def test_releases_are_the_same_apart_from_the_local_tag():
    assert same_release("2.9.1", "2.9.1+cu128") is True
    assert same_release("2.9.1", "2.9.1.post1") is False
    assert same_release("2.9.1", "?") is None


def test_minor_of_what_is_no_version():
    assert minor("2.14.1+cu130") == (2, 14)
    assert minor("?") is None
