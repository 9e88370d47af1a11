create extension if not exists pgq;
select 'version', pgq.version();
