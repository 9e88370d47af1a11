-- On the server of the business data, which needs no fetchq: what its transactions want done.
create table outbox (
    id bigint generated always as identity primary key,
    queue text not null,
    subject text not null,
    payload jsonb not null default '{}',
    written_at timestamptz not null default now()
);
