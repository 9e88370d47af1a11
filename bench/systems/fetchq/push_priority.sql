\set priority random(0, 7)
select fetchq.doc_append('@queue@', '@payload@', 0, :priority);
