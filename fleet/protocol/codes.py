"""Defines fleet's own exit codes (docs/exit-codes.md) and the names of signals, for both halves."""

from signal import SIGUSR1, SIGUSR2

EXIT_OK = 0
EXIT_HOST_FAILED = 1
EXIT_USAGE = 2
EXIT_INVENTORY = 121
EXIT_CONNECT = 122
EXIT_PREFLIGHT = 123
EXIT_TIMEOUT = 124
EXIT_INTERNAL = 125
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141  # 128 + SIGPIPE

FOR_RANKS = (SIGUSR1, SIGUSR2)  # they end nothing: what the ranks run decides what they mean
# Linux's numbers, whatever system the head has
NAMES = (
    *("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM"),
    *("TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF"),
    *("WINCH", "IO", "PWR", "SYS"),
)


def name_of(signal: int) -> str:
    """Returns the name of a signal: "SIGUSR1". A real-time signal has only a number."""
    return "SIG" + NAMES[signal - 1] if 0 < signal <= len(NAMES) else "signal " + str(signal)
