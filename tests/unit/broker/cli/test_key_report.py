"""`postdate keys` against an address where another program answers."""

from click.testing import CliRunner

from postdate.command_line.program import postdate as main
from tests.helpers.storages.canned_s3 import CannedAnswer, canned_s3


def test_an_answer_of_another_program_is_told_in_one_line() -> None:
    with canned_s3(lambda _: CannedAnswer(200, b"<h1>Welcome</h1>")) as other_program:
        url = f"http://127.0.0.1:{other_program.port}"
        told = CliRunner().invoke(main, ["keys", "orders", "billing", "k", "--url", url])

    assert told.exit_code == 2
    assert told.output == f"postdate: what answers at {url} is no service of Postdate; see --url\n"
