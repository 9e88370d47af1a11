-- The metrics for monitoring systems such as Prometheus. Not hot.

create type fetchq.metric_family as (
    family text,
    type text,
    help text
);
comment on type fetchq.metric_family is 'A row of fetchq.metric_families()';

create function fetchq.metric_families()
returns setof fetchq.metric_family
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_families_wrapper';
comment on function fetchq.metric_families() is
    'The metric families of metric_export(), with their types and help texts';

create type fetchq.metric_sample as (
    family text,
    name text,
    labels jsonb,
    value double precision
);
comment on type fetchq.metric_sample is 'A row of fetchq.metric_export()';

create function fetchq.metric_export(family text default null)
returns setof fetchq.metric_sample
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_export_wrapper';
comment on function fetchq.metric_export(text) is
    'The samples of a metric family, or of all of them, for a monitoring system; never waits for a lock';

create view fetchq.metric_samples as
select s.family, f.type, f.help, s.name, s.labels, s.value
from fetchq.metric_export() s
join fetchq.metric_families() f on f.family = s.family;
comment on view fetchq.metric_samples is
    'What a monitoring system needs to know, as samples of metric families in the sense of Prometheus';
