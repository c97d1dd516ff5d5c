"""The entry point of `postdate`, without imports that can be missing or slow; also the file that `spark-submit` takes.

The commands are in `program`. They need extras of the package; where an extra is missing, one line names it. While the
commands are being imported, Ctrl-C ends the process at once and in silence: a KeyboardInterrupt within an import would
print the traceback of a library.
"""

import signal
import sys

EXIT_CODE_REFUSED = 2
EXIT_CODE_INTERRUPTED = 130


def main() -> None:
    """Run the command that the process's arguments name, and end the process with its exit code."""
    # A shell starts a background job with Ctrl-C ignored; such a job goes on ignoring it.
    heeds_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from postdate.command_line.extras import install_advice

    try:
        from postdate.command_line.program import postdate
    except ModuleNotFoundError as error:
        # A core install has no click, and a version.
        if sys.argv[1:] == ["--version"]:
            from postdate import __version__

            sys.stdout.write(f"postdate, version {__version__}\n")
            return
        advice = install_advice(error.name, sys.argv[1:])
        if advice is None:
            raise
        sys.stderr.write(f"postdate: {advice}\n")
        sys.exit(EXIT_CODE_REFUSED)
    if heeds_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        postdate(prog_name="postdate")
    except KeyboardInterrupt:
        sys.stderr.write("postdate: interrupted\n")
        sys.exit(EXIT_CODE_INTERRUPTED)
    except OSError as error:
        # A help text is written outside of the commands.
        from postdate.command_line.endings import end_if_output_fails

        end_if_output_fails(error)
        raise


if __name__ == "__main__":
    main()
