-- A batch that is not full divides by zero: a queue that ran dry must not pass for a fast one.
select array_agg(subject) as subjects, count(payload) as payloads, 1 / (count(*) / @n@) as full_batch from fetchq.doc_pick('@queue@', 0, @n@, '5m') \gset
