select count(*) from fetchq.doc_put_many('@queue@', (select jsonb_agg(jsonb_build_object('subject', 'c' || :client_id || '-' || n, 'payload', '@payload@'::jsonb)) from generate_series(:base + 1, :base + @n@) n));
\set base :base + @n@
