\ir ../../vendor/pgmq.sql
select pgmq.create('jobs');
-- The same kind of loop as `fetchq.work`: a message is read, and after a commit it is handled and
-- deleted in one transaction. With a greater qty a whole batch is.
create procedure bench_work(qty int) language plpgsql as $$
declare
    messages pgmq.message_record[];
    m pgmq.message_record;
begin
    loop
        messages := array(select r from pgmq.read_with_poll('jobs', 300, qty) r);
        commit;
        foreach m in array messages loop
            perform job(m.message);
        end loop;
        if qty = 1 and cardinality(messages) = 1 then
            perform pgmq.delete('jobs', messages[1].msg_id);
        elsif cardinality(messages) > 0 then
            perform pgmq.delete('jobs', array(select u.msg_id from unnest(messages) u));
        end if;
        commit;
    end loop;
end $$;
