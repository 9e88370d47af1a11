select count(*) from fetchq.doc_append_many('@queue@', array_fill('@payload@'::jsonb, array[@n@]));
