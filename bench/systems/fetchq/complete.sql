select fetchq.doc_complete('@queue@', :subject);
