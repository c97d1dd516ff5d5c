"""The README's first program, as it stands, with a real client against a real service."""

import re
import subprocess
import sys
import time
from pathlib import Path

from postdate.demo.process import free_ports
from tests.helpers.pages import ROOT

DELAY_S = 3


def test_the_first_message_of_the_readme_arrives_quietly_and_three_seconds_later(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().split("## Run it")[1]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    port, web_port = free_ports(2)
    settings = {"dataDirectory": tmp_path / "data", "brokerServicePort": port, "webServicePort": web_port}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with subprocess.Popen(
        [sys.executable, "-m", "postdate", "serve", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == "Postdate is ready.\n"
        started_s = time.monotonic()
        program = found[1].replace(":6650", f":{port}")
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        took_s = time.monotonic() - started_s
        service.terminate()
        service.communicate(timeout=60)

    assert (ran.stdout, ran.stderr) == ("water the plants\n", "")
    assert took_s >= DELAY_S
