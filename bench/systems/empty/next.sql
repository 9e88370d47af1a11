select 's000000001' as subject, '@payload@'::jsonb as payload, '[]' as settlements, pg_logical_emit_message(true, :settlements, repeat('x', 100)) as lsn \gset
