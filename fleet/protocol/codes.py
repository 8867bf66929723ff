"""The exit codes of fleet's own, once for both halves. docs/exit-codes.md explains them."""

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
