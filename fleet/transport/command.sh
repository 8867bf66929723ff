# The node's half of command.py: the one argument of `exec sh -c`, the same on every host, read by whatever login shell
# is there. So without these comment lines it is one line, with no "!" in it (csh), and no backslash in front of a quote
# or another backslash (fish). The head says over stdin what to run, then "ping" while it lives, and "end".
IFS= read -r spec;
case $spec in "fleet begins "*) ;; *) exit 97 ;; esac;
eval "${spec#fleet begins }";
exec 3>&2 4<&0 2>/dev/null;
say() { printf "\000%s%s\n" "$key" "$*"; };
# known: pid:birth of what lives and is the command's, by its mark, its session or whoever started it. It is not
# forgotten: what is known may get rid of all three.
scan() {
all=$({ grep -ls "FLEET_EXEC_ID=$mark" /proc/[0-9]*/environ; cat /proc/[0-9]*/stat; } |
awk -v top=$$ -v self="$self" -v known="$known" '
/^.proc/ { split($0, part, "/"); marked[part[3]] = 1; next }
{ row = row $0; if (row ~ /[)] [A-Za-z] [0-9]+ [0-9]/) { pid = row + 0; sub(/.*[)] /, "", row); split(row, f, " "); row = "";
if (f[1] ~ /[ZX]/) next; parent[pid] = f[2]; session[pid] = f[4]; born[pid] = f[20] } }
END { for (p in parent) if ((p in marked) || (session[top] == top && session[p] == top)) kin[p] = 1;
n = split(known, each, " "); for (i = 1; i <= n; i++) { split(each[i], of, ":"); if (born[of[1]] == of[2]) kin[of[1]] = 1 }
own[self] = 1; do { grew = 0; for (p in parent) { if (p in own) continue; if (parent[p] in own) grew = own[p] = 1 } } while (grew);
own[top] = 1;
do { grew = 0; for (p in parent) { if (p in kin) continue; if (parent[p] in kin) { if (p in own) continue; grew = kin[p] = 1 } } } while (grew);
for (p in kin) { if (p in own) continue; if (p in parent) print p ":" born[p] } }
');
known= pids=; for one in $all; do known="$known $one" pids="$pids ${one%:*}"; done; [ "$pids" ];
};
# TERM, `grace` tenths of a second, KILL
finish() {
read -r self rest </proc/self/stat;
n=0; [ $grace = 0 ] || { scan && kill -TERM $pids; };
while [ $n -lt $grace ] && scan; do sleep .1 || sleep 1; n=$((n + 1)); done;
n=0; while scan && [ $n -lt 50 ]; do kill -KILL $pids; sleep .1 || sleep 1; n=$((n + 1)); done;
for one in $pids; do say "left $one $(tr "\000\n" "  " </proc/$one/cmdline | cut -c 1-300)"; done;
say ended;
};
# Hears the head: ends the command when it says so or is gone. Answering is all that tells it that this machine lives.
listen() {
exec <&4 >/dev/null 4<&-; trap "" HUP INT QUIT TERM; read -r self rest </proc/self/stat;
watch & watch=$! ;
while read -r word; do case $word in
ping) say "" >&3; kill -URG $watch ;;
end) break ;;
esac; done;
kill -KILL $watch; kill -WINCH $$; exec >&3; finish;
};
# Ends the command when the head is silent: behind a cut link nobody else notices.
watch() {
exec 3>&-; trap "idle=0" URG; idle=0;
while [ $idle -lt $silence ]; do sleep 1; kill -0 $$ || exit; idle=$((idle + 1)); done;
kill -KILL $self; finish;
};
run() {
given;
case $1 in */*) [ -e "$1" ] || [ -L "$1" ] ;; *) command -v -- "$1" ;; esac >/dev/null ||
{ printf "fleet: %s: No such file or directory\n" "$1" >&2; exit 127; };
exec "$@";
};
printf "\000FLEET1\n"; printf "\000FLEET1\n" >&3;
# a signal for the whole process group must not stop us from telling how the command ended
trap : HUP INT QUIT TERM; trap "ending=1" WINCH;
listen & listener=$! ; exec 4<&-;
(run "$@") </dev/null 2>&3 3>&-; status=$?;
if [ "$ending" ]; then while kill -0 $listener; do wait $listener; done; else kill -KILL $listener; fi;
say "exit $status"; say "exit $status" >&3
