-- The producer of docker/compose.yml: it makes a queue, and puts `docs` documents into it, each in a
-- transaction of its own. ../examples/worker.sql writes a row into `results` for each.
\set ON_ERROR_STOP on
select from fetchq.queue_create('example');
create table if not exists results (subject text primary key, result jsonb not null);
select format('select fetchq.doc_put(%L, %L, %L)', 'example', 'document-' || n, jsonb_build_object('n', n, 'sleep', 0.01))
from generate_series(1, :docs) n \gexec
