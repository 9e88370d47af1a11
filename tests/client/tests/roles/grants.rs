//! A call without its right names the grant that is missing.

use super::*;

/// The calls of a producer and of a worker on the queue `q` with the documents `p` and `a`.
const PRODUCER_CALLS: &[&str] = &[
    "fetchq.doc_push('q', 'n')",
    "fetchq.doc_push('q', 'n', '{}', now())",
    "fetchq.doc_push('q', 0, now(), '(''n'', 0, ''{}'', {DATA})')",
    "fetchq.doc_put_many('q', '[{\"subject\": \"n\"}]')",
    "fetchq.doc_append('q', '{}')",
    "fetchq.doc_append_many('q', array['{}']::jsonb[])",
    "fetchq.doc_upsert('q', 'p', 0, 0, now(), '{}')",
    "fetchq.doc_put('q', 'p', '{}', mode => 'replace')",
    "fetchq.doc_put('q', 'p', '{}', mode => 'merge')",
    "fetchq.doc_put_many('q', '[{\"subject\": \"p\"}]')",
];

const WORKER_CALLS: &[&str] = &[
    "fetchq.doc_pick('q')",
    "fetchq.doc_lease('q')",
    "fetchq.doc_lease_any(array['q'])",
    "fetchq.doc_pop('q')",
    "fetchq.doc_complete('q', 'a')",
    "fetchq.doc_complete_many('q', array['a'])",
    "fetchq.doc_kill('q', 'a')",
    "fetchq.doc_drop('q', 'a')",
    "fetchq.doc_drop_many('q', array['a'])",
    "fetchq.doc_reschedule('q', 'a', now())",
    "fetchq.doc_reschedule_many('q', array['a'], now())",
    "fetchq.doc_snooze('q', 'a', now())",
    "fetchq.doc_reject('q', 'a', 'm', '{}')",
    "fetchq.log_error('q', 'a', 'm', '{}')",
    "fetchq.doc_extend('q', 'a', '1 hour')",
    "fetchq.doc_cancel('q', 'p')",
    "fetchq.doc_revive('q', 'k', now())",
    "fetchq.docs_retry('q', '{}')",
    "fetchq.docs_kill('q', '{\"all\": true}')",
    "fetchq.docs_drop('q', '{\"all\": true}')",
    "fetchq.docs_set_priority('q', 1, '{}')",
    "fetchq.docs_set_due('q', now(), filter => '{\"all\": true}')",
    "fetchq.doc_set_due('q', 'p', now())",
    "fetchq.doc_set_priority('q', 'p', 1)",
    "fetchq.docs_move('q', 'mine', '{\"all\": true}')",
    "fetchq.queue_redrive('q')",
];

#[tokio::test]
async fn a_call_without_its_right_names_the_grant_that_is_missing() {
    let (db, admin, a, b) = applications("roles_names").await;
    a.sql(
        "select fetchq.queue_drop('q'); select fetchq.queue_create('q');
         select fetchq.doc_push('q', s) from unnest('{a,k,p}'::text[]) s;
         select fetchq.doc_pick('q', 2); select fetchq.doc_kill('q', 'k')",
    )
    .await;
    b.sql("select fetchq.queue_create('mine'); set lock_timeout = '10s'; set statement_timeout = '20s'")
        .await;
    for kind in ["none", "reader", "producer"] {
        if kind != "none" {
            a.sql("select fetchq.queue_revoke('q', 'fetchq_app_b', 'reader')")
                .await;
            a.sql(&format!(
                "select fetchq.queue_grant('q', 'fetchq_app_b', '{kind}')"
            ))
            .await;
        }
        let documents = "select * from fetchq_data.q__docs order by subject";
        let before = admin.rows(documents).await;
        for is_locked in [false, true] {
            // A role that may change nothing does not even wait for a lock.
            if is_locked {
                if kind == "producer" {
                    continue;
                }
                a.sql("begin; lock table fetchq_data.q__docs in access exclusive mode")
                    .await;
            }
            for (calls, needed) in [(PRODUCER_CALLS, "producer"), (WORKER_CALLS, "worker")] {
                if (kind, needed) == ("producer", "producer") {
                    continue;
                }
                for call in calls {
                    let direct = ["on", "off"];
                    for setting in direct {
                        b.sql(&format!("set fetchq.direct = {setting}; begin"))
                            .await;
                        let error = match b.simple_query(&format!("select {call}")).await {
                            Err(e) => error_of(&e).clone(),
                            Ok(rows) => panic!("{call} as {kind}: {rows:?}"),
                        };
                        let seen = format!("{call} as {kind}: {error:?}");
                        assert_eq!(error.code().code(), "42501", "{seen}");
                        assert_eq!(
                            error.message(),
                            format!("role \"fetchq_app_b\" is not a {needed} of queue \"q\""),
                            "{seen}"
                        );
                        assert!(
                            error.hint().is_some_and(|hint| hint.contains(&format!(
                                "select fetchq.queue_grant('q', 'fetchq_app_b', '{needed}')"
                            ))),
                            "{seen}"
                        );
                        b.sql("rollback").await;
                    }
                }
            }
            if is_locked {
                a.sql("rollback").await;
            }
        }
        assert_eq!(admin.rows(documents).await, before);
        let held = format!(
            "select count(*) from pg_locks where relation = 'fetchq_data.q__docs'::regclass and pid = {}",
            b.text("select pg_backend_pid()").await
        );
        assert_eq!(admin.text(&held).await, "0");
    }
    b.sql("reset fetchq.direct").await;
    for call in PRODUCER_CALLS {
        b.sql(&format!("begin; select {call}; rollback")).await;
    }
    // What GRANT gives is a right too: UPDATE of the documents is that of a worker, and of one column
    // it is none but to see the queue.
    a.sql(
        "select fetchq.queue_revoke('q', 'fetchq_app_b', 'producer');
         grant update (payload), insert (payload), delete on fetchq_data.q__docs to fetchq_app_b",
    )
    .await;
    assert_eq!(
        b.text("select fetchq.queue_has_right('q', 'any')").await,
        "t"
    );
    for call in PRODUCER_CALLS.iter().chain(WORKER_CALLS) {
        assert_eq!(b.state(&format!("select {call}")).await, "42501", "{call}");
    }
    a.sql("grant update on fetchq_data.q__docs to fetchq_app_b")
        .await;
    assert_eq!(b.text("select fetchq.doc_complete('q', 'a')").await, "1");
    assert_eq!(
        b.text("select subject from fetchq.doc_pick('q', 1)").await,
        "p"
    );
    // What code of a superuser is denied is not about the queue.
    admin
        .sql(
            "create function public.look() returns trigger language plpgsql as $$ begin raise insufficient_privilege using message = 'not this one'; end $$;
             create trigger look before update on fetchq_data.q__docs for each row execute function public.look()",
        )
        .await;
    let denied = b.execute("select fetchq.doc_complete('q', 'p')", &[]).await;
    let denied = denied.unwrap_err();
    assert_eq!(error_of(&denied).message(), "not this one");
    drop((admin, a, b));
    db.remove().await;
}

/// The calls of a reader, as a role that only puts makes them.
const READER_CALLS: &[&str] = &[
    "select fetchq.doc_get('q', 'p')",
    "select fetchq.doc_explain('q', 'p')",
    "select fetchq.docs_list('q')",
    "select fetchq.doc_errors('q', 'p')",
    "call fetchq.queue_wait('{q}', '0')",
];

/// A producer waits for what it has put, and reads no payload.
#[tokio::test]
async fn a_producer_may_await_what_it_has_put() {
    let (db, admin, a, b) = applications("roles_await").await;
    a.sql("select fetchq.queue_grant('q', 'fetchq_app_b', 'producer')")
        .await;
    b.simple_query("select fetchq.doc_put('q', 'p', priority => 1000)")
        .await
        .unwrap();
    let lease = a.text("select lease from fetchq.doc_lease('q')").await;
    let complete = format!("select fetchq.doc_complete('q', 'p', lease => {lease}, result => '7')");
    a.sql(&complete).await;
    let row = &b
        .query("call fetchq.doc_await('q', 'p', '0')", &[])
        .await
        .unwrap()[0];
    let (status, result): (String, Option<serde_json::Value>) = (row.get(0), row.get(1));
    assert_eq!((status.as_str(), result), ("completed", Some(7.into())));
    a.sql("select fetchq.queue_revoke('q', 'fetchq_app_b', 'producer')")
        .await;
    let error = b.query("call fetchq.doc_await('q', 'p', '0')", &[]).await;
    assert_eq!(error_of(&error.unwrap_err()).code().code(), "42501");
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn a_producer_who_reads_is_told_to_be_a_reader() {
    let (db, _admin, a, b) = applications("roles_reads").await;
    a.sql("select fetchq.doc_put('q', 'p'); select fetchq.queue_grant('q', 'fetchq_app_b', 'producer')")
        .await;
    for call in READER_CALLS {
        let error = b.simple_query(call).await.expect_err(call);
        let error = error_of(&error).clone();
        let seen = format!("{call}: {error:?}");
        assert_eq!(error.code().code(), "42501", "{seen}");
        let expected = "role \"fetchq_app_b\" is not a reader of queue \"q\"";
        assert_eq!(error.message(), expected, "{seen}");
        let grant = "select fetchq.queue_grant('q', 'fetchq_app_b', 'reader')";
        assert!(
            error.hint().is_some_and(|hint| hint.contains(grant)),
            "{seen}"
        );
    }
    db.remove().await;
}

/// The first grants of several owners change the same schemas.
#[tokio::test]
async fn first_grants_of_two_owners_at_the_same_moment() {
    let (db, admin, a, b) = applications("roles_grants").await;
    b.sql("select fetchq.queue_create('mine')").await;
    admin
        .sql(
            "do $$ begin for n in 1..40 loop
                 execute format('drop role if exists fetchq_first_%s', n);
                 execute format('create role fetchq_first_%s', n);
             end loop; end $$",
        )
        .await;
    // One after the other, so that the second one has to wait for the first.
    a.sql("begin; select fetchq.queue_grant('q', 'fetchq_first_1', 'reader')")
        .await;
    let waits = tokio::spawn(async move {
        b.sql("set lock_timeout = '20s'").await;
        let state = b
            .state("select fetchq.queue_grant('mine', 'fetchq_first_2', 'reader')")
            .await;
        (b, state)
    });
    wait_until("the second grant waits", async || {
        admin
            .text("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%fetchq_first_2%'")
            .await
            != "0"
            || waits.is_finished()
    })
    .await;
    a.sql("commit").await;
    let (b, found) = waits.await.unwrap();
    assert_eq!(found, "");
    // And many at once, some of them for the same roles.
    let mut tasks = tokio::task::JoinSet::new();
    for (session, queue) in [(a, "q"), (b, "mine")] {
        tasks.spawn(async move {
            for n in 1..=40 {
                session
                    .sql(&format!(
                        "select fetchq.queue_grant('{queue}', 'fetchq_first_{n}', 'reader')"
                    ))
                    .await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("all grants succeed");
    }
    let usage = "select count(*) from generate_series(1, 40) n
        where has_schema_privilege('fetchq_first_' || n, 'fetchq', 'usage')
            and has_schema_privilege('fetchq_first_' || n, 'fetchq_data', 'usage')";
    assert_eq!(admin.text(usage).await, "40");
    admin
        .sql(
            "select fetchq.queue_drop('q'), fetchq.queue_drop('mine');
             do $$ begin for n in 1..40 loop
                 execute format('drop owned by fetchq_first_%s', n);
                 execute format('drop role fetchq_first_%s', n);
             end loop; end $$",
        )
        .await;
    drop(admin);
    db.remove().await;
}
