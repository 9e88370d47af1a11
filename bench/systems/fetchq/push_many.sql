select fetchq.doc_push_many('@queue@', array(select 'c' || :client_id || '-' || n from generate_series(:base + 1, :base + @n@) n), array_fill('@payload@'::jsonb, array[@n@]));
\set base :base + @n@
