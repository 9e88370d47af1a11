select to_regproc('fetchq.ready_stats') is not null as known \gset
\if :known
select 'floor_misses', floor_misses from fetchq.ready_stats();
\endif
