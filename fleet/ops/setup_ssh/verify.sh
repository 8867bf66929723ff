# fleet setup-ssh: plain ssh from this machine to each target. Constant; the head puts assignments before it:
# LANES connections at once, LIMIT seconds each, CONFIG a config file or empty, TARGETS separated by spaces.
LC_ALL=C; export LC_ALL
printf '\nFLEET-SETUP-SSH\n'

set -- -n -T -x -o BatchMode=yes -o ConnectTimeout="$LIMIT" -o ServerAliveInterval=5 -o ServerAliveCountMax=3 \
    -o ControlMaster=no -o ControlPath=none -o ClearAllForwardings=yes -o LogLevel=ERROR
if [ -n "$CONFIG" ]; then set -- -F "$CONFIG" "$@"; fi
# the default post-quantum exchange costs 60 ms of CPU a connection; it stays allowed, behind a cheap one
case $(ssh -Q kex 2>/dev/null) in *761*) set -- "$@" -o KexAlgorithms=^curve25519-sha256 ;; esac
# --foreground: in our process group, so that what ends us ends its ssh too (busybox knows no such option, or group)
for limited in 'timeout --foreground' timeout ''; do
    if [ -z "$limited" ]; then set -- ssh "$@"
    elif $limited 60 true 2>/dev/null; then set -- $limited $((LIMIT + 20)) ssh "$@"; break; fi
done

lane() {   # NUMBER SSH...: every LANES-th target, beginning with that one
    mine=$1; shift
    i=0; silent=0
    for target in $TARGETS; do
        i=$((i + 1))
        if [ $((i % LANES)) -ne "$mine" ]; then continue; fi
        if [ $silent -ge 3 ]; then
            printf 'PAIR %s 255 not tried: three others timed out\n' "$target"
            continue
        fi
        tries=0
        while :; do
            said=$("$@" -- "$target" true 2>&1 </dev/null)
            code=$?
            case $code:$said in
                # dropped before a word was said: sshd had too many newcomers (MaxStartups), ask again later
                255:*exchange_identification*) tries=$((tries + 1)); if [ $tries -lt 5 ]; then sleep $tries; continue; fi ;;
            esac
            break
        done
        case $code:$said in 255:*'timed out'*|124:*) silent=$((silent + 1)) ;; *) silent=0 ;; esac
        if [ $code -eq 0 ]; then said=; fi
        printf 'PAIR %s %s %s\n' "$target" "$code" "$(printf %s "$said" | tr '\n' ' ' | cut -c1-300)"
    done
}

if ! command -v ssh >/dev/null 2>&1; then echo 'FAIL ssh is not installed'; exit 0; fi
n=0
while [ $n -lt "$LANES" ]; do lane $n "$@" & n=$((n + 1)); done
wait
echo END
