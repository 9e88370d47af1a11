select fetchq.doc_append('@queue@', '@payload@');
