select count(*) from fetchq.doc_drop_many('@queue@', :subjects::text[]);
