# shellcheck shell=bash disable=SC2034
# Shared by the fake programs: sets $TASK ("ps:0"), $PORT_FILE, $SUMMARY, and $DONE, a file that shows that a
# worker of this job (told apart by its overrides) is done; keeps the command line and TF_CONFIG in $STATE.
[[ $TF_CONFIG =~ \"type\":\"([a-z]+)\",\"index\":([0-9]+) ]]
TASK=${BASH_REMATCH[1]}:${BASH_REMATCH[2]}
job=
for arg in "$@"; do
  case $arg in
    --port_file=*) PORT_FILE=${arg#*=} ;;
    --summary=*) SUMMARY=${arg#*=} ;;
    --*) ;;
    *) job+="$arg " ;;
  esac
done
DONE=$STATE/done.$(cksum <<< "$job" | cut -d" " -f1)
printf '%s\n' "$@" "$TF_CONFIG" > "$STATE/$TASK.args"
# The number of earlier starts of the task; each start leaves $TASK.$START.args and .pid, too.
START=0
while [ -e "$STATE/$TASK.$START.pid" ]; do START=$((START + 1)); done
cp "$STATE/$TASK.args" "$STATE/$TASK.$START.args"
for name in "$TASK.$START" "$TASK"; do
  echo $$ > "$STATE/$name.pid.tmp" && mv "$STATE/$name.pid.tmp" "$STATE/$name.pid"
done
# Waits for ever, like a task in the middle of a job. In small steps, so that a signal's trap runs soon.
forever() { while :; do sleep 0.02; done; }
# Waits until other tasks have begun.
await() { local t; for t in "$@"; do until [ -e "$STATE/$t.pid" ]; do sleep 0.02; done; done; }
