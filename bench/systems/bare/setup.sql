create schema if not exists bare;
create table bare.@queue@ (
    id bigint generated always as identity primary key,
    next_iteration timestamptz not null default now(),
    status int not null default 1,
    attempts int not null default 0,
    payload jsonb
) with (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.2
);
create index on bare.@queue@ (next_iteration, id) where status = 1;
