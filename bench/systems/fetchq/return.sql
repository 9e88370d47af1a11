select fetchq.doc_reschedule('@queue@', :subject, now());
