create extension fetchq;
select fetchq.queue_create('jobs');
-- As a consumer of PgQ: a batch is removed and handled in one transaction, without leases.
create procedure bench_work(qty int) language plpgsql as $$
declare
    documents fetchq.popped[];
    d fetchq.popped;
    ready text;
begin
    loop
        documents := array(select n from fetchq.doc_pop('jobs', 0, qty) n);
        foreach d in array documents loop
            perform job(d.payload);
        end loop;
        commit;
        if cardinality(documents) = 0 then
            call fetchq.queue_wait(array['jobs'], '1 second'::interval, ready);
            commit;
        end if;
    end loop;
end $$;
