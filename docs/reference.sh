#!/usr/bin/env bash
# Writes docs/reference.md from the catalog of a running server (libpq variables, as
# set by: eval "$(scripts/cluster.sh dev env)") with the extension in it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
new=$(mktemp)
trap 'rm -f "$new"' EXIT

# rows REGEX — a table of the functions whose names match.
rows() {
  echo
  echo '| function | result | what it does |'
  echo '|---|---|---|'
  psql -XqAt -v ON_ERROR_STOP=1 -v names="$1" <<'SQL'
with args as (
    select p.oid, a.n, a.mode, concat_ws(' ', nullif(a.name, ''), format_type(a.type, null)) as decl, a.name
    from pg_proc p,
        unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes::text[], p.proargnames)
            with ordinality as a (type, mode, name, n)
    where p.pronamespace = 'fetchq'::regnamespace
)
select format('| `%s(%s)` | %s | %s%s |', p.proname,
    (select string_agg(decl, ', ' order by n) from args a where a.oid = p.oid and coalesce(mode, 'i') in ('i', 'b')),
    case when p.proretset then 'rows of ' else '' end ||
        coalesce((select string_agg('`' || decl || '`', ', ' order by n) from args a where a.oid = p.oid and mode in ('o', 't', 'b')),
                 '`' || format_type(p.prorettype, null) || '`'),
    coalesce(obj_description(p.oid, 'pg_proc'), '?'),
    '. Defaults: ' || (select string_agg(format('%s `%s`', a.name, d.value), ', ' order by n)
        from args a, pg_get_function_arg_default(a.oid, a.n::int) as d (value)
        where a.oid = p.oid and coalesce(mode, 'i') in ('i', 'b') and d.value is not null))
from pg_proc p
where p.pronamespace = 'fetchq'::regnamespace and p.proname ~ :'names'
    and p.prorettype <> 'trigger'::regtype
order by p.oid
SQL
}

{
  cat <<'TEXT'
# Reference

All functions of the schema `fetchq`, as the catalog has them. This file is written by
`docs/reference.sh`; change the comments in `src/sql/functions.sql`, not this page.

- Every argument can be given by name: `fetchq.doc_pick(queue => 'mail', max_docs => 10)`.
- NULL is an error (22004) for every argument except the payloads of the settling functions (NULL
  leaves the payload as it is), `lease` (NULL: whoever holds it), `delay`, `details`, `ref_id`, those whose default is NULL, what a queue is set to
  (NULL: no such thing), and the payloads of `doc_push_many` (NULL stands for `{}`);
  the same goes for single elements of the arrays of payloads.
- A queue name is `[A-Za-z_][A-Za-z0-9_]{0,39}` and folds to lower case. A subject has at most 50 characters.
- Durations and ages are PostgreSQL intervals: `'5m'`, `'1 hour'`.
- What happens with an unknown queue, or a document that is not active: see `fetchq.strict` in [settings.md](settings.md).
- What each error means: [operations.md](operations.md#errors).

## Queues
TEXT
  rows '^queue_'
  printf '\n## Documents\n'
  rows '^(doc_|docs_|log_error)'
  printf '\n## Schedules\n\nHow they tick: [schedules.md](schedules.md). The times of a schedule (`starts_at`, `ends_at`) may be NULL.\n'
  rows '^schedule_'
  printf '\n## Metrics\n\nWhat the metrics mean: [counters.md](counters.md).\n'
  rows '^metric_'
  printf '\n## Maintenance\n\nWho has to call what: [operations.md](operations.md).\n'
  rows '^mnt'
  printf '\n## Ready floors\n\nWhat the columns mean: [operations.md](operations.md#ready-floors).\n'
  rows '^ready_'
  printf '\n## Installation and tools\n'
  rows '^(status|worker_|work$|lease_|maintenance_|info|init|upgrade_|destroy_|trace$|utils_)'
  cat <<'TEXT'

## Triggers

`fetchq.trigger_notify_as_json()` sends a changed row as JSON on the channel `fetchq_on_change`. It is
attached to `fetchq.queues`; attach it `for each row` to tables of your own to have their changes announced too.
`fetchq.trigger_docs_notify()`, `fetchq.trigger_docs_ready()`, `fetchq.trigger_docs_cap()`, `fetchq.trigger_docs_order()`, `fetchq.trigger_queue_changed()` and `fetchq.trigger_jobs_restore()` are internal.

## Notifications

- `fetchq_queue_create`, `fetchq_queue_drop`: a queue was created or dropped; the payload is its name.
- `fetchq_on_change`: a row of `fetchq.queues` changed; the payload is JSON with `timestamp`, `operation`, `schema`,
  `table`, `new_data`, `old_data`. From 8000 bytes on both data fields are null and `truncated` is true.
- `fetchq__<queue>__pln`, `…__pnd`, `…__act`, `…__cpl`, `…__kll`: a document entered that state, once notifications
  are enabled for the queue. The payload is its subject, or `true` where the worker tells of many ([worker.md](worker.md#notifications)).
TEXT
} >"$new"

missing=$(psql -XqAt -v ON_ERROR_STOP=1 -c "select count(*) from pg_proc where pronamespace = 'fetchq'::regnamespace and prorettype <> 'trigger'::regtype")
written=$(grep -c '^| `.*(' "$new")
((written == missing)) || { echo "error: $written functions written, the catalog has $missing" >&2; exit 1; }
cat "$new" >"$here/reference.md"
echo "$here/reference.md: $written functions"
