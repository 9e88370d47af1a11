-- On the server of the queues: which relay moves the rows of a source, and the rows that it has put into
-- queues and not yet removed from the source.
create table outbox_relays (
    source text primary key,
    relay bigint not null
);
create table outbox_received (
    source text,
    id bigint,
    primary key (source, id)
);
