create extension fetchq;
select fetchq.queue_create('jobs');
-- As pgmq deletes its messages: one transaction settles a batch that was handled, and leases
-- the next one. When there is none, it waits.
create procedure bench_work(qty int) language plpgsql as $$
declare
    documents fetchq.leased[];
    d fetchq.leased;
    settlements jsonb := '[]';
    ready text;
begin
    loop
        documents := array(select n from fetchq.docs_next('jobs', settlements, max_docs => qty) n);
        commit;
        if cardinality(documents) = 0 then
            call fetchq.queue_wait(array['jobs'], '1 second'::interval, ready);
            commit;
        end if;
        foreach d in array documents loop
            perform job(d.payload);
        end loop;
        settlements := (
            select coalesce(jsonb_agg(jsonb_build_object('subject', u.subject, 'lease', u.lease, 'action', 'drop')), '[]')
            from unnest(documents) u);
    end loop;
end $$;
