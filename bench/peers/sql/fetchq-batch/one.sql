select fetchq.doc_append('jobs', '@payload@');
