"""Of our own: reads its stdin, as a script does that asks whether to overwrite, and what a pipe of it is like."""

import sys

print("stdin:", repr(sys.stdin.read()), sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())
try:
    input("Overwrite output_dir? [y/N] ")
except EOFError:
    print("no answer")
    raise SystemExit(4) from None
