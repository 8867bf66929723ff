"""The `fleet` script, and `python -m fleet`."""

import gc
import os
import signal


def interrupted(*_: object) -> None:
    """Ends the program on Ctrl-C before a verb begins. Python would show the traceback of an import."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def main() -> None:
    gc.set_threshold(50_000)  # an import leaves no cycles to collect; searching for them would take a tenth of its time
    ignored = signal.getsignal(signal.SIGINT) != signal.default_int_handler
    if not ignored:
        signal.signal(signal.SIGINT, interrupted)
    from fleet.cli.main import main as command_line

    if not ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line()


if __name__ == "__main__":
    main()
