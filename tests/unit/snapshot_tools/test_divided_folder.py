"""The tools on a data folder with several bundles: all of them, the one that is named, or an error that names them."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from managed_ledger.bundle_settings import BUNDLES
from managed_ledger.bundles import bundle_of, even_ranges
from managed_ledger.errors import BundlesError
from postdate.command_line.program import postdate
from postdate.index.bundle_choice import bundle_data, chosen_bundles, one_bundle
from postdate.index.log_folder import log_folder_of
from tests.helpers.command_data import ORDERS, REMINDERS, make_folders

RANGES = even_ranges(4)
HOMES = [bundle_of(name.topic, RANGES) for name in (ORDERS, REMINDERS)]
SEVERAL = f"say --bundle RANGE. There are {', '.join(map(str, RANGES))}"


def run(*words: str) -> Result:
    return CliRunner().invoke(postdate, [*words], catch_exceptions=False)


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folders")
    make_folders(root)
    done = run("bundles", "split", str(root / "data"), "--bundles", "4", "--yes")
    assert done.exit_code == 0, done.output
    assert "4 snapshots of the delayed index came along" in done.stdout
    assert f"The log of before is in {root / 'data' / 'bundles.old'}" in done.stdout
    return root / "data"


@pytest.fixture
def data(divided: Path, tmp_path: Path) -> Path:
    shutil.copytree(divided, tmp_path / "data")
    return tmp_path / "data"


def test_a_check_goes_over_all_bundles(data: Path) -> None:
    found = json.loads(run("check", "--data", str(data), "--second-look", "0", "--json").stdout)

    assert found["is_whole"]
    assert list(found["bundles"]) == list(map(str, RANGES))
    assert sum(one["index"]["snapshots"] for one in found["bundles"].values()) == 4
    assert sum(one["log"]["kept_entries"] for one in found["bundles"].values()) > 300
    text = run("check", "--data", str(data), "--second-look", "0").stdout
    assert [f"Bundle {one}:" in text for one in RANGES] == [True] * 4
    table = max((data / BUNDLES / str(HOMES[0]) / "ledgers").glob("*.sst"), key=lambda one: one.stat().st_size)
    table.write_bytes(table.read_bytes()[:-100])

    broken = run("check", "--data", str(data), "--second-look", "0")

    assert broken.exit_code == 1
    assert f"`postdate ledger repair {data / BUNDLES / str(HOMES[0])} --yes`" in broken.stdout
    assert run("check", "--data", str(data), "--bundle", str(HOMES[1]), "--second-look", "0").exit_code == 0
    assert run("ledger", "repair", str(data), "--bundle", str(HOMES[0]), "--yes").exit_code == 0


def test_a_tool_for_one_bundle_takes_its_range_or_a_topic_or_names_them(data: Path) -> None:
    several = run("snapshots", "list", "--data", str(data))
    assert (several.exit_code, SEVERAL in several.stderr) == (2, True)
    of_topic = run("snapshots", "list", "--data", str(data), "--topic", "orders", "--json")
    of_range = run("snapshots", "list", "--data", str(data), "--bundle", str(HOMES[0]), "--json")
    assert of_topic.exit_code == of_range.exit_code == 0
    assert ORDERS.topic in of_topic.stdout
    for words in (
        ("ledger", "export", str(data), str(data.parent / "export")),
        ("ledger", "repair", str(data), "--yes"),
        ("pipeline", "rebuild", str(data)),
        ("pipeline", "merge", str(data), "--buckets", "5"),
        ("pipeline", "forecast", str(data)),
    ):
        refused = run(*words)
        assert (refused.exit_code, SEVERAL in refused.stderr) == (2, True), words
    done = run("ledger", "export", "--topic", "orders", str(data), str(data.parent / "export"))
    assert done.exit_code == 0, done.stderr


def test_a_subscription_is_looked_for_in_all_bundles(data: Path) -> None:
    words = ("check", "--data", str(data), "--second-look", "0", "--subscription")

    assert run(*words, "billing").exit_code == 0
    refused = run(*words, "nobody")
    assert (refused.exit_code, "There is no subscription nobody" in refused.stderr) == (2, True)


def test_the_bundle_that_is_meant(data: Path, tmp_path: Path) -> None:
    assert list(chosen_bundles(data, None)) == list(RANGES)
    assert one_bundle(data, None, ["orders"]) == data / BUNDLES / str(HOMES[0])
    assert one_bundle(data, str(RANGES[2])) == data / BUNDLES / str(RANGES[2])
    # A folder with one, or none at all, is itself.
    assert bundle_data(str(tmp_path), None) == str(tmp_path)
    assert bundle_data("s3://bucket/export", None) == "s3://bucket/export"
    with pytest.raises(BundlesError, match="several bundles"):
        log_folder_of(str(data))
    with pytest.raises(BundlesError, match="has no bundle west"):
        one_bundle(data, "west")
    with pytest.raises(BundlesError, match="is for data folders"):
        bundle_data("s3://bucket/export", str(RANGES[0]))
