-- The client of a worker makes the JSON itself; pgbench cannot.
select subject, payload, '[{"subject": "' || subject || '", "lease": ' || lease || ', "action": "drop"}]' as settlements from fetchq.docs_next('@queue@', :settlements, 1) \gset
