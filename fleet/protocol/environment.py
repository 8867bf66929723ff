"""Defines the environment of a host's training interpreter, as one text for sh. Head and node start programs in it, and
the node uses it to find the interpreter. `python` of the inventory is resolved only here.

`python` is one of: a path, in which ~ is the node's and which may be relative to the workdir; a name on the PATH; ""
for python3. The folder of an interpreter comes first on PATH, if it is named by its path or belongs to an environment.
A virtual environment's link to its python is not followed, because its target is outside of the environment.
"""

# fleet_enter PYTHON WORKDIR: sets fleet_python to its path, or empty if there is none. It works under set -eu, too.
_ENTER = r"""
fleet_expand() {
fleet_path=$1; fleet_user=${1%%/*}
case $fleet_user in
"~") fleet_path=$HOME${1#"~"} ;;
"~"*[!A-Za-z0-9._-]*) ;;
"~"*) eval "fleet_path=$fleet_user"; fleet_path=$fleet_path${1#"$fleet_user"} ;;
esac
case $fleet_path in /*) ;; *) fleet_path=$2/$fleet_path ;; esac
}
fleet_enter() {
case $1 in
*/*) fleet_expand "$2" "$HOME"; fleet_expand "$1" "$fleet_path"; fleet_python=$fleet_path ;;
"") fleet_python=$(command -v python3 || command -v python || :) ;;
*) fleet_python=$(command -v -- "$1" || :) ;;
esac
case $fleet_python in /*) ;; *) fleet_python= ;; esac
if [ ! -f "$fleet_python" ] || [ ! -x "$fleet_python" ]; then fleet_python=; return 0; fi
fleet_bin=${fleet_python%/*}
if [ ! -f "$fleet_bin/../pyvenv.cfg" ] && [ ! -d "$fleet_bin/../conda-meta" ]; then
fleet_path=$(readlink -f "$fleet_python" 2>/dev/null || :); fleet_path=${fleet_path%/*}
if [ -d "$fleet_path/../conda-meta" ]; then fleet_bin=$fleet_path; fi
fi
fleet_root=${fleet_bin%/*}
if [ -f "$fleet_root/pyvenv.cfg" ]; then
VIRTUAL_ENV=$fleet_root; export VIRTUAL_ENV
elif [ -d "$fleet_root/conda-meta" ]; then
CONDA_PREFIX=$fleet_root; CONDA_DEFAULT_ENV=$fleet_root
case $fleet_root in */envs/*) CONDA_DEFAULT_ENV=${fleet_root##*/} ;; esac
if [ -d "$fleet_root/condabin" ]; then CONDA_DEFAULT_ENV=base; fi
export CONDA_PREFIX CONDA_DEFAULT_ENV
else
case $1 in */*) ;; *) return 0 ;; esac
fi
case ${PATH-}: in "$fleet_bin":*) ;; *) PATH=$fleet_bin${PATH:+:$PATH}; export PATH ;; esac
}
"""
_BEFORE = 'case $1 in */*) fleet_enter "$1" "$2" ;; esac\n'
_BACK = 'if [ "${PWD-}" != "$fleet_cwd" ]; then builtin cd -- "$fleet_cwd"; fi\n'
_AFTER = '\nfleet_enter "$1" "$2"\n'
_NEEDED = r"""fleet_die() { printf "fleet: %s: %s\n" "$1" "$2" >&2; exit 127; }
if [ ! "$fleet_python" ]; then fleet_die "${1:-python3}" "no such interpreter"; fi
case $3 in */*) ;; *) command -v -- "$3" >/dev/null || fleet_die "$3" "No such file or directory" ;; esac
"""
SET = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
# for /bin/sh: prints the path of PYTHON and the values of SET, each with a final NUL, empty if there is none
PRINT_SETTINGS = _ENTER + _AFTER + 'printf "%s\\0" "$fleet_python"' + "".join(' "${' + name + '-}"' for name in SET)


def activating(line: str, last: str) -> str:
    """Returns a text for bash: a user's `activate` line, and then `last`. The line already finds an interpreter that is
    named by its path."""
    return _ENTER + _BEFORE + "fleet_cwd=$PWD\n" + line + "\n" + last


def running(activate: "str | None", needed: bool = False) -> "list[str]":
    """Returns the argv that runs PYTHON, WORKDIR and an argv there, after `activate`. What the line adds to PATH comes
    after the interpreter's own folder, and it cannot change the working folder. needed: without an interpreter, or
    without such a program, the exit code is 127."""
    last = _AFTER + (_NEEDED if needed else "") + 'shift 2\nexec "$@"'
    return (
        ["bash", "-c", activating(activate, _BACK + last), "bash"]
        if activate
        else ["/bin/sh", "-c", _ENTER + last, "sh"]
    )
