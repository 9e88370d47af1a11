//! Documents that several sessions, or their owner, change in unusual ways: none is hidden, none
//! is written against a constraint, and errors of the server arrive as they were raised.

use fetchq_client_tests::{
    Cluster, Database, Server, Session, error_of, state_of, wait_for_rows, wait_until,
};

/// The statuses of all documents of a queue, by subject.
const STATUSES: &str = "select subject || ' ' || status from fetchq_data.q__docs order by subject";

const MISSES: &str = "select floor_misses from fetchq.ready_stats()";

/// Makes the floors of the due index known, and moves them above all documents that are gone.
const MAINTAIN: &str = "select fetchq.mnt_run('q', 100)";

/// A new database of a server with the queue `q`, and a session in it.
async fn with_queue(server: &Server, name: &str) -> (Database, Session) {
    let db = server.database(name).await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    (db, session)
}

/// A server of its own with the queue `q` in a database of the same name.
async fn own_server(name: &str) -> (Cluster, Session) {
    let cluster = Cluster::new(name, "fsync = off");
    cluster.start();
    let (_, session) = with_queue(&cluster.server(), name).await;
    (cluster, session)
}

/// Commits the transaction of `owner` as soon as another session of the database waits for a lock
/// in a call of `function`.
async fn commit_when_waited_for(owner: &Session, watcher: &Session, function: &str) {
    let waiting = format!(
        "select 1 from pg_stat_activity where datname = current_database()
             and wait_event_type = 'Lock' and query like '%{function}%' and pid <> pg_backend_pid()"
    );
    wait_for_rows(&format!("{function} waits"), watcher, &waiting, &["1"]).await;
    owner.sql("commit").await;
}

/// A queue with document `a`, which was rejected once, and is leased for its second attempt.
async fn second_attempt(session: &Session) {
    session
        .sql(&format!(
            "select fetchq.doc_push('q', 'a');
             select fetchq.doc_pick('q');
             select fetchq.doc_reject('q', 'a', 'why', '{{}}', delay => '0 s');
             select fetchq.doc_pick('q');
             {MAINTAIN}"
        ))
        .await;
}

/// A time that several statements can name, two seconds from now.
async fn soon(session: &Session) -> String {
    session.text("select now() + interval '2 s'").await
}

async fn all_become_pending(session: &Session, what: &str, expected: &[&str]) {
    wait_until(what, async || {
        session.sql(MAINTAIN).await;
        session.rows(STATUSES).await == expected
    })
    .await;
}

#[tokio::test]
async fn a_snoozed_document_becomes_pending_with_a_new_one_of_the_same_time() {
    let (db, session) = with_queue(&Server::of_suite(), "snooze_due").await;
    second_attempt(&session).await;
    let at = soon(&session).await;
    session
        .sql(&format!(
            "select fetchq.doc_snooze('q', 'a', '{at}');
             select fetchq.doc_push('q', 'c', 0, 0, '{at}', '{{}}')"
        ))
        .await;
    all_become_pending(&session, "both are pending", &["a 1", "c 1"]).await;
    db.remove().await;
}

/// The same for every mode of doc_put that plans a document, one by one and in a list.
#[tokio::test]
async fn a_document_that_was_put_becomes_pending_with_a_new_one_of_the_same_time() {
    let (db, session) = with_queue(&Server::of_suite(), "put_due").await;
    for mode in ["replace", "earliest", "debounce", "merge"] {
        for list in [false, true] {
            session.sql("delete from fetchq_data.q__docs").await;
            second_attempt(&session).await;
            let at = soon(&session).await;
            // A mode that does not plan gets a document that is planned already.
            let first = match mode {
                "merge" => format!("select fetchq.doc_snooze('q', 'a', '{at}')"),
                _ => "select fetchq.doc_reject('q', 'a', 'why', '{}', delay => '1 h')".to_owned(),
            };
            session.sql(&first).await;
            session
                .sql(&match list {
                    false => format!(
                        "select fetchq.doc_put('q', 'a', '{{}}', '{at}', mode => '{mode}');
                         select fetchq.doc_put('q', 'c', '{{}}', '{at}', mode => '{mode}')"
                    ),
                    true => format!(
                        "select fetchq.doc_put_many('q', jsonb_build_array(
                             jsonb_build_object('subject', 'a', 'due_at', '{at}'),
                             jsonb_build_object('subject', 'c', 'due_at', '{at}')), '{mode}')"
                    ),
                })
                .await;
            let what = format!("both are pending after {mode}, list: {list}");
            all_become_pending(&session, &what, &["a 1", "c 1"]).await;
        }
    }
    db.remove().await;
}

/// A document that no session has noted is below a due floor. Maintenance finds it all the same,
/// and reports it.
#[tokio::test]
async fn a_document_below_a_due_floor_is_found_and_counted() {
    if std::env::var("FETCHQ_NO_PRELOAD").as_deref() == Ok("1") {
        return;
    }
    let (_cluster, session) = own_server("due_net").await;
    for (status, lease) in [(0, "null"), (2, "1")] {
        session.sql("delete from fetchq_data.q__docs").await;
        // The floor is above everything.
        session.sql(MAINTAIN).await;
        let before: i64 = session.text(MISSES).await.parse().unwrap();
        // The catalog says that the table has no triggers, so none notes the row.
        session
            .sql(&format!(
                "begin;
                 update pg_class set relhastriggers = false where oid = 'fetchq_data.q__docs'::regclass;
                 insert into fetchq_data.q__docs (subject, status, lease, attempts, next_iteration)
                 values ('hidden', {status}, {lease}, 1, now() - interval '1 s');
                 update pg_class set relhastriggers = true where oid = 'fetchq_data.q__docs'::regclass;
                 commit"
            ))
            .await;
        session.notices();
        all_become_pending(&session, "the hidden document is pending", &["hidden 1"]).await;
        let after: i64 = session.text(MISSES).await.parse().unwrap();
        assert_eq!(after, before + 1, "floor_misses");
        let notices = session.notices();
        assert!(
            notices
                .iter()
                .any(|n| n.message().contains("below the ready floor")),
            "{notices:?}"
        );
    }
}

/// Another session changes the attempts of a leased document while it is snoozed.
#[tokio::test]
async fn a_snooze_notes_the_attempts_that_it_has_written() {
    let (db, session) = with_queue(&Server::of_suite(), "snooze_note").await;
    let other = db.connect().await;
    let watcher = db.connect().await;
    session
        .sql(
            "select fetchq.doc_push('q', 'a');
             select fetchq.doc_pick('q');
             update fetchq_data.q__docs set attempts = 5;
             select fetchq.doc_pick('q')",
        )
        .await;
    let misses = session.text(MISSES).await;
    other
        .sql("begin; update fetchq_data.q__docs set attempts = 1")
        .await;
    let snooze = session.batch_execute("select fetchq.doc_snooze('q', 'a', '2020-01-02')");
    let commit = commit_when_waited_for(&other, &watcher, "doc_snooze");
    let (snoozed, ()) = tokio::join!(snooze, commit);
    snoozed.expect("snoozed");
    // The floor of its priority must not be above it.
    let picked = session
        .column("select subject from fetchq.doc_pick('q')")
        .await;
    assert_eq!(picked, ["a"]);
    assert_eq!(session.text(MISSES).await, misses, "floor_misses");
    db.remove().await;
}

/// An owner declares columns not null that fetchq sets to NULL.
#[tokio::test]
async fn a_column_that_became_not_null_is_respected() {
    let (db, session) = with_queue(&Server::of_suite(), "not_null").await;
    for direct in ["on", "off"] {
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        for column in ["last_error", "result"] {
            session
                .sql(&format!(
                    "delete from fetchq_data.q__docs;
                     select fetchq.doc_push('q', 'a');
                     select fetchq.doc_pick('q');
                     update fetchq_data.q__docs set last_error = 'x', result = '1';
                     alter table fetchq_data.q__docs alter column {column} set not null"
                ))
                .await;
            let state = session.state("select fetchq.doc_complete('q', 'a')").await;
            assert_eq!(state, "23502", "direct = {direct}, {column}");
            session
                .sql(&format!(
                    "alter table fetchq_data.q__docs alter column {column} drop not null;
                     select fetchq.doc_complete('q', 'a')"
                ))
                .await;
        }
    }
    db.remove().await;
}

/// An owner adds columns whose values depend on those that fetchq changes, or narrows a type.
#[tokio::test]
async fn columns_of_the_owner_follow_the_changes_of_fetchq() {
    let (db, session) = with_queue(&Server::of_suite(), "own_columns").await;
    for direct in ["on", "off"] {
        session
            .sql(&format!(
                "set fetchq.direct = {direct};
                 alter table fetchq_data.q__docs add column doubled int generated always as (status * 2) stored;
                 select fetchq.doc_push('q', 'a'); select fetchq.doc_pick('q')"
            ))
            .await;
        let doubled = "select status || ' ' || doubled from fetchq_data.q__docs";
        assert_eq!(session.text(doubled).await, "2 4", "direct = {direct}");
        session.sql("select fetchq.doc_complete('q', 'a')").await;
        assert_eq!(session.text(doubled).await, "3 6", "direct = {direct}");
        session
            .sql(
                "delete from fetchq_data.q__docs;
                 alter table fetchq_data.q__docs drop column doubled;
                 alter table fetchq_data.q__docs alter column next_iteration type timestamptz(0);
                 select fetchq.doc_push('q', 'a'); select fetchq.doc_pick('q')",
            )
            .await;
        let rounded =
            "select next_iteration = date_trunc('second', next_iteration) from fetchq_data.q__docs";
        assert_eq!(session.text(rounded).await, "t", "direct = {direct}");
        session
            .sql(
                "delete from fetchq_data.q__docs;
                 alter table fetchq_data.q__docs alter column next_iteration type timestamptz",
            )
            .await;
    }
    db.remove().await;
}

/// While a session waits for the lock of a table, the table gets another name.
#[tokio::test]
async fn the_name_is_looked_up_again_after_the_wait_for_a_lock() {
    let (db, session) = with_queue(&Server::of_suite(), "renamed").await;
    session.sql("select fetchq.queue_create('r')").await;
    let owner = db.connect().await;
    let watcher = db.connect().await;
    // Both plans are in the cache.
    session
        .sql("select fetchq.doc_push('q', 'first'); select fetchq.doc_push('r', 'first')")
        .await;
    owner
        .sql(
            "begin;
             alter table fetchq_data.q__docs rename to other;
             alter table fetchq_data.r__docs rename to q__docs;
             alter table fetchq_data.other rename to r__docs",
        )
        .await;
    let push = session.batch_execute("select fetchq.doc_push('q', 'second')");
    let commit = commit_when_waited_for(&owner, &watcher, "doc_push");
    let (pushed, ()) = tokio::join!(push, commit);
    pushed.expect("pushed");
    let subjects = |table: &str| format!("select subject from fetchq_data.{table} order by 1");
    assert_eq!(
        owner.column(&subjects("q__docs")).await,
        ["first", "second"]
    );
    assert_eq!(owner.column(&subjects("r__docs")).await, ["first"]);
    // The queue has no table any longer.
    owner
        .sql("begin; alter table fetchq_data.q__docs rename to other")
        .await;
    let push = session.simple_query("select fetchq.doc_push('q', 'third')");
    let commit = commit_when_waited_for(&owner, &watcher, "doc_push");
    let (pushed, ()) = tokio::join!(push, commit);
    if let Err(e) = &pushed {
        assert_eq!(state_of(e), "42704", "{e:?}");
    }
    assert_eq!(
        owner.column(&subjects("other")).await,
        ["first", "second"],
        "the table of another name got a document"
    );
    db.remove().await;
}

/// An owner replaces an index by one of the same columns and another access method, or with
/// another order of values.
#[tokio::test]
async fn the_floors_use_only_indexes_as_fetchq_made_them() {
    let (db, session) = with_queue(&Server::of_suite(), "other_am").await;
    let due = "where status = any (array[0, 2]) and lock_upgrade is null";
    session
        .sql(
            "create function backwards(int, int) returns int language sql immutable strict as 'select pg_catalog.btint4cmp($2, $1)';
             create operator class backwards for type int4 using btree as
                 operator 1 >, operator 2 >=, operator 3 =, operator 4 <=, operator 5 <,
                 function 1 backwards(int, int)",
        )
        .await;
    for index in [
        format!(
            "create index q__docs_due_idx on fetchq_data.q__docs using brin (status, next_iteration, seq) {due}"
        ),
        format!(
            "create index q__docs_due_idx on fetchq_data.q__docs (status backwards, next_iteration, seq) {due}"
        ),
    ] {
        session
            .sql(&format!("drop index fetchq_data.q__docs_due_idx; {index}"))
            .await;
        session
            .sql(
                "select fetchq.doc_push('q', 'a', 0, 0, clock_timestamp() + interval '0.1 s', '{}');
                 select fetchq.doc_push('q', 'b', 0, 0, clock_timestamp() + interval '0.2 s', '{}')",
            )
            .await;
        all_become_pending(&session, &index, &["a 1", "b 1"]).await;
        session.sql("delete from fetchq_data.q__docs").await;
    }
    // The attempts are sorted from high to low, which a floor of this index cannot say.
    session
        .sql(
            "drop index fetchq_data.q__docs_pick_idx;
             create index q__docs_pick_idx on fetchq_data.q__docs (version, priority desc, next_iteration, attempts backwards, seq)
             where status = 1 and lock_upgrade is null;
             insert into fetchq_data.q__docs (subject, status, attempts, next_iteration)
             select 'd' || i, 1, i, '2020-01-01' from generate_series(1, 200) i",
        )
        .await;
    let mut picked = Vec::new();
    for _ in 0..200 {
        picked.extend(
            session
                .column("select subject from fetchq.doc_pick('q')")
                .await,
        );
    }
    assert_eq!(picked.len(), 200);
    db.remove().await;
}

/// A subject has 50 characters, however many bytes these have, for every way to write one.
#[tokio::test]
async fn subjects_are_measured_in_characters_everywhere() {
    let (db, session) = with_queue(&Server::of_suite(), "subject_length").await;
    session
        .sql("select fetchq.queue_enable_notify('q'); listen fetchq__q__pnd")
        .await;
    let calls = [
        "fetchq.doc_push('q', $s)",
        "fetchq.doc_push('q', 0, now(), '(''' || $s || ''', 0, ''{}'', {DATA})')",
        "fetchq.doc_put('q', $s)",
        "fetchq.doc_put('q', $s, mode => 'replace')",
        "fetchq.doc_put_many('q', jsonb_build_array(jsonb_build_object('subject', $s)))",
        "fetchq.doc_upsert('q', $s, 0, 0, now(), '{}')",
    ];
    for direct in ["on", "off"] {
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        for notify in ["background_worker", "commit"] {
            session.sql(&format!("set fetchq.notify = {notify}")).await;
            for letter in ["x", "é", "€", "😀"] {
                for call in calls {
                    let longest = letter.repeat(255);
                    let call = |subject: &str| {
                        format!(
                            "select {}",
                            call.replace("$s", &format!("'{subject}'::text"))
                        )
                    };
                    session.sql(&call(&longest)).await;
                    let settle = format!(
                        "select fetchq.doc_pick('q'); select fetchq.doc_complete('q', '{longest}')"
                    );
                    session.sql(&settle).await;
                    let left = "select subject || status from fetchq_data.q__docs";
                    assert_eq!(session.text(left).await, format!("{longest}3"));
                    session.sql("delete from fetchq_data.q__docs").await;
                    let state = session.state(&call(&letter.repeat(256))).await;
                    assert_eq!(state, "22001", "{}", call("256 times"));
                }
            }
        }
    }
    db.remove().await;
}

/// An error of a user's trigger arrives as the trigger has raised it, also through several calls
/// of fetchq, and without a backtrace.
#[tokio::test]
async fn an_error_of_a_trigger_arrives_as_it_was_raised() {
    let (_cluster, session) = own_server("trigger_error").await;
    session
        .sql(
            "select fetchq.queue_create('r');
             create table taken (n int constraint only_once primary key);
             insert into taken values (1);
             create function refuse() returns trigger language plpgsql as $$
             begin
                 if new.subject = 'own' then
                     raise exception 'no, %', new.subject using errcode = 'FQ001', detail = 'own detail',
                         hint = 'own hint', schema = 's', table = 't', column = 'c', datatype = 'd', constraint = 'k';
                 elsif new.subject = 'bare' then
                     raise exception 'bare';
                 elsif new.subject = 'unique' then
                     insert into public.taken values (1);
                 elsif new.subject = 'deep' then
                     perform fetchq.doc_push('r', 'own');
                 end if;
                 return new;
             end $$;
             create trigger refuse before insert on fetchq_data.q__docs for each row execute function refuse();
             create trigger refuse before insert on fetchq_data.r__docs for each row execute function refuse();",
        )
        .await;
    let fail = async |subject: &str| {
        // An error that was caught before must leave no trace.
        session
            .sql("do $$ begin perform fetchq.doc_push('q', 'own'); exception when others then null; end $$")
            .await;
        session
            .simple_query(&format!("select fetchq.doc_push('q', '{subject}')"))
            .await
            .expect_err("the trigger refuses it")
    };
    for subject in ["own", "deep"] {
        let e = fail(subject).await;
        let e = error_of(&e);
        assert_eq!(e.code().code(), "FQ001");
        assert_eq!(e.message(), "no, own");
        assert_eq!(e.detail(), Some("own detail"));
        assert_eq!(e.hint(), Some("own hint"));
        let names = [
            e.schema(),
            e.table(),
            e.column(),
            e.datatype(),
            e.constraint(),
        ];
        assert_eq!(
            names,
            [Some("s"), Some("t"), Some("c"), Some("d"), Some("k")]
        );
        let context = e.where_().expect("a context");
        let calls = context
            .matches("PL/pgSQL function refuse() line 4 at RAISE")
            .count();
        assert_eq!(calls, 1, "{context}");
        let performs = context.matches("line 11 at PERFORM").count();
        assert_eq!(performs, usize::from(subject == "deep"), "{context}");
    }
    let e = fail("bare").await;
    let e = error_of(&e);
    assert_eq!((e.message(), e.detail(), e.hint()), ("bare", None, None));
    let e = fail("unique").await;
    let e = error_of(&e);
    assert_eq!(e.code().code(), "23505");
    assert_eq!(e.table(), Some("taken"));
    assert_eq!(e.constraint(), Some("only_once"));
    assert_eq!(e.detail(), Some("Key (n)=(1) already exists."));
    assert!(
        e.where_()
            .is_some_and(|w| w.contains("insert into public.taken")),
        "{e:?}"
    );
    // Fetchq's own error after an error that was caught.
    let e = fail(&"x".repeat(256)).await;
    let e = error_of(&e);
    assert_eq!((e.code().code(), e.detail()), ("22001", None));
    assert_eq!(e.where_(), None);
}
