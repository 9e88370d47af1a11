select subject, payload from fetchq.doc_pick('@queue@', 0, 1, '5m');
