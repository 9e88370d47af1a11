select count(*) from fetchq.doc_append_many('jobs', array_fill('@payload@'::jsonb, array[@n@]));
