-- Functions and procedures that the histories call beside those of fetchq.

-- A time as a number that sorts as the time does.
create function us(t timestamptz) returns bigint language sql immutable as $$
    select case
        when isfinite(t) then (extract(epoch from t) * 1000000)::bigint
        when t > '2000-01-01' then 9223372036854775807
        else -9223372036854775807 end
$$;

create sequence subjects;

-- Gives up to three documents that were rejected before, and a new one, the same time.
create function together(v int, p int, at timestamptz, how int) returns void language plpgsql as $$
declare
    s text;
begin
    for s in select d.subject from fetchq.doc_pick('q', v, 2, '1h') d loop
        perform fetchq.doc_reject('q', s, 'why', '{}', delay => '0 s');
    end loop;
    for s in select d.subject from fetchq.doc_pick('q', v, 3, '1h') d loop
        case how % 4
            when 0 then
                perform fetchq.doc_snooze('q', s, at);
            when 1 then
                perform fetchq.doc_reject('q', s, 'why', '{}', delay => '0 s');
                perform fetchq.doc_put('q', s, '{}', at, v, p, 'debounce');
            when 2 then
                perform fetchq.doc_reject('q', s, 'why', '{}', delay => '0 s');
                perform fetchq.doc_put_many('q', jsonb_build_array(
                    jsonb_build_object('subject', s, 'version', v, 'priority', p, 'due_at', at),
                    jsonb_build_object('subject', 't' || nextval('subjects'), 'version', v, 'priority', p, 'due_at', at)),
                    'replace');
            else
                perform fetchq.doc_snooze('q', s, at);
                perform fetchq.doc_put('q', s, '{}', at, v, p, 'merge');
        end case;
        how := how + 1;
    end loop;
    perform fetchq.doc_push('q', 't' || nextval('subjects'), v, p, at, '{}');
end $$;

-- A user's trigger that gives most documents one of a few ordering keys.
create function keyed() returns trigger language plpgsql as $$
begin
    new.ordering_key := nullif('k' || abs(hashtext(new.subject)) % 5, 'k0');
    return new;
end $$;

-- Makes a queue in which `n` documents of a key can be active at a time. NULL: any number. 0: an ordered
-- queue, in which it is one, also while it waits for a retry.
create function places(n int) returns void language plpgsql as $$
begin
    if not exists (select from pg_trigger where tgname = 'keyed') then
        create trigger keyed before insert on fetchq_data.q__docs
            for each row execute function keyed();
    end if;
    perform fetchq.queue_configure('q',
        jsonb_build_object('max_active_per_key', nullif(n, 0), 'ordered', coalesce(n = 0, false)));
end $$;

-- What is wrong with the places of the keys: a document that is hidden although a place is free, one
-- that may be picked beyond the places, a list that names other documents than those that may run.
-- In an ordered queue, one that is planned may have kept its place, and one that was picked may keep it
-- beside others when maintenance could not lock its key.
-- `is_strict`: no plain SQL has made a document active.
create function wrong_places(is_strict bool) returns setof text language plpgsql as $$
begin
    return query with places as (
        select case when q.is_ordered then 1 else q.max_active_per_key end as n, q.is_ordered
        from fetchq.queues q where q.name = 'q'),
    docs as (
        select d.subject, d.ordering_key as key, d.status, coalesce(d.lock_upgrade = 'infinity', false) as is_blocked,
            p.is_ordered and (d.attempts > 0 or d.picked_at is not null) as may_keep
        from places p, fetchq_data.q__docs d where d.ordering_key is not null and (d.status + 0 in (1, 2)
            or p.is_ordered and d.status + 0 = 0 and exists (
                select from fetchq.ordering_keys o
                where o.key = d.ordering_key and d.subject::text = any (o.unblocked)))),
    keys as (
        select d.key, count(*) filter (where not is_blocked) as open, count(*) filter (where is_blocked) as blocked,
            count(*) filter (where status = 1 and not is_blocked and not may_keep) as open_pending,
            array_agg(d.subject::text order by d.subject) filter (where not is_blocked) as subjects
        from docs d group by d.key)
    select format('key %s: %s open (%s pending), %s blocked, %s places, of %s given to %s', key, d.open, d.open_pending,
        d.blocked, p.n, d.subjects, k.subjects)
    from places p, keys d
    full join (
        select o.key, array(
            select s from unnest(o.unblocked) s order by s) as subjects
        from fetchq.ordering_keys o) k using (key)
    where p.n is null and (d.blocked > 0 or k.key is not null)
        or p.n is not null and (
            d.key is null or d.subjects is distinct from k.subjects
            or d.blocked > 0 and d.open < p.n
            or is_strict and d.open_pending > 0 and d.open > p.n);
end $$;

-- n pushes, each in its own transaction.
create procedure pushes(n int, v int, p int, at timestamptz) language plpgsql as $$
begin
    for i in 1..n loop
        perform fetchq.doc_push('q', 'p' || nextval('subjects'), v, p, at, '{}');
        commit;
    end loop;
end $$;

-- n picks, each in its own transaction; `how` decides what happens to the documents.
create procedure picks(n int, v int, lim int, lease interval, how text) language plpgsql as $$
declare
    picked text[];
    s text;
begin
    for i in 1..n loop
        select array_agg(p.subject) into picked from fetchq.doc_pick('q', v, lim, lease) p;
        if how = 'undo' then
            rollback;
            continue;
        end if;
        commit;
        if how in ('leave', 'poll') or picked is null then
            continue;
        end if;
        foreach s in array picked loop
            case how
                when 'drop' then perform fetchq.doc_drop('q', s);
                when 'complete' then perform fetchq.doc_complete('q', s);
                when 'kill' then perform fetchq.doc_kill('q', s);
                when 'reject' then perform fetchq.doc_reject('q', s, 'why', '{}');
                when 'again' then perform fetchq.doc_reschedule('q', s, '2020-01-02');
                when 'now' then perform fetchq.doc_reschedule('q', s, now());
                when 'retry' then perform fetchq.doc_reject('q', s, 'why', '{}', delay => '0 s');
                when 'snooze' then perform fetchq.doc_snooze('q', s, now());
                when 'soon' then perform fetchq.doc_snooze('q', s, soon(40));
            end case;
        end loop;
        commit;
    end loop;
end $$;

-- One of several workers that run at the same time; its actions depend on the seed.
create procedure churn(seed float8, n int, versions int[], priorities int[]) language plpgsql as $$
declare
    picked text[];
    s text;
    v int;
    p int;
begin
    perform setseed(seed);
    for i in 1..n loop
        v := versions[1 + floor(random() * array_length(versions, 1))::int];
        p := priorities[1 + floor(random() * array_length(priorities, 1))::int];
        case floor(random() * 10)::int
            when 0, 1, 2 then
                perform fetchq.doc_push('q', 'c' || nextval('subjects'), v, p, now(), '{}');
            when 3 then
                perform fetchq.doc_push('q', 'c' || nextval('subjects'), v, p, '2020-01-03', '{}');
            when 4 then
                insert into fetchq_data.q__docs (subject, version, priority, status, next_iteration)
                select 'c' || nextval('subjects'), v, p, 1, now() - k * interval '1 ms' from generate_series(1, 3) k;
            else
                picked := array(select subject from fetchq.doc_pick('q', v, 1 + floor(random() * 3)::int, '1h'));
                if random() < 0.15 then
                    rollback;
                    continue;
                end if;
                if random() < 0.5 then
                    commit;
                end if;
                foreach s in array picked loop
                    case floor(random() * 8)::int
                        when 0 then perform fetchq.doc_complete('q', s);
                        when 1 then perform fetchq.doc_reschedule('q', s, '2020-01-02');
                        when 2 then perform fetchq.doc_reschedule('q', s, now());
                        when 3 then null;
                        else perform fetchq.doc_drop('q', s);
                    end case;
                end loop;
        end case;
        if random() < 0.1 then
            rollback;
        else
            commit;
        end if;
    end loop;
end $$;

-- A user's trigger that changes the stored row.
create function bump() returns trigger language plpgsql as $$
begin
    new.priority := case when new.priority < 2147483647 then new.priority + 1 else 0 end;
    return new;
end $$;

-- The next multiple of a number of milliseconds: the same moment for several statements.
create function soon(ms int) returns timestamptz language sql volatile as $$
    select to_timestamp(ceil(extract(epoch from clock_timestamp()) * 1000 / ms) * ms / 1000)
$$;
