select fetchq.doc_drop('@queue@', :subject);
