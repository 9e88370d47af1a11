select 's000000001' as subject, '@payload@'::jsonb as payload, pg_logical_emit_message(true, 'bench', repeat('x', 100)) as lsn \gset
