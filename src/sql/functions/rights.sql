-- Rights on queues: granting, revoking and listing them. Not hot.

create function fetchq.queue_grant(queue text, role text, kind text, out was_granted boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_grant_wrapper';
comment on function fetchq.queue_grant(text, text, text) is
    'Makes a role a reader, producer, worker or manager of a queue';

create function fetchq.queue_revoke(queue text, role text, kind text, out was_revoked boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_revoke_wrapper';
comment on function fetchq.queue_revoke(text, text, text) is
    'Revokes what queue_grant() has granted to a role';

create type fetchq.queue_right as (
    queue varchar,
    role name,
    kind text,
    is_direct boolean
);
comment on type fetchq.queue_right is 'A row of fetchq.queue_grants()';

create function fetchq.queue_grants(queue text default null)
returns setof fetchq.queue_right
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_grants_wrapper';
comment on function fetchq.queue_grants(text) is
    'The roles that own, manage, work on, fill or read a queue, or all queues on which the caller has a right';

create function fetchq.queue_has_right(queue text, kind text default 'any', out has_right boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_has_right_wrapper';
comment on function fetchq.queue_has_right(text, text) is
    'Says whether the caller has the rights of a reader, producer, worker, manager or owner of a queue, or any right on it';

create function fetchq.data_owner_set(role text, out was_changed boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'data_owner_set_wrapper';
comment on function fetchq.data_owner_set(text) is
    'Makes a role the owner of the tables of all queues; fetchq then runs its statements as that role';

create view fetchq.metrics_live with (security_barrier) as
select queue, metric, value, updated_at from fetchq.metrics_exact m
-- A client may have written a metric of something that is not a queue.
where case when m.queue ~ '^[A-Za-z_][A-Za-z0-9_]{0,39}$' then fetchq.queue_has_right(m.queue, 'any')
    else pg_has_role((select c.relowner from pg_class c where c.oid = 'fetchq.queues'::regclass), 'usage') end;
comment on view fetchq.metrics_live is
    'Every counter of the queues on which the caller has a right, exact at this moment';
