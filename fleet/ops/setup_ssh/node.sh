# fleet setup-ssh on a node: a constant text for any POSIX sh, nothing but it and ssh-keygen is needed there.
# The head puts assignments before it and calls behind it, everything quoted; node.py reads what it prints.
LC_ALL=C; export LC_ALL
umask 077
unset CDPATH
LOOK=
trap '' HUP PIPE   # a head that dies leaves nothing half done
S=$HOME/.ssh

say() { printf '%s\n' "$*"; }
fail() { say "FAIL $*"; exit 0; }

begin() {
    printf '\nFLEET-SETUP-SSH\n'   # what a chatty shell startup file printed comes before this
    [ -n "$HOME" ] && [ -d "$HOME" ] || fail "there is no home directory '$HOME'"
}

# What a node that went down in the middle had begun, a private key perhaps: PID and node are in its name.
sweep() {
    for old in "$S"/.fleet-key.* "$S"/.fleet.[0-9]*; do
        [ -e "$old" ] || continue
        rest=${old##*/.fleet}; rest=${rest#-key}; rest=${rest#.}
        node=${rest#*.}
        if [ "${node%.pub}" = "$(uname -n)" ] && ! kill -0 "${rest%%.*}" 2>/dev/null; then rm -f "$old"; fi
    done
}

# -- modes: sshd with StrictModes, its default, ignores keys that others could have written; that, and no more, is taken
# away, and only in this account: where a link leads elsewhere, others have their keys there, too ------------
mode_of() { ls -ldL "$1" | sed -n 's/^.\(...\)\(...\)\(...\).*/u=\1,g=\2,o=\3/p' | sed 's/-//g; s/[st]/x&/g; y/ST/st/'; }
within() {   # PATH: whether it is in this account's home, by the folders that there really are
    folder=$(cd -P "${1%/*}" 2>/dev/null && pwd -P) && home=$(cd -P "$HOME" && pwd -P) || return 1
    case $folder/ in "$home"/*) return 0 ;; *) return 1 ;; esac
}
narrow() {   # PATH WHAT: what others may not, as in chmod; only named where $LOOK is set, so that it is on record first
    real "$1"
    { [ -e "$path" ] && within "$path"; } || return 0
    was=$(mode_of "$path")
    case $2 in
        go=) now=${was%%,*},g=,o= ;;
        *) now=$(printf %s "$was" | sed 's/\(g=[^,]*\)w/\1/; s/\(o=[^,]*\)w/\1/') ;;
    esac
    if [ -n "$LOOK" ]; then
        [ "$was" = "$now" ] || say "MODE ${1##*/} $was $now"
        return 0
    fi
    chmod "$2" "$path" 2>/dev/null
    now=$(mode_of "$path")
    if [ "$was" != "$now" ]; then say "MODE ${1##*/} $was $now"; relabel "$path"; return 0; fi
    case $(ls -ldL "$path") in ?????w*|????????w*) fail "chmod $2 $path is not permitted" ;; esac
}
widen() {   # NAME MODE-IT-HAD MODE-IT-GOT: unless somebody has set another since
    real "$S/$1"; [ "$1" != .ssh ] || path=$S
    if [ -e "$path" ] && [ "$(mode_of "$path")" = "$3" ]; then chmod "$2" "$path" && say "WIDENED $1"; fi
}
relabel() { if command -v restorecon >/dev/null 2>&1; then restorecon -F "$@" 2>/dev/null; fi; return 0; }

prepare() {   # [look]
    LOOK=$1
    if [ ! -d "$S" ]; then
        mkdir "$S" || [ -d "$S" ] || fail "cannot make $S"
        say "CREATED .ssh"
        relabel "$S"
    fi
    sweep
    narrow "$S" go-w
    narrow "$S/authorized_keys" go-w
    narrow "$S/config" go-w
    case $(ls -ldL "$HOME") in ?????w*|????????w*) say "OPENHOME $HOME" ;; esac
}

# -- the node's own key -----------------------------------------------------------------------------------
tell_key() {   # what it shows of the private half only who has it can
    say "KEY ${key##*/} $public"
    if shown=$(sha256sum <"$key" 2>/dev/null); then say "SHOWS ${shown%% *}"; fi
}
own_key() {   # find|make TYPE [OPTIONS of ssh-keygen]; find: names the one that make would make
    make=$1; type=$2; shift 2
    command -v ssh-keygen >/dev/null 2>&1 || { say "NOKEY ssh-keygen is not installed"; return; }
    for key in "$S/id_$type" "$S/id_${type}_fleet"; do
        if [ -e "$key" ]; then
            narrow "$key" go=
            if public=$(ssh-keygen -y -P '' -f "$key" </dev/null 2>/dev/null); then
                tell_key
                return
            fi   # it has a passphrase: nothing that runs by itself can use it
        elif [ ! -e "$key.pub" ]; then
            if [ "$make" = find ]; then say "MAKES ${key##*/}"; return; fi
            new=$S/.fleet-key.$$.$(uname -n)
            rm -f "$new" "$new.pub"
            if ! said=$(ssh-keygen -q -t "$type" "$@" -N '' -C "$(id -un)@$(uname -n) fleet" -f "$new" </dev/null 2>&1); then
                rm -f "$new" "$new.pub"
                say "NOKEY ssh-keygen: $said" | tr '\n' ' '; say ''
                return
            fi
            # link, unlike mv, never replaces: homes may be shared, and another node may be doing the same
            if ln "$new" "$key" 2>/dev/null || { [ ! -e "$key" ] && mv "$new" "$key"; }; then
                rm -f "$new"   # at once: a second name of a private key
                mv "$new.pub" "$key.pub"
                say "NEWKEY ${key##*/}"
            fi
            rm -f "$new" "$new.pub"
            relabel "$key" "$key.pub"
            if public=$(ssh-keygen -y -P '' -f "$key" </dev/null); then tell_key; fi
            return
        fi
    done
    say "NOKEY $S/id_$type has a passphrase and $S/id_${type}_fleet cannot be used"
}
# NAME 'TYPE BLOB': a key pair that fleet made, if it still is that one; '': that it was making when it was interrupted
drop_key() {
    key=$S/$1
    [ -e "$key" ] || return
    if [ -z "$2" ]; then
        case $(cat "$key.pub" 2>/dev/null || say ' fleet') in *" fleet") rm -f "$key" "$key.pub"; say "GONE $1" ;; esac
        return
    fi
    case $(ssh-keygen -y -P '' -f "$key" </dev/null 2>/dev/null) in
        "$2"|"$2 "*) rm -f "$key" "$key.pub"; say "GONE $1" ;;
        *) say "KEPT $1" ;;
    esac
}

# -- files ------------------------------------------------------------------------------------------------
real() {   # where a symlink leads, as readlink -f, which not every system has
    path=$1; hops=0
    while [ -L "$path" ] && [ $hops -lt 20 ]; do
        link=$(readlink "$path")
        case $link in /*) path=$link ;; *) path=${path%/*}/$link ;; esac
        hops=$((hops + 1))
    done
}
sum() { if [ -e "$1" ]; then cksum <"$1" | tr ' ' :; else say -; fi; }
show() {   # NAME: "FILE name checksum:size" and its bytes
    real "$S/$1"
    if [ -e "$path" ]; then
        [ -r "$path" ] || fail "$path cannot be read"
        say "FILE $1 $(sum "$path") $path"
        cat "$path"
        say ''
        # the same on all hosts that share a home, and hardly on two others
        if [ "$1" = authorized_keys ]; then say "HOME $(stat -Lc '%i %z' "$path" 2>/dev/null)"; fi
    else
        say "FILE $1 - $path"
    fi
}
# NAME CHECKSUM-IT-HAD CONTENT LENGTH: all or nothing; keeps mode and owner; only if nobody else was faster
put() {
    real "$S/$1"
    tmp=${path%/*}/.fleet.$$.$(uname -n)
    trap 'rm -f "$tmp"' EXIT
    # cat, unlike a shell's own printf, says why it cannot write
    if [ -e "$path" ]; then cp -p "$path" "$tmp"; fi && printf '%s' "$3" 2>/dev/null | cat >"$tmp"
    status=$?
    new=$(sum "$tmp")
    if [ $status -ne 0 ] || [ "${new#*:}" != "$4" ]; then rm -f "$tmp"; fail "cannot write $path"; fi
    now=$(sum "$path")
    if [ "$now" = "$new" ]; then
        rm -f "$tmp"
    elif [ "$now" != "$2" ]; then
        rm -f "$tmp"; fail "$path was changed by somebody else at the same moment; run it again"
    elif mv -f "$tmp" "$path"; then
        relabel "$path"
    else
        rm -f "$tmp"; fail "cannot replace $path"
    fi
    say "PUT $1 $new"
}
drop() {   # NAME CHECKSUM-IT-HAD
    if [ "$(sum "$S/$1")" = "$2" ]; then rm -f "$S/$1"; say "GONE $1"; else say "KEPT $1"; fi
}
drop_dir() { sweep; rmdir "$S" 2>/dev/null; return 0; }
