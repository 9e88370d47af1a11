select 'version', coalesce(library_version, 'unknown') || case when is_preloaded then ', preloaded' else ', not preloaded' end from fetchq.info();
select to_regproc('fetchq.ready_stats') is not null as known \gset
\if :known
select 'slots in shared memory', slots from fetchq.ready_stats();
\endif
