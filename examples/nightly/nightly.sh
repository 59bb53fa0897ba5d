#!/bin/sh
# Makes the nightly report. For cron, on as many machines as you like, all at the same time:
#
#   15 2 * * *  DATABASE_URL=postgres://… /opt/shop/nightly.sh
#
# The first to come runs it, under a lock and with its writes fenced; the others exit with 75 at once (--wait 0). When the lock is lost
# in the middle, psql is ended and the script exits with 76. A machine that is frozen meanwhile ends nothing: what its psql still sends when it
# wakes up is refused, because the lock's token is in PGOPTIONS.
set -eu
cd "$(dirname "$0")"
exec fencectl lock nightly/report --wait 0 --ttl 15s -- \
	psql "$DATABASE_URL" --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --file=nightly.sql
