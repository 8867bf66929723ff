# The node's half of command.py: the one argument of `exec sh -c`, the same on every host, read by whatever login shell
# is there. So without these comment lines it is one line, with no "!" in it (csh), and no backslash in front of a quote
# or another backslash (fish). The head says over stdin what to run, then "ping" while it lives, and "end".
# What is set before the command is called fleet_...: the command would see another value of what is exported there.
IFS= read -r fleet_spec;
case $fleet_spec in "fleet begins "*) ;; *) exit 97 ;; esac;
eval "${fleet_spec#fleet begins }";
exec 3>&2 4<&0 2>/dev/null;
say() { printf "\000%s%s\n" "$fleet_key" "$*"; };
# The pipes are the command's, too: where it made them nonblocking, a full one takes no word at once.
tell() { tries=0; until say "$*" || [ $tries = 300 ]; do sleep .1 || sleep 1; tries=$((tries + 1)); done; };
# Whoever is on the node names its processes as it likes, with line ends and all: so each stat is read as a file of its
# own, and none says which process it is of.
# known: pid:birth of what lives and is the command's, by its mark, its session or whoever started it. It is not
# forgotten: what is known may get rid of all three. No mark is seen of what is in the middle of exec: look twice.
# Parents first: a shell whose child is ended before it takes its next step.
scan() {
all=$({ grep -ls "FLEET_EXEC_ID=$fleet_mark" /proc/[0-9]*/environ; printf "%s\n" /proc/[0-9]*/stat; } |
LC_ALL=C awk -v top=$$ -v self="$self" -v leader="$session" -v known="$known" '
{ split($0, part, "/"); pid = part[3] }
/environ$/ { marked[pid] = 1; next }
{ row = ""; while ((getline line < $0) > 0) row = row line; close($0); sub(/.*[)] /, "", row);
if (split(row, f, " ") < 20 || f[1] ~ /[ZX]/) next; parent[pid] = f[2]; session[pid] = f[4]; born[pid] = f[20] }
END { for (p in parent) if ((p in marked) || (leader == top && session[p] == top)) kin[p] = 1;
n = split(known, each, " "); for (i = 1; i <= n; i++) { split(each[i], of, ":"); if (born[of[1]] == of[2]) kin[of[1]] = 1 }
own[self] = 1; do { grew = 0; for (p in parent) { if (p in own) continue; if (parent[p] in own) grew = own[p] = 1 } } while (grew);
own[top] = 1;
do { grew = 0; for (p in parent) { if (p in kin) continue; if (parent[p] in kin) { if (p in own) continue; grew = kin[p] = 1 } } } while (grew);
do { grew = 0; for (p in kin) { if (p in out) continue; if (p in parent) { q = parent[p]; if (q in kin) if (!(q in out)) continue };
grew = out[p] = 1; if (p in own) continue; if (p in parent) print p ":" born[p] } } while (grew) }
');
known= pids=; for one in $all; do known="$known $one" pids="$pids ${one%:*}"; done; [ "$pids" ];
};
# TERM, `grace` tenths of a second, KILL
finish() {
read -r self comm state parent group session rest </proc/self/stat; known=;
n=0; [ $fleet_grace = 0 ] || { scan && kill -TERM $pids; };
while [ $n -lt $fleet_grace ] && scan; do sleep .1 || sleep 1; n=$((n + 1)); done;
n=0; while { scan || scan; } && [ $n -lt 50 ]; do kill -KILL $pids; sleep .1 || sleep 1; n=$((n + 1)); done;
trap - PIPE; for one in $pids; do tell "left $one $(tr "\000\n" "  " </proc/$one/cmdline | cut -c 1-300)"; done;
tell ended;
};
# Hears the head: ends the command when it says so or is gone. Answering is all that tells it that this machine lives;
# over stdout, which no startup file can do without. A head that is gone is read of, not died of (PIPE). When the command
# has ended by itself, USR1 ends this too, unless it is ending that already. It holds the command's input open until the
# head says that all of it has come: one that breaks off must not look like one that ends.
listen() {
exec <&4 3>&- 4<&-; trap "" HUP INT PIPE QUIT TERM; read -r self rest </proc/self/stat;
watch & watch=$! ;
while read -r word rest; do case $word in
ping) say ""; kill -URG $watch ;;
hold) command exec 5>"/proc/$rest/fd/0" ;;
eof) exec 5>&- ;;
end) break ;;
esac; done;
trap "" USR1; kill -KILL $watch; [ "$word" ] || exec >/dev/null; finish;
};
# Ends the command when the head is silent: behind a cut link nobody else notices; and when our sh was killed, which
# nobody else could tell of. (exe: not a dead process's, not another user's.)
watch() {
exec >/dev/null; trap "idle=0" URG; idle=0;
while [ $idle -lt $fleet_silence ]; do sleep 1; [ -e /proc/$self/exe ] || exit; [ -e /proc/$$/exe ] || break; idle=$((idle + 1)); done;
kill -KILL $self; finish;
};
run() {
given;
case $1 in */*) [ -e "$1" ] || [ -L "$1" ] ;; *) command -v -- "$1" ;; esac >/dev/null ||
{ printf "fleet: %s: No such file or directory\n" "$1" >&2; exit 127; };
exec "$@";
};
# Its stdin is a pipe, into which another channel of the head writes, an empty line first: see Command._bring.
await_input() {
exec 5<>/proc/self/fd/0; read -r fleet_self fleet_rest </proc/self/stat; say "input $fleet_self"; read -r fleet_rest; exec 5>&-;
};
printf "\000FLEET1\n";
# where a startup file made both one, a second preamble would be output
[ /proc/self/fd/1 -ef /proc/self/fd/3 ] 2>/dev/null || printf "\000FLEET1\n" >&3;
# a signal for the whole process group must not stop us from telling how the command ended
trap : HUP INT QUIT TERM;
listen & fleet_listener=$! ; exec 4<&-;
if [ $fleet_input = 0 ]; then (run "$@") </dev/null 2>&3 3>&-; status=$?; else : | (await_input; run "$@") 2>&3 3>&-; status=$?; fi;
kill -USR1 $fleet_listener; while kill -0 $fleet_listener; do wait $fleet_listener; done;
tell "exit $status"; tell "exit $status" >&3
