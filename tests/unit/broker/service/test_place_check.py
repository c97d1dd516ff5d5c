"""A prefix is refused where messages could be lost in it, and where it is not this cluster's."""

import json
import logging
from pathlib import Path

import pytest

from managed_ledger.bundle_settings import SETTINGS, encode_settings
from managed_ledger.bundles import even_ranges
from managed_ledger.objects.object_store import FolderObjects, ObjectStore
from postdate.broker.errors import ServiceStartError
from postdate.broker.service.place_check import check_conditions, check_rules, settled_bundles


class IgnoresNoneMatch(FolderObjects):
    """A storage that writes over what is there."""

    def create(self, name: str, data: bytes) -> bool:
        self.delete(name)
        return super().create(name, data)


class ConfirmsWithoutWriting(FolderObjects):
    """One that answers as it should, and writes nothing."""

    def create(self, name: str, data: bytes) -> bool:
        return data == b"first"


class IgnoresMatch(FolderObjects):
    """One that does not look at tags."""

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        found = self.read(name)
        return super().replace(name, data, None if tag is None or found is None else found[1])


class RefusesMatch(FolderObjects):
    """One that takes no tag for the right one."""

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        return super().replace(name, data, tag) if tag is None else None


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        (IgnoresNoneMatch, "If-None-Match"),
        (ConfirmsWithoutWriting, "If-None-Match"),
        (IgnoresMatch, "If-Match"),
        (RefusesMatch, "If-Match"),
    ],
)
def test_a_storage_that_ignores_a_condition_is_refused(kind: type[FolderObjects], header: str, tmp_path: Path) -> None:
    objects = kind(tmp_path)
    with pytest.raises(ServiceStartError, match=rf"does not keep the condition {header} of a write"):
        check_conditions(objects)
    assert list(objects.names("")) == []


def test_the_probe_of_a_good_storage_leaves_nothing(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    check_conditions(objects)
    assert list(objects.names("")) == []


def test_a_rule_that_takes_objects_away_is_refused_and_an_untold_one_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ServiceStartError, match=r"The lifecycle rule old, older of the bucket deletes .* of s3://b/p "):
        check_rules("s3://b/p", ["old", "older"])
    check_rules("s3://b/p", [])
    assert caplog.records == []
    check_rules("s3://b/p", None)
    assert [one.levelno for one in caplog.records] == [logging.WARNING]
    assert "s3:GetLifecycleConfiguration" in caplog.text


def test_an_empty_prefix_gets_its_bundles_once(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "of-a-start-that-was-killed").touch()

    assert settled_bundles(objects, "c", None) == even_ranges(4)
    assert settled_bundles(objects, "c", None) == even_ranges(4)
    assert settled_bundles(FolderObjects(tmp_path), "c", 4) == even_ranges(4)


def test_another_number_than_there_is_is_refused(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    assert settled_bundles(objects, "c", 2) == even_ranges(2)

    with pytest.raises(ServiceStartError, match="has 2 bundles, and numberOfBundles is 8"):
        settled_bundles(objects, "c", 8)


def test_of_two_starts_at_once_both_have_the_bundles_of_the_first(tmp_path: Path) -> None:
    """The other one writes between the look and the write of this one, and goes on to its members."""

    class SlowToAnswer(FolderObjects):
        def names(self, prefix: str) -> list[str]:  # type: ignore[override]
            first.create(SETTINGS, encode_settings(even_ranges(2), "c"))
            first.create("members/a", b"1")
            return ["members/a"]

    class Slower(FolderObjects):
        def create(self, name: str, data: bytes) -> bool:
            first.create(SETTINGS, encode_settings(even_ranges(2), "c"))
            return super().create(name, data)

    for kind in (SlowToAnswer, Slower):
        folder = tmp_path / kind.__name__
        first: ObjectStore = FolderObjects(folder)
        assert settled_bundles(kind(folder), "c", None) == even_ranges(2)


def test_a_prefix_of_others_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    other_format = json.dumps({"format": "postdate bundles 9"}).encode()
    cases = (
        ("photo.jpg", b"x", "other files, such as photo.jpg: name a prefix that is empty"),
        ("manifest", b"x", "other files, such as manifest"),
        ("bundle/0x00000000_0xffffffff/log/1", b"x", "or restore bundles.json if it was deleted"),
        (SETTINGS, encode_settings(even_ranges(2), "other"), "belongs to the cluster 'other', and clusterName is 'c'"),
        (SETTINGS, other_format, "has the format 'postdate bundles 9', and this version reads"),
        (SETTINGS, b"x", "is damaged, or not Postdate's"),
    )
    for number, (name, content, said) in enumerate(cases):
        folder = tmp_path / str(number)
        objects = FolderObjects(folder)
        assert objects.create(name, content)
        with pytest.raises(ServiceStartError, match=said):
            settled_bundles(objects, "c", None)
        assert list(objects.names("")) == [name]
        assert (folder / name).read_bytes() == content
