"""The ends of commands: exit codes, refusals in one line, and the last part of help texts.

    0    done
    1    done, and the data have a fault: the help text of the command says what
    2    asked wrongly, or it cannot be done: one line on stderr says why
    130  stopped by Ctrl-C

A traceback from a command is a bug of the command, never the answer to a user's mistake.
"""

import errno
import os
import sys
from collections.abc import Callable
from functools import wraps
from traceback import walk_tb
from typing import Final, NoReturn, ParamSpec, TypeVar

import click

from postdate.command_line.extras import install_advice

P = ParamSpec("P")
R = TypeVar("R")

EXIT_CODE_DONE: Final = 0
EXIT_CODE_WRONG: Final = 1
EXIT_CODE_REFUSED: Final = 2
EXIT_CODE_INTERRUPTED: Final = 130
"""128 and the number of SIGINT, as shells have it."""

_WRITERS: Final = frozenset({"click.utils", "rich.console"})
"""The modules by which commands write their output."""

_CODES = """\
  0    done
{wrong}\
  2    refused or impossible: stderr has the reason
  130  {interrupted}"""


def help_end(*examples: str, wrong: str | None = None, interrupted: str = "stopped by Ctrl-C") -> str:
    r"""Write the end of a help text, exit codes and examples, in paragraphs that click does not fill.

    Args:
        examples: Command lines that can be pasted.
        wrong: When the exit code is 1; None where it never is.
        interrupted: When it is 130.
    """
    codes = _CODES.format(wrong="" if wrong is None else f"  1    {wrong}\n", interrupted=interrupted)
    shown = "\n".join(f"  {example}" for example in examples)
    return f"\b\nExit codes:\n{codes}\n\n\b\nExamples:\n{shown}"


def say(text: str) -> None:
    """Write one line to stderr; line ends within the text become spaces."""
    click.echo(f"postdate: {' '.join(text.split())}", err=True)


def refuse(text: str) -> NoReturn:
    """Write in one line why a command cannot continue, and end the process with exit code 2."""
    say(text)
    sys.exit(EXIT_CODE_REFUSED)


def refusing_of(
    *kinds: type[BaseException], explain: Callable[[BaseException], str | None] = lambda _error: None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of commands that turns errors that an operator can mend into one line and an exit code.

    Args:
        kinds: Errors whose own text is enough.
        explain: Gives a better text for an error, or None; called first, for any error.
    """

    def refusing(command: Callable[P, R]) -> Callable[P, R]:
        @wraps(command)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return command(*args, **kwargs)
            except (click.ClickException, click.exceptions.Exit):
                raise
            except (KeyboardInterrupt, EOFError):
                say("interrupted: the work that was begun is not visible, and the same command goes on")
                sys.exit(EXIT_CODE_INTERRUPTED)
            except click.Abort:
                refuse("stopped: nothing was changed")
            except BrokenPipeError:
                _end_without_reader()
            except Exception as error:
                if isinstance(error, OSError):
                    end_if_output_fails(error)
                text = explain(error)
                if text is None and isinstance(error, ModuleNotFoundError):
                    text = install_advice(error.name, sys.argv[1:])
                if text is None and isinstance(error, kinds):
                    text = str(error) or type(error).__name__
                if text is None:
                    raise
                refuse(text)

        return run

    return refusing


def end_if_output_fails(error: OSError) -> None:
    """End the process with one line if the output could not be written: such an error names no file.

    Args:
        error: A failure, of the output or of anything else; of anything else, this returns.
    """
    raised_in = {frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)}
    if error.filename is None and raised_in & _WRITERS:
        say(f"cannot write the output: {error.strerror or error}")
        _end_without_reader()


def _end_without_reader() -> NoReturn:
    """End in silence: the reader has closed the pipe."""
    give_up_output()
    sys.exit(EXIT_CODE_REFUSED)


def give_up_output() -> None:
    """Let what is still to be written to stdout go nowhere: the flush at exit would fail, and with it the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explain_os_error(error: OSError) -> str:
    """Return the text of a system error with its path.

    >>> explain_os_error(FileNotFoundError(2, "No such file or directory", "/nowhere"))
    '/nowhere: No such file or directory'
    """
    if error.errno in (None, errno.EADDRINUSE, errno.EADDRNOTAVAIL) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
