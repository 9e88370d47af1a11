select fetchq.doc_push('@queue@', '@key@', 0, 0, to_timestamp(@at@), '{"key": "@key@"}');
