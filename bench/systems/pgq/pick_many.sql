-- clients: 1
select pgq.next_batch('@queue@', 'bench') as batch \gset
-- A batch that is not full causes a division by zero, because an empty queue must not look fast.
select count(ev_data) as payloads, 1 / (count(*) / @n@) as full_batch from pgq.get_batch_events(:batch) \gset
