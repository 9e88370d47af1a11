-- A batch that is not full causes a division by zero, because an empty queue must not look fast.
select array_agg(subject) as subjects, count(payload) as payloads, 1 / (count(*) / @n@) as full_batch from fetchq.doc_pick('@queue@', 0, @n@, '5m') \gset
