create extension fetchq;
select fetchq.queue_create('jobs');
-- The same kind of loop as that of pgmq: one transaction settles a batch that was handled, and leases
-- the next one. When there is none, it looks again after 0.1 seconds, because a procedure cannot call
-- `queue_wait`.
create procedure bench_work(qty int) language plpgsql as $$
declare
    documents fetchq.leased[];
    d fetchq.leased;
    settlements jsonb := '[]';
begin
    loop
        documents := array(select n from fetchq.docs_next('jobs', settlements, max_docs => qty) n);
        commit;
        if cardinality(documents) = 0 then
            perform pg_sleep(0.1);
            commit;
        end if;
        foreach d in array documents loop
            perform job(d.payload);
        end loop;
        settlements := (
            select coalesce(jsonb_agg(jsonb_build_object('subject', u.subject, 'lease', u.lease, 'action', 'complete')), '[]')
            from unnest(documents) u);
    end loop;
end $$;
