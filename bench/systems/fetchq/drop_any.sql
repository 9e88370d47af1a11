select fetchq.doc_drop('@queue@' || :number, :subject);
