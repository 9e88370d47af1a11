select subject, payload from fetchq.doc_pick('@queue@' || :number, 0, 1, '5m') \gset
