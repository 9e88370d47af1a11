//! Queues move with all that belongs to them.

use fetchq_client_tests::{Cluster, Server, Session, counters_are_exact, state_of, wait_until};

use super::{SETTINGS, database, ends_with, is_clean, live, mover, pair};

/// The list of what a move carries, as its source has it.
const CARRIED: &str = include_str!("../../../../mover/src/carried.rs");

/// The queues of `fill`.
const QUEUES: [&str; 6] = ["dead", "kept", "limited", "notified", "ordered", "places"];

/// Fills queues of every kind, with something in every table that a move carries.
async fn fill(session: &Session) {
    session
        .sql(
            "create role fetchq_move_owner; create role fetchq_move_worker; create role \"Fetchq Producer\";
             select fetchq.queue_create('spare');
             grant usage on schema fetchq, fetchq_data to fetchq_move_owner; grant execute on function fetchq.queue_create to fetchq_move_owner;
             set role fetchq_move_owner; select fetchq.queue_create('kept'); reset role;
             select fetchq.queue_create(q) from unnest('{dead,limited,notified,ordered,places}'::text[]) q;
             select fetchq.queue_configure('kept', '{\"history\": {\"completed\": \"1 day\", \"killed\": \"2 days\"}, \"dead_letter\": \"dead\", \"max_attempts\": 2, \"lease\": \"7 min\", \"retry\": {\"base\": \"90 s\", \"factor\": 1.7}}');
             select fetchq.queue_configure('limited', '{\"max_active\": 5, \"rate\": {\"picks\": 7, \"per\": \"1 hour\"}}');
             select fetchq.queue_configure('notified', '{\"notify\": true, \"paused\": true}');
             select fetchq.queue_configure('ordered', '{\"ordered\": true, \"retry\": {\"base\": \"1 hour\"}}');
             select fetchq.queue_configure('places', '{\"max_active_per_key\": 2}');
             update fetchq.queues set config = '{\"mine\": 1.50}' where name = 'kept';
             update fetchq.jobs set settings = '{\"delay\": \"1s\", \"limit\": 7}', payload = '{\"x\": 1}' where task = 'mnt' and queue = 'kept';
             alter table fetchq_data.kept__docs set (fillfactor = 60);
             select fetchq.queue_grant('kept', 'fetchq_move_worker', 'worker'), fetchq.queue_grant('kept', 'Fetchq Producer', 'producer'), fetchq.queue_grant('dead', 'fetchq_move_owner', 'producer');
             create index kept_by_payload on fetchq_data.kept__docs ((payload ->> 'n'));
             select fetchq.doc_push('kept', 'k' || n, 0, n % 3, now() - interval '1 hour', jsonb_build_object('n', n, 'text', 'it''s \\ ü')) from generate_series(1, 200) n;
             select fetchq.doc_push('kept', 'later', 3, 0, now() + interval '1 year', '{}');
             select fetchq.doc_push('notified', 'n' || n) from generate_series(1, 20) n;
             select fetchq.doc_append('limited', jsonb_build_object('n', n)) from generate_series(1, 30) n;
             select fetchq.doc_put('ordered', 'o' || n, ordering_key => 'key' || n % 4) from generate_series(1, 40) n;
             select fetchq.doc_put('places', 'p' || n, ordering_key => 'key' || n % 2) from generate_series(1, 20) n",
        )
        .await;
    session
        .sql(
            "set fetchq.worker = 'first'; set fetchq.session_leases = 'return';
             select fetchq.doc_pick('kept', 0, 20, '1 hour');
             select fetchq.doc_complete('kept', subject) from (select subject from fetchq_data.kept__docs where status = 2 order by seq limit 5) s;
             select fetchq.doc_kill('kept', subject) from (select subject from fetchq_data.kept__docs where status = 2 order by seq limit 3) s;
             select fetchq.doc_reject('kept', subject, 'it failed', '{\"why\": \"x\"}') from (select subject from fetchq_data.kept__docs where status = 2 order by seq limit 4) s;
             select fetchq.doc_pick('limited', 0, 4, '1 hour');
             select fetchq.doc_pick('ordered', 0, 4, '1 hour');
             select fetchq.doc_reject('ordered', subject, 'again') from (select subject from fetchq_data.ordered__docs where status = 2 order by seq limit 2) s;
             select fetchq.doc_pick('places', 0, 3, '1 hour');
             select fetchq.metric_log_pack();
             select fetchq.doc_pick('kept', 0, 3, '1 hour');
             select fetchq.metric_snap('kept');
             select fetchq.metric_set('kept', 'mine', 7);
             select fetchq.metric_log_increment('kept', 'mine', 5);
             select fetchq.worker_stop('second');
             insert into fetchq.stop_requests (name, queue_id) select 'third', id from fetchq.queues where name = 'kept';
             select fetchq.schedule_create('nightly', 'kept', '30 2 * * *', 'null', 'Europe/Berlin', 2, 3, 'all', 7, '5 minutes', headers => '{\"trace\": \"it''s\"}');
             select fetchq.schedule_create('paused', 'ordered', '1 month'); select fetchq.schedule_pause('paused');
             update fetchq.schedules set ticks = 9, attempts = 1, last_error = 'why', last_tick = '2026-01-01' where name = 'paused';
             reset fetchq.session_leases",
        )
        .await;
}

/// Everything of the queues of `fill`, a line for each row, with what a move has to change left out.
async fn contents(session: &Session) -> Vec<String> {
    session
        .sql("set timezone = 'UTC'; set search_path = pg_catalog")
        .await;
    let mut lines = Vec::new();
    for queue in QUEUES {
        for table in ["docs", "logs", "metrics", "history"] {
            let name = format!("fetchq_data.{queue}__{table}");
            if session
                .text(&format!("select to_regclass('{name}') is not null"))
                .await
                == "t"
            {
                let rows = format!("select '{name}', to_jsonb(t) from {name} t order by 2");
                lines.extend(session.rows(&rows).await);
            }
        }
        let id = format!("(select id from fetchq.queues where name = '{queue}')");
        for sql in [
            format!("select 'settings', fetchq.queue_settings('{queue}')"),
            format!("select 'row', to_jsonb(q) - 'id' from fetchq.queues q where name = '{queue}'"),
            format!("select 'job', to_jsonb(j) - 'id' from fetchq.jobs j where queue = '{queue}' order by 2"),
            format!("select 'schedule', to_jsonb(s) from fetchq.schedules s where queue = '{queue}' order by 2"),
            format!("select 'session', to_jsonb(w) - 'queue_id' - 'binding' - 'known_stops' from fetchq.worker_sessions w where queue_id = {id} order by 2"),
            format!("select 'stop', name, max(since) from fetchq.stop_requests where queue_id in (0, {id}) group by 2 order by 2"),
            format!("select 'metric', metric, value from fetchq.metrics_exact where queue = '{queue}' and value <> 0 order by 2"),
            format!("select 'write', to_jsonb(w) from fetchq.metrics_writes w where queue = '{queue}' order by 2"),
            format!("select 'time', kind, bucket, sum(n) from (
                    select t.kind, b.bucket, b.n from fetchq.timings t cross join unnest(t.buckets, t.counts) b (bucket, n) where t.queue_id = {id}
                    union all
                    select case when event in (3, 18) then 'wait' else 'run' end, bucket, n from fetchq.counter_tail where queue_id = {id} and bucket is not null) s
                group by 2, 3 order by 2, 3"),
            format!("select 'slot', to_jsonb(s) - 'queue_id' from fetchq.lease_slots s where queue_id = {id} order by 2"),
            format!("select 'permit', to_jsonb(p) - 'queue_id' from fetchq.rate_permits p where queue_id = {id} order by 2"),
            format!("select 'key', to_jsonb(k) - 'queue_id' - 'made_by' from fetchq.ordering_keys k where queue_id = {id} order by 2"),
            format!("select 'grant', to_jsonb(g) from fetchq.queue_grants('{queue}') g order by 2"),
            format!("select 'table', relname, pg_get_userbyid(relowner), reloptions, relacl::text from pg_class
                where relnamespace = 'fetchq_data'::regnamespace and relkind = 'r' and relname like '{queue}\\_\\_%' order by 2"),
            format!("select 'index', pg_get_indexdef(indexrelid) from pg_index where indrelid = 'fetchq_data.{queue}__docs'::regclass order by 2"),
            format!("select 'trigger', pg_get_triggerdef(oid), tgenabled from pg_trigger where tgrelid = 'fetchq_data.{queue}__docs'::regclass order by 2"),
            format!("select 'sequence', pg_sequence_last_value(pg_get_serial_sequence('fetchq_data.{queue}__docs', 'seq')),
                pg_sequence_last_value(pg_get_serial_sequence('fetchq_data.{queue}__logs', 'id')),
                pg_sequence_last_value(pg_get_serial_sequence('fetchq_data.{queue}__metrics', 'id'))"),
        ] {
            lines.extend(session.rows(&sql).await.into_iter().map(|row| format!("{queue}|{row}")));
        }
    }
    lines
}

/// Compares lines, and shows those that differ.
fn same(before: &[String], after: &[String]) {
    let only = |one: &[String], other: &[String]| -> Vec<String> {
        one.iter()
            .filter(|line| !other.contains(line))
            .cloned()
            .collect()
    };
    let (lost, added) = (only(before, after), only(after, before));
    assert!(
        lost.is_empty() && added.is_empty() && before.len() == after.len(),
        "lost: {lost:#?}\nadded: {added:#?}\n{} lines, {} lines",
        before.len(),
        after.len()
    );
}

#[tokio::test]
async fn the_list_of_a_move_names_every_column_that_names_a_queue() {
    let db = Server::of_suite().database("move_list").await;
    let session = db.connect().await;
    let columns = session
        .column(
            "select c.relname || '.' || a.attname from pg_class c
             join pg_attribute a on a.attrelid = c.oid
             where c.relnamespace = 'fetchq'::regnamespace and c.relkind in ('r', 'p')
                 and a.attnum > 0 and not a.attisdropped
                 and a.attname in ('queue', 'queue_id', 'dead_letter')
                 and not exists (select from pg_inherits i where i.inhrelid = c.oid)
             order by 1",
        )
        .await;
    assert!(columns.len() > 10, "{columns:?}");
    for column in &columns {
        let entry = format!("\"{column}\",");
        assert!(
            CARRIED.contains(&entry),
            "fetchq.{column} names a queue: say in mover/src/carried.rs how a move carries it"
        );
    }
    drop(session);
    db.remove().await;
}

#[tokio::test]
async fn queues_move_with_all_that_belongs_to_them() {
    let (_clusters, [from, to]) = pair(["move-from", "move-to"]).await;
    let (mut here, mut there) = (from.connect().await, to.connect().await);
    fill(&here).await;

    let (_, messages) = ends_with(&mut mover(&from, &to, &["kept"]), 1);
    for part in ["dead-letter queue", "lacks 3 roles", "--queue"] {
        assert!(messages.contains(part), "{part}: {messages}");
    }
    is_clean(&there).await;
    there
        .sql("create role fetchq_move_owner; create role fetchq_move_worker; create role \"Fetchq Producer\"; select fetchq.queue_create('other')")
        .await;
    let (line, _) = ends_with(mover(&from, &to, &QUEUES).arg("--dry-run"), 0);
    assert_eq!(line, "6 queues can move");
    is_clean(&here).await;

    // The new server has no session of a worker, so what is bound to one is bound to none.
    let mut before = contents(&here).await;
    let counts = QUEUES.map(|queue| format!("(select count(*) from fetchq_data.{queue}__docs)"));
    let documents = here.text(&format!("select {}", counts.join(" + "))).await;
    let (line, messages) = ends_with(
        mover(&from, &to, &QUEUES).args(["--place", "the new place"]),
        0,
    );
    eprintln!("{messages}{line}");
    assert!(
        line.starts_with(&format!(
            "moved 6 queues, {documents} documents; paused for "
        )),
        "{line}"
    );
    let mut after = contents(&there).await;
    // The pack has run, and applied what was logged.
    for lines in [&mut before, &mut after] {
        lines.retain(|line| !line.contains("|write|") && !line.contains("|metric|mine|"));
    }
    same(&before, &after);
    assert_eq!(
        there
            .text("select value from fetchq.metrics_exact where queue = 'kept' and metric = 'mine'")
            .await,
        "12"
    );
    is_clean(&here).await;
    is_clean(&there).await;
    for queue in QUEUES {
        counters_are_exact(&mut there, queue).await;
    }
    let refused = here
        .simple_query("select fetchq.doc_push('kept', 'new')")
        .await
        .unwrap_err();
    assert!(
        refused
            .as_db_error()
            .unwrap()
            .message()
            .contains("the new place")
    );
    assert_eq!(
        here.rows("select name from fetchq.queues order by 1").await,
        ["spare"]
    );
    assert_eq!(
        here.text("select count(*) from fetchq.schedules").await,
        "0"
    );

    // Work goes on.
    let lease = there
        .text("select format('%L, lease => %s', subject, lease) from fetchq_data.kept__docs where status = 2 limit 1")
        .await;
    there
        .sql(&format!("select fetchq.doc_complete('kept', {lease})"))
        .await;
    let newer = "select bool_and(p.lease > b.lease) from fetchq.doc_pick('kept', 0, 500, '1 hour') p
        join (select subject, lease from fetchq_data.kept__docs) b using (subject) where b.lease is not null";
    assert_ne!(there.text(newer).await, "f");
    there.sql("select fetchq.doc_append('limited', '{}')").await;
    assert_eq!(
        there
            .text("select count(*) - count(distinct seq) from fetchq_data.limited__docs")
            .await,
        "0"
    );
    there
        .sql("select fetchq.doc_complete('ordered', subject) from (select subject from fetchq_data.ordered__docs where status = 2) s; select fetchq.mnt()")
        .await;
    counters_are_exact(&mut there, "ordered").await;
    counters_are_exact(&mut there, "kept").await;

    let (line, _) = ends_with(&mut mover(&from, &to, &QUEUES), 0);
    assert!(line.starts_with("nothing to do"), "{line}");
    counters_are_exact(&mut here, "spare").await;
}

#[tokio::test]
async fn a_queue_moves_to_another_database_of_its_server() {
    let cluster = Cluster::new("move-g", SETTINGS);
    let from = database(&cluster).await;
    let to = cluster.server().database("moving_to").await;
    let here = from.connect().await;
    here.sql("select fetchq.queue_create('q'); select fetchq.doc_push('q', 'd' || n) from generate_series(1, 50) n")
        .await;
    let (line, _) = ends_with(&mut mover(&from, &to, &["q"]), 0);
    assert!(line.starts_with("moved 1 queue, 50 documents"), "{line}");
    let there = to.connect().await;
    assert_eq!(live(&here, &there).await, (false, true));
}

#[tokio::test]
async fn leases_that_are_not_written_yet_move_with_their_documents() {
    if std::env::var("FETCHQ_NO_PRELOAD").as_deref() == Ok("1") {
        return;
    }
    let late = format!(
        "{SETTINGS}\nfetchq.background_worker = on\nfetchq.late_lease_slots = 4096\nfetchq.lease_write_delay = 60s"
    );
    let cluster = Cluster::new("move-late", &late);
    let from = database(&cluster).await;
    let to = cluster.server().database("moving_to").await;
    let (here, there) = (from.connect().await, to.connect().await);
    here.sql(
        "select fetchq.queue_create('q');
         select fetchq.doc_append('q', '{}') from generate_series(1, 3000)",
    )
    .await;
    let lease = "select subject, lease from fetchq.doc_lease('q', 1, '1 hour')";
    wait_until("a lease is late", async || {
        // The first ones are not: the background worker has to come.
        let held = "select count(*) from fetchq_data.q__docs where status = 2";
        let before = here.text(held).await;
        here.sql(lease).await;
        let is_late = here.text(held).await == before;
        here.sql("select fetchq.lease_list('q')").await;
        is_late
    })
    .await;
    let before: usize = here
        .text("select count(*) from fetchq_data.q__docs where status = 1")
        .await
        .parse()
        .unwrap();
    let mut command = mover(&from, &to, &["q"]);
    let moved = tokio::task::spawn_blocking(move || ends_with(&mut command, 0));
    let (mut held, mut completed) = (Vec::new(), 0);
    loop {
        let row = match here.query_opt(lease, &[]).await {
            Ok(row) => row.expect("there are enough documents"),
            Err(e) => {
                assert_eq!(state_of(&e), "3D000", "{e:?}");
                break;
            }
        };
        let (subject, lease): (String, i64) = (row.get(0), row.get(1));
        if lease % 4 == 0 || held.len() > completed {
            let done = here
                .query_one(
                    "select fetchq.doc_complete('q', $1, lease => $2)",
                    &[&subject, &lease],
                )
                .await;
            match done {
                Ok(_) => completed += 1,
                Err(_) => held.push((subject, lease)),
            }
        } else {
            held.push((subject, lease));
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    moved.await.expect("the move");
    assert!(
        held.len() > 10 && completed > 10,
        "{} {completed}",
        held.len()
    );
    for (subject, lease) in &held {
        let done = there
            .query_one(
                "select fetchq.doc_complete('q', $1, lease => $2)",
                &[subject, lease],
            )
            .await;
        assert_eq!(done.expect("the lease has moved").get::<_, i32>(0), 1);
    }
    let left = there
        .text("select count(*) from fetchq_data.q__docs where status = 1")
        .await;
    assert_eq!(left, (before - completed - held.len()).to_string());
}
