"""The line that installs what is missing works where Postdate was installed from a folder, as from an index."""

import json
import sys
from pathlib import Path

import pytest

from postdate.command_line.extras import install


def install_from(origin: dict[str, object] | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the command of an installation that pip has recorded so, without the Python that it begins with."""
    record = folder / "postdate-0.1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: postdate\nVersion: 0.1.0\n")
    if origin is not None:
        (record / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(sys, "path", [str(folder)])
    return install("s3").rpartition("pip ")[2]


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///src/postdate", "dir_info": {"editable": True}}, "install --editable '/src/postdate[s3]'"),
        ({"url": "file:///my%20src/postdate", "dir_info": {}}, "install '/my src/postdate[s3]'"),
        ({"url": "file:///d/postdate-0.1.0-py3-none-any.whl"}, "install '/d/postdate-0.1.0-py3-none-any.whl[s3]'"),
        (None, "install 'postdate[s3]'"),
    ],
)
def test_an_extra_comes_from_where_postdate_came_from(
    origin: dict[str, object] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install_from(origin, tmp_path, monkeypatch) == command
