-- A worker in SQL: picks documents, calls a handler for each, and settles them. Each document is
-- processed in a transaction of its own, which runs the handler, settles the document and leases the
-- next one. Where there is no next one yet, or the handler took long, one more transaction leases it.
-- Where leasing the next one fails, the document is processed once more and settled alone, because its
-- handler has nothing to do with that error. The next lease is then a transaction of its own, whose
-- error ends the procedure.
create procedure fetchq.work(
    queue text, handler regproc, max_docs int default null, idle_timeout interval default null,
    duration interval default null, version int default 0,
    inout processed int default null, inout failed int default null
)
language plpgsql as $work$
-- A procedure that commits cannot set a search_path, so everything is named in full. IN, NULLIF and
-- IS DISTINCT FROM are not used, because they search operators by name.
declare
    handler_call pg_catalog.text;
    takes_document boolean;
    result_type pg_catalog.text;
    worker pg_catalog.text;
    idle_since pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    wait interval;
    ready pg_catalog.text;
    doc fetchq.leased;
    -- The document that was leased with the settling of the previous one.
    following fetchq.leased;
    -- The settlement and the next lease have been tried in one call, which has not returned.
    is_leasing boolean;
    -- The next lease has failed, so documents are settled without one until it succeeds.
    settles_alone boolean := false;
    answer pg_catalog.jsonb;
    at pg_catalog.timestamptz;
    state pg_catalog.text;
    message pg_catalog.text;
    detail pg_catalog.text;
    context pg_catalog.text;
    hint pg_catalog.text;
    is_unreturned boolean;
    is_stopped boolean := false;
begin
    processed := 0;
    failed := 0;
    if queue is null or handler is null or version is null then
        raise exception 'queue, handler and version of fetchq.work() must not be null'
            using errcode = 'null_value_not_allowed', hint = 'call fetchq.work(''my_queue'', ''my_handler'')';
    end if;
    if max_docs operator(pg_catalog.<) 0 then
        raise exception '"max_docs" must not be negative, got %', max_docs
            using errcode = 'invalid_parameter_value', hint = 'Pass 0 or more.';
    end if;
    if idle_timeout operator(pg_catalog.<) '0'::interval then
        raise exception '"idle_timeout" must be a finite interval that is not negative'
            using errcode = 'invalid_parameter_value', hint = 'Pass an interval such as ''5m'' or ''1 hour''.';
    end if;
    select pg_catalog.format('select %I.%I(%s)', n.nspname, p.proname,
            case when p.pronargs operator(pg_catalog.=) 2 then '$1, $2' else '$2' end),
        p.pronargs operator(pg_catalog.=) 2,
        p.prorettype::pg_catalog.regtype::pg_catalog.text
    into handler_call, takes_document, result_type
    from pg_catalog.pg_proc p
    join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) p.pronamespace
    where p.oid operator(pg_catalog.=) handler::pg_catalog.oid
        and p.prokind operator(pg_catalog.=) 'f' and not p.proretset
        -- Arguments (jsonb) or (text, jsonb); result void, jsonb or timestamptz.
        and p.proargtypes::pg_catalog.text operator(pg_catalog.=) any ('{3802,25 3802}'::pg_catalog.text[])
        and p.prorettype operator(pg_catalog.=) any ('{2278,3802,1184}'::pg_catalog.oid[]);
    if handler_call is null then
        raise exception '%() cannot handle documents', handler
            using errcode = 'undefined_function',
                hint = 'A handler is a function of (payload jsonb) or of (queue text, document jsonb) that returns void, timestamptz or jsonb.';
    end if;
    if not pg_catalog.has_function_privilege(handler::pg_catalog.oid, 'execute') then
        raise exception 'permission denied for function %', handler using errcode = 'insufficient_privilege';
    end if;

    -- Fails in a transaction block and in a function. PL/pgSQL itself cannot tell. From here on requests
    -- to stop are meant for this call.
    call fetchq.work_check();
    -- Fails when there is no such queue.
    call fetchq.queue_wait(array[queue], '0'::interval, ready, version);
    -- Each transaction is READ COMMITTED, whatever the default of the session is. While the handler
    -- runs, maintenance extends the lease, and a transaction that keeps an older snapshot could
    -- then no longer settle the document. The level must be set before a statement takes a
    -- snapshot.
    commit;
    set transaction isolation level read committed;
    loop
        exit when (processed operator(pg_catalog.+) failed) operator(pg_catalog.>=) max_docs;
        worker := pg_catalog.current_setting('fetchq.worker', true);
        if worker is null or worker operator(pg_catalog.=) '' then
            worker := pg_catalog.format('%s/%s', pg_catalog.current_setting('application_name'), pg_catalog.pg_backend_pid());
        end if;
        worker := pg_catalog."left"(worker, 200);
        doc := following;
        following := null;
        if doc.lease is null then
            exit when fetchq.worker_stop_requested(queue, worker, null);
            -- The lease lasts as long as this call.
            select * into doc from fetchq.doc_lease(queue, 1, duration, version, binding => 'call');
            -- The commit makes the lease visible, and keeps it when the work of the handler is undone.
            commit;
            set transaction isolation level read committed;
            settles_alone := false;
        end if;
        if doc.lease is null then
            wait := '1 second';
            if idle_timeout is not null then
                wait := least(wait, idle_timeout operator(pg_catalog.-) (pg_catalog.clock_timestamp() operator(pg_catalog.-) idle_since));
                exit when wait operator(pg_catalog.<=) '0'::interval;
            end if;
            -- This wait holds neither a snapshot nor a lock. It lasts a second at most, so that a
            -- stop request is noticed.
            call fetchq.queue_wait(array[queue], wait, ready, version);
            commit;
            set transaction isolation level read committed;
            continue;
        end if;

        state := null;
        answer := null;
        at := null;
        is_leasing := false;
        begin
            if result_type operator(pg_catalog.=) 'jsonb' then
                execute handler_call into answer
                    using queue, case when takes_document then pg_catalog.to_jsonb(doc) else doc.payload end;
            elsif result_type operator(pg_catalog.=) 'void' then
                execute handler_call
                    using queue, case when takes_document then pg_catalog.to_jsonb(doc) else doc.payload end;
            else
                execute handler_call into at
                    using queue, case when takes_document then pg_catalog.to_jsonb(doc) else doc.payload end;
            end if;
            if at is not null then
                answer := pg_catalog.jsonb_build_object('action', 'reschedule', 'due_at', at);
            elsif answer is null then
                answer := '{}';
            elsif pg_catalog.jsonb_typeof(answer) operator(pg_catalog.<>) 'object' then
                raise exception 'the answer of the handler is not a JSON object: %', answer
                    using errcode = 'invalid_parameter_value', hint = 'Return NULL, or an object such as {"action": "complete"}.';
            elsif answer operator(pg_catalog.?|) '{subject,lease}'::pg_catalog.text[] then
                raise exception 'the answer of the handler has a subject or a lease, which are those of its document'
                    using errcode = 'invalid_parameter_value', hint = 'Leave out both keys.';
            end if;
            answer := answer operator(pg_catalog.||) pg_catalog.jsonb_build_object('subject', doc.subject, 'lease', doc.lease,
                'action', coalesce(answer operator(pg_catalog.->>) 'action', 'complete'));
            -- Deferred constraints fail here, where the error can be caught, and not at the commit. From
            -- here on none is deferred, so those of the settling and of the next lease fail in theirs.
            set constraints all immediate;
            is_stopped := fetchq.worker_stop_requested(queue, worker, null);
            -- After a long handler a commit more costs little. To process the document again, because
            -- the next one cannot be leased, would cost much.
            if is_stopped or settles_alone or (processed operator(pg_catalog.+) failed operator(pg_catalog.+) 1) operator(pg_catalog.>=) max_docs
                or (pg_catalog.clock_timestamp() operator(pg_catalog.-) pg_catalog.now()) operator(pg_catalog.>) '1 second'::interval
            then
                perform from fetchq.docs_settle(queue, pg_catalog.jsonb_build_array(answer), 'error');
            else
                is_leasing := true;
                select * into following from fetchq.docs_next(queue, pg_catalog.jsonb_build_array(answer), 1, duration, version,
                    binding => 'call', on_lost => 'error');
                is_leasing := false;
            end if;
            if answer operator(pg_catalog.->>) 'action' operator(pg_catalog.=) 'reject' then
                failed := failed operator(pg_catalog.+) 1;
            else
                processed := processed operator(pg_catalog.+) 1;
            end if;
        exception
            when query_canceled or assert_failure or others then
                get stacked diagnostics state = returned_sqlstate, message = message_text,
                    detail = pg_exception_detail, context = pg_exception_context;
                -- Its lease was undone.
                following := null;
                is_stopped := false;
        end;

        if is_leasing and state operator(pg_catalog.<>) '57014' then
            -- Either the document cannot be settled, or the next one cannot be leased. Settling it alone
            -- tells, and is undone, because what the handler has written is undone as well.
            begin
                perform from fetchq.docs_settle(queue, pg_catalog.jsonb_build_array(answer), 'error');
                settles_alone := true;
                raise exception 'undo the settling';
            exception
                when query_canceled or assert_failure or others then
                    if sqlstate operator(pg_catalog.=) '57014' then
                        state := sqlstate;
                        message := sqlerrm;
                    end if;
            end;
            if settles_alone and state operator(pg_catalog.<>) '57014' then
                commit;
                set transaction isolation level read committed;
                following := doc;
                continue;
            end if;
        end if;

        if state operator(pg_catalog.<>) '57014' then
            failed := failed operator(pg_catalog.+) 1;
            begin
                perform fetchq.doc_reject(queue, doc.subject, pg_catalog."left"(message, 2000),
                    pg_catalog.jsonb_build_object('sqlstate', state, 'message', message, 'detail', detail, 'context', context),
                    lease => doc.lease);
                set constraints all immediate;
                state := null;
            exception
                when query_canceled or assert_failure or others then
                    get stacked diagnostics state = returned_sqlstate, message = message_text, hint = pg_exception_hint;
            end;
        end if;

        if state is not null then
            -- The statement was cancelled, or the document could not be rejected. The session
            -- continues, and so would the lease: return the document. That fails with
            -- object_not_in_prerequisite_state when the lease was lost, which only this attempt
            -- can tell.
            rollback;
            set transaction isolation level read committed;
            is_unreturned := false;
            -- The server signals a cancel to the process and to its group. The second signal may arrive
            -- when the first one has been answered.
            for tries in reverse 2 .. 0 loop
                begin
                    perform fetchq.doc_snooze(queue, doc.subject,
                        pg_catalog.now() operator(pg_catalog.+) case when state operator(pg_catalog.=) '57014' then '0' else '1 minute' end::interval,
                        lease => doc.lease);
                    set constraints all immediate;
                    if state operator(pg_catalog.<>) '57014' then
                        raise warning 'document "%" of queue "%" could not be rejected: %', doc.subject, queue, message
                            using errcode = state, detail = 'The document was returned, and is due again in a minute.',
                                hint = case when hint operator(pg_catalog.=) '' then 'Remove the cause. Until then the document is picked again and again.' else hint end;
                    end if;
                    exit;
                exception
                    when object_not_in_prerequisite_state then
                        exit;
                    when query_canceled or assert_failure or others then
                        continue when sqlstate operator(pg_catalog.=) '57014' and tries operator(pg_catalog.>) 0;
                        is_unreturned := state operator(pg_catalog.<>) '57014';
                        get stacked diagnostics hint = pg_exception_hint;
                        -- When the queue has moved to another server, the lease has moved with it.
                        if sqlstate operator(pg_catalog.<>) '3D000' then
                            hint := 'It is returned after this call.';
                        end if;
                        raise warning 'document "%" of queue "%" could not be returned: %', doc.subject, queue, sqlerrm
                            using errcode = sqlstate, hint = hint;
                end;
            end loop;
            commit;
            set transaction isolation level read committed;
            -- Raise the error again, as if it had not been caught.
            if state operator(pg_catalog.=) '57014' then
                raise exception '%', message using errcode = 'query_canceled';
            elsif is_unreturned then
                raise exception '%', message
                    using errcode = state, hint = 'The document could not be returned. ' operator(pg_catalog.||) hint;
            end if;
        end if;
        commit;
        set transaction isolation level read committed;
        exit when is_stopped;
        idle_since := pg_catalog.clock_timestamp();
    end loop;
end $work$;
comment on procedure fetchq.work(text, regproc, int, interval, interval, int, int, int) is
    'A worker: leases documents of a queue, calls the handler, and completes or rejects them, until it is asked to stop';
