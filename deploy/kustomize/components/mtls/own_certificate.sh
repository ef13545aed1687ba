#!/bin/sh
# Runs beside a task, in a container of its own, and gives it its certificate and key, now and whenever they change. This
# container sees the keys of all tasks of its role; the task sees only its own.
#
#   WEIR_ROLE=worker own_certificate.sh FROM TO
#
# FROM/worker-N.pem and FROM/worker-N.key become TO/current/tls.crt and TO/current/tls.key, both at once. N is
# JOB_COMPLETION_INDEX in a pod of an Indexed Job, and the end of POD_NAME in other pods; WEIR_FIRST_RANK, if it is set, is
# added: workers of a TFJob come after its chief, which is worker 0. It looks every WEIR_EVERY_SECONDS, 5 if that is not set.
set -eu
from=$1 to=$2
index=${JOB_COMPLETION_INDEX:-${POD_NAME##*-}}
[ -z "${WEIR_FIRST_RANK:-}" ] || index=$((index + WEIR_FIRST_RANK))
task=$WEIR_ROLE-$index
every_seconds=${WEIR_EVERY_SECONDS:-5}
trap 'exit 0' TERM
# Tasks refuse a key that others may read.
umask 077
while :; do
  for file in "$task.pem" "$task.key"; do
    [ -r "$from/$file" ] && continue
    echo "own_certificate: there is no $file that can be read in $from; put it into the Secret (docs/deploy.md#tls)" >&2
    exit 78
  done
  if ! cmp -s "$from/$task.pem" "$to/current/tls.crt" || ! cmp -s "$from/$task.key" "$to/current/tls.key"; then
    taken=$(mktemp -d "$to/taken.XXXXXX")
    cp "$from/$task.pem" "$taken/tls.crt"
    cp "$from/$task.key" "$taken/tls.key"
    ln -sfn "${taken##*/}" "$to/next"
    mv -T "$to/next" "$to/current"
    for old in "$to"/taken.*; do
      [ "$old" = "$taken" ] || rm -rf "$old"
    done
    echo "own_certificate: took the certificate and the key of $task"
  fi
  sleep "$every_seconds" &
  wait $!
done
