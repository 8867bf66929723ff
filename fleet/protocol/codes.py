"""The exit codes of fleet's own (docs/exit-codes.md), and signals, once for both halves."""

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

FOR_RANKS = (SIGUSR1, SIGUSR2)  # they end nothing: what they mean is up to what the ranks run
# Linux's, whatever the head runs
NAMES = (
    *("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM"),
    *("TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF"),
    *("WINCH", "IO", "PWR", "SYS"),
)


def name_of(signal: int) -> str:
    """Returns "SIGUSR1"; a real-time one has no name but its number."""
    return "SIG" + NAMES[signal - 1] if 0 < signal <= len(NAMES) else "signal " + str(signal)
