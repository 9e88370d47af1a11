/** Every statement of the package. Parameters and columns are texts, whatever the driver. */
const TEXT = '::pg_catalog.text';
const JSONB = '::pg_catalog.text::pg_catalog.jsonb';
const INTERVAL = '::pg_catalog.text::pg_catalog.interval';
const INT = '::pg_catalog.text::pg_catalog.int4';
const TEXTS = '::pg_catalog.text::pg_catalog.text[]';
/** Seconds since 1970: a time as text would depend on settings of the session. */
const epoch = (time: string): string => `pg_catalog.date_part('epoch', ${time})`;
/** How long the lease lasts, in seconds, from the start of the statement by the clock of the server. */
const LEFT = `(${epoch('lease_ends')} operator(pg_catalog.-) ${epoch('pg_catalog.now()')})`;

export const INFO = `select extension_version${TEXT} as extension, library_version${TEXT} as library,
  is_preloaded${TEXT} as preloaded from fetchq.info()`;

export const PUT = `select subject${TEXT} as subject, action${TEXT} as action
  from fetchq.doc_put_many(null, $1${JSONB}, $2${TEXT})`;

export const CANCEL = `select was_cancelled${TEXT} as cancelled, status${TEXT} as status
  from fetchq.doc_cancel($1${TEXT}, $2${TEXT})`;

export const GET = `select pg_catalog.to_jsonb(d)${TEXT} as doc from fetchq.doc_get($1${TEXT}, $2${TEXT}) as d`;

export const AWAIT = `call fetchq.doc_await($1${TEXT}, $2${TEXT}, timeout => $3${INTERVAL})`;

export const QUEUE_CREATE = `select was_created${TEXT} as created from fetchq.queue_create($1${TEXT})`;

export const QUEUE_CONFIGURE = `select fetchq.queue_configure($1${TEXT}, $2${JSONB})${TEXT} as settings`;

export const QUEUE_SETTINGS = `select fetchq.queue_settings($1${TEXT})${TEXT} as settings`;

export const SCHEDULES_SYNC = `select name${TEXT} as name, action${TEXT} as action
  from fetchq.schedules_sync($1${TEXT}, $2${JSONB})`;

/** The numbers are one text, which is read when they are asked for: a column costs as much as the lease of a document. */
export const NEXT = `select subject${TEXT} as subject, payload${TEXT} as payload, headers${TEXT} as headers,
  lease${TEXT} as lease, last_error${TEXT} as last_error, progress${TEXT} as progress,
  pg_catalog.concat_ws(' ', ${LEFT}, priority, attempts, max_attempts, ${epoch('created_at')}, ${epoch('due_at')}) as numbers
  from fetchq.docs_next($1${TEXT}, $2${JSONB}, $3${INT}, $4${INTERVAL}, version => $5${INT}, worker => $6${TEXT},
    on_lost => 'error')`;

export const SETTLE = `select subject${TEXT} as subject, outcome${TEXT} as outcome, status${TEXT} as status
  from fetchq.docs_settle($1${TEXT}, $2${JSONB}, on_lost => $3${TEXT})`;

export const EXTEND = `select queue${TEXT} as queue, subject${TEXT} as subject, outcome${TEXT} as outcome,
  stop${TEXT} as stop, ${LEFT}${TEXT} as left_s
  from fetchq.docs_extend(null, $1${JSONB}, $2${INTERVAL})`;

export const WAIT = `call fetchq.worker_wait(queues => $1${TEXTS}, worker => $2${TEXT}, timeout => $3${INTERVAL},
  leases => $4${JSONB}, version => $5${INT}, mark => $6${TEXT}::pg_catalog.int8[])`;

/** The leases of a worker that are not older than a call of it. */
export const LEASES = `select subject${TEXT} as subject, lease${TEXT} as lease
  from fetchq.lease_list($1${TEXT}) as l
  where l.worker operator(pg_catalog.=) $2${TEXT} and l.version operator(pg_catalog.=) $3${INT}
    and l.picked_at operator(pg_catalog.>=) (pg_catalog.clock_timestamp() operator(pg_catalog.-) $4${INTERVAL})`;

export const UNFINISHED = `select count${TEXT} as count from (
  select pg_catalog.count(*) as count from pg_catalog.unnest($1${TEXTS}) as q (name),
    lateral (
      select 1 from fetchq.docs_list(q.name, '{"status": "active"}', max_docs => 1)
      union all
      select 1 from fetchq.docs_list(q.name, '{"status": "pending"}', max_docs => 1000) as p
      where p.due_at operator(pg_catalog.<=) pg_catalog.clock_timestamp()
    ) as d
  ) as c`;
