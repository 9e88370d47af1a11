//! The counters of `queue_stats`, of `metric_export` and of `metric_get` are exact, and as old as the
//! snapshot: they are compared with the view `fetchq.metrics_exact` in the same snapshot.

use fetchq_client_tests::{Database, Server, Session};

/// The counters of all queues.
const TOLD: &str = "select coalesce(string_agg(format('%s: %s %s %s %s', queue, pushed, picked, succeeded, active), ', ' order by queue), '') from fetchq.queue_stats()";

const TRUE: &str = "select coalesce(string_agg(format('%s: %s %s %s %s', q.name, m.ent, m.pkd, m.suc, m.act), ', ' order by q.name), '')
    from fetchq.queues q, lateral (
        select coalesce(sum(value) filter (where metric = 'ent'), 0) as ent,
            coalesce(sum(value) filter (where metric = 'pkd'), 0) as pkd,
            coalesce(sum(value) filter (where metric = 'suc'), 0) as suc,
            coalesce(sum(value) filter (where metric = 'act'), 0) as act
        from fetchq.metrics_exact m where m.queue = q.name) m";

/// All metrics, those of each version among them.
const METRICS_TOLD: &str = "select string_agg(format('%s %s: %s', q.name, m.metric, m.current_value), ', ' order by q.name, m.metric collate \"C\")
    from fetchq.queues q, fetchq.metric_get(q.name) m";

const METRICS_TRUE: &str = "select string_agg(format('%s %s: %s', m.queue, m.metric, m.value), ', ' order by m.queue, m.metric collate \"C\")
    from fetchq.metrics_exact m";

/// The same in other calls.
const COMMON_TOLD: &str = "select string_agg(format('%s %s %s %s', q.name, c.cnt, c.drp, e.current_value), ', ' order by q.name)
    from fetchq.queues q, fetchq.metric_get_common(q.name) c, fetchq.metric_get(q.name, 'ent') e";

const COMMON_TRUE: &str =
    "select string_agg(format('%s %s %s %s', q.name, m.cnt, m.drp, m.ent), ', ' order by q.name)
    from fetchq.queues q, lateral (
        select coalesce(sum(value) filter (where metric = 'cnt'), 0) as cnt,
            coalesce(sum(value) filter (where metric = 'drp'), 0) as drp,
            coalesce(sum(value) filter (where metric = 'ent'), 0) as ent
        from fetchq.metrics_exact m where m.queue = q.name) m";

/// How many documents the histograms have, of waits and of runs.
const TIMED_TOLD: &str = "select (select coalesce(sum(value), 0)::bigint from fetchq.metric_export('fetchq_wait_seconds') where name like '%\\_count')
    || ' ' || (select coalesce(sum(value), 0)::bigint from fetchq.metric_export('fetchq_run_seconds') where name like '%\\_count')";

const TIMED_TRUE: &str = "select coalesce(sum(n) filter (where kind = 'wait'), 0) || ' ' || coalesce(sum(n) filter (where kind = 'run'), 0)
    from (
        select t.queue_id, t.kind, u.n from fetchq.timings t, unnest(t.counts) u (n)
        union all
        select l.queue_id, case when l.event in (3, 18) then 'wait' else 'run' end, l.n
        from fetchq.counter_tail l where l.bucket is not null) x
    where x.queue_id in (select id from fetchq.queues)";

/// Compares what a session tells with what is true, in one snapshot: an older one, which another
/// session has exported, or that of now. Returns what it told.
async fn compare(session: &Session, snapshot: Option<&str>, what: &str) -> String {
    session
        .sql("begin transaction isolation level repeatable read")
        .await;
    if let Some(snapshot) = snapshot {
        session
            .sql(&format!("set transaction snapshot '{snapshot}'"))
            .await;
    }
    let told = session.text(TOLD).await;
    assert_eq!(told, session.text(TRUE).await, "{what}");
    for (told, truth) in [
        (TIMED_TOLD, TIMED_TRUE),
        (METRICS_TOLD, METRICS_TRUE),
        (COMMON_TOLD, COMMON_TRUE),
    ] {
        assert_eq!(
            session.text(told).await,
            session.text(truth).await,
            "{what}"
        );
    }
    session.sql("commit").await;
    // A transaction that takes a new snapshot for each statement tells the same when nobody writes.
    if snapshot.is_none() {
        assert_eq!(session.text(TOLD).await, told, "{what}");
    }
    told
}

/// A reader and a writer. The log has some thousand events, which are some dozen pages.
struct Sessions {
    db: Database,
    reader: Session,
    writer: Session,
}

/// Events of many pages, of which each call writes one.
const EVENTS: &str = "select fetchq.doc_append('a', '{}'), fetchq.doc_append('b', '{}') from generate_series(1, 3000)";

impl Sessions {
    async fn new(name: &str) -> Self {
        let db = Server::of_suite().database(name).await;
        let (reader, writer) = (db.connect().await, db.connect().await);
        writer
            .sql("select fetchq.queue_create('a'), fetchq.queue_create('b')")
            .await;
        writer.sql(EVENTS).await;
        let sessions = Self { db, reader, writer };
        sessions.compare("at first").await;
        sessions
    }

    /// The reader tells the truth.
    async fn compare(&self, what: &str) -> String {
        compare(&self.reader, None, what).await
    }

    /// Has the writer do something, and compares.
    async fn write(&self, sql: &str) -> String {
        self.writer.sql(sql).await;
        self.compare(sql).await
    }
}

#[tokio::test]
async fn statistics_follow_commits_and_rollbacks() {
    let all = Sessions::new("exact_ends").await;
    all.write(
        "select fetchq.doc_push('a', 'of 7 ' || n, 7, 0, now(), '{}') from generate_series(1, 9) n",
    )
    .await;
    let first = all.compare("again").await;
    // Nobody sees what has not been committed, and all see what has.
    assert_eq!(all.write(&format!("begin; {EVENTS}")).await, first);
    assert_eq!(all.write("rollback").await, first);
    assert_eq!(all.write(&format!("begin; {EVENTS}")).await, first);
    assert_ne!(all.write("commit").await, first);
    all.write(&format!(
        "begin; savepoint s; {EVENTS}; rollback to s; {EVENTS}; release s"
    ))
    .await;
    let before = all.compare("a subtransaction").await;
    assert_ne!(all.write("commit").await, before);
    all.write("select fetchq.doc_pick('a', 0, 1500, '1 hour')")
        .await;
    all.write("select fetchq.doc_pop('b', 0, 700)").await;
    all.write("select fetchq.doc_complete('a', d.subject) from (select subject from fetchq_data.a__docs where status = 2 limit 900) d")
        .await;
    // Its own changes are visible to a session at once, and gone after a rollback.
    let before = all.compare("before its own").await;
    all.reader.sql(&format!("begin; {EVENTS}")).await;
    for (told, truth) in [(TOLD, TRUE), (METRICS_TOLD, METRICS_TRUE)] {
        assert_eq!(
            all.reader.text(told).await,
            all.reader.text(truth).await,
            "its own changes"
        );
    }
    assert_ne!(all.reader.text(TOLD).await, before);
    all.reader.sql("rollback").await;
    assert_eq!(all.compare("its own rollback").await, before);
    all.db.remove().await;
}

#[tokio::test]
async fn statistics_follow_prepared_transactions() {
    let all = Sessions::new("exact_prepared").await;
    for end in ["rollback", "commit"] {
        let before = all.compare("before").await;
        let prepared = format!("begin; {EVENTS}; prepare transaction 'exact'");
        assert_eq!(all.write(&prepared).await, before);
        // Events of later transactions do not make those of the prepared one known.
        let told = all.write(EVENTS).await;
        let ended = all.write(&format!("{end} prepared 'exact'")).await;
        assert_eq!(ended != told, end == "commit");
    }
    all.db.remove().await;
}

#[tokio::test]
async fn an_older_snapshot_shows_what_it_showed() {
    let all = Sessions::new("exact_snapshots").await;
    let exporter = all.db.connect().await;
    exporter
        .sql("begin transaction isolation level repeatable read")
        .await;
    let snapshot = exporter.text("select pg_export_snapshot()").await;
    let before = exporter.text(TOLD).await;
    let age = exporter
        .text("select count(*) from fetchq.counter_tail")
        .await;
    // The reader sees events that the snapshot does not show, and not those that are removed.
    for what in [
        EVENTS,
        "select fetchq.doc_pick('a', 0, 2000, '1 hour')",
        "select fetchq.metric_log_pack()",
        EVENTS,
        "delete from fetchq.counter_log where queue_id = (select id from fetchq.queues where name = 'b')",
        "select fetchq.metric_log_pack()",
        EVENTS,
        "select fetchq.metric_reset('a')",
    ] {
        let now = all.write(what).await;
        assert_ne!(now, before, "{what}");
        let told = compare(&all.reader, Some(&snapshot), what).await;
        assert_eq!(told, before, "the older snapshot after: {what}");
        assert_eq!(exporter.text(TOLD).await, before, "the exporter: {what}");
        assert_eq!(all.compare("the newer one again").await, now, "{what}");
    }
    assert_eq!(
        exporter
            .text("select count(*) from fetchq.counter_tail")
            .await,
        age
    );
    exporter.sql("commit").await;
    all.compare("after it").await;
    all.db.remove().await;
}

#[tokio::test]
async fn statistics_follow_packs_and_removals() {
    let all = Sessions::new("exact_packs").await;
    let before = all.compare("before").await;
    // A pack changes where the events are, and nothing else, also while it is not committed and when
    // it is undone. The first ones mark a segment and truncate it, and those of few events delete rows.
    for round in 0..4 {
        for end in ["rollback", "commit"] {
            all.writer
                .sql("begin; select fetchq.metric_log_pack()")
                .await;
            let what = format!("pack {round}, {end}");
            let own = all.writer.text(TOLD).await;
            assert_eq!(own, all.writer.text(TRUE).await, "{what}");
            let told = all.compare(&what).await;
            assert_eq!(all.write(end).await, told, "{what}");
        }
        assert_eq!(all.compare("packed").await == before, round == 0);
        // The next segment, or the same one again with another file.
        all.write("select fetchq.metric_log_pack()").await;
        all.write("select fetchq.metric_log_pack()").await;
        all.write(match round {
            0 | 1 => EVENTS,
            _ => "select fetchq.doc_append('a', '{}')",
        })
        .await;
    }
    all.write(EVENTS).await;
    // Events that are removed by hand.
    let remove = "delete from fetchq.counter_log where n is null and queue_id % 2 = 0";
    let told = all.compare("before it").await;
    assert_eq!(all.write(&format!("begin; {remove}")).await, told);
    assert_eq!(all.write("rollback").await, told);
    all.write(remove).await;
    all.write("vacuum fetchq.counter_log_1, fetchq.counter_log_2, fetchq.counter_log_3")
        .await;
    all.write(EVENTS).await;
    all.write("vacuum (freeze) fetchq.counter_log_1, fetchq.counter_log_2, fetchq.counter_log_3")
        .await;
    all.write("truncate fetchq.counter_log").await;
    all.write(EVENTS).await;
    all.db.remove().await;
}

#[tokio::test]
async fn statistics_follow_resets_and_queues_that_come_and_go() {
    let all = Sessions::new("exact_queues").await;
    for what in [
        "select fetchq.metric_reset('a')",
        EVENTS,
        "select fetchq.queue_truncate('b', true)",
        EVENTS,
        "select fetchq.queue_drop('a')",
        "select fetchq.queue_create('a')",
        EVENTS,
    ] {
        let before = all.compare(what).await;
        assert_eq!(all.write(&format!("begin; {what}")).await, before, "{what}");
        let own = all.writer.text(TOLD).await;
        assert_eq!(own, all.writer.text(TRUE).await, "{what}");
        assert_eq!(all.write("rollback").await, before, "{what}");
        all.write(what).await;
    }
    // The log of another extension in the same database.
    all.write("drop extension fetchq cascade; drop schema if exists fetchq_data cascade; create extension fetchq; select fetchq.queue_create('a'), fetchq.queue_create('b')")
        .await;
    assert_eq!(all.write(EVENTS).await, "a: 3000 0 0 0, b: 3000 0 0 0");
    all.db.remove().await;
}

/// What a session remembers of the tables of queues is read again when their definition has changed.
#[tokio::test]
async fn reports_follow_the_definition_of_tables() {
    let all = Sessions::new("exact_tables").await;
    const READY: &str = "select string_agg(format('%s %s', queue, coalesce((ready > 0)::text, 'unknown')), ', ' order by queue) from fetchq.queue_stats()";
    const BACKLOG: &str = "select detail from fetchq.status() where component = 'backlog'";
    let on = "on fetchq_data.a__docs (version, priority desc, next_iteration, attempts, seq)";
    for (change, a) in [
        ("select", "true"),
        ("drop index fetchq_data.a__docs_pick_idx", "unknown"),
        (
            &format!("create index a__docs_pick_idx {on} where status = 1"),
            "unknown",
        ),
        (
            &format!(
                "drop index fetchq_data.a__docs_pick_idx; create index a__docs_pick_idx {on} where status = 1 and lock_upgrade is null and version > 7"
            ),
            "unknown",
        ),
        (
            &format!(
                "drop index fetchq_data.a__docs_pick_idx; create index a__docs_pick_idx {on} where status = 1 and lock_upgrade is null"
            ),
            "true",
        ),
        ("reindex table fetchq_data.a__docs", "true"),
        ("vacuum full fetchq_data.a__docs", "true"),
        ("cluster fetchq_data.a__docs using a__docs_pkey", "true"),
        (
            "alter table fetchq_data.a__docs rename to x; alter table fetchq_data.b__docs rename to a__docs; alter table fetchq_data.x rename to b__docs",
            "true",
        ),
    ] {
        all.writer.sql(change).await;
        for reader in [&all.reader, &all.db.connect().await] {
            assert_eq!(
                reader.text(READY).await,
                format!("a {a}, b true"),
                "{change}"
            );
            let backlog = reader.text(BACKLOG).await;
            assert!(backlog.starts_with("6000 pending"), "{change}: {backlog}");
        }
    }
    // Documents that were loaded without a note, before the ready floors of the session's last look.
    let late = "select extract(epoch from oldest_ready) > 1e6 from fetchq.queue_stats('a')";
    all.writer
        .sql(
            "select fetchq.doc_pick('a', 0, 100, '1 hour'), fetchq.doc_pick('b', 0, 100, '1 hour')",
        )
        .await;
    assert_eq!(all.reader.text(late).await, "f");
    all.writer
        .sql(
            "begin;
             alter table fetchq_data.a__docs disable trigger fetchq_ready;
             insert into fetchq_data.a__docs (subject, status, next_iteration) values ('loaded', 1, now() - interval '1 year');
             alter table fetchq_data.a__docs enable always trigger fetchq_ready;
             commit",
        )
        .await;
    assert_eq!(all.reader.text(late).await, "t");
    all.db.remove().await;
}

/// A report does not wait for what has locked the counters.
#[tokio::test]
async fn a_backlog_is_unknown_while_the_counters_are_locked() {
    let all = Sessions::new("exact_locked").await;
    const BACKLOG: &str =
        "select state, detail, hint is not null from fetchq.status() where component = 'backlog'";
    all.reader.sql("set lock_timeout = '1 ms'").await;
    let known = all.reader.rows(BACKLOG).await;
    assert!(known[0].starts_with("waiting|6000 pending"), "{known:?}");
    all.writer
        .sql("begin; lock table fetchq.metrics in access exclusive mode")
        .await;
    let found = all.reader.rows(BACKLOG).await;
    assert!(found[0].contains("|not known"), "{found:?}");
    assert!(found[0].ends_with("|t"), "{found:?}");
    all.writer.sql("rollback").await;
    assert_eq!(all.reader.rows(BACKLOG).await, known);
    all.db.remove().await;
}

/// With predicate locks, and where a table of the log was altered.
#[tokio::test]
async fn statistics_are_exact_in_serializable_transactions_and_altered_logs() {
    let all = Sessions::new("exact_not").await;
    all.reader
        .sql("set default_transaction_isolation = serializable")
        .await;
    all.write(EVENTS).await;
    let told = all.compare("serializable").await;
    assert_eq!(told, "a: 6000 0 0 0, b: 6000 0 0 0");
    // Its reads conflict with writes as those of any statement do.
    all.reader.sql("begin").await;
    all.reader.text(TOLD).await;
    let locks = "select count(*) > 0 from pg_locks l where l.mode = 'SIReadLock' and l.relation::regclass::text like 'fetchq.counter_log_%'";
    assert_eq!(all.writer.text(locks).await, "t");
    all.reader
        .sql("rollback; reset default_transaction_isolation")
        .await;
    for change in [
        "alter table fetchq.counter_log_1 set unlogged",
        "alter table fetchq.counter_log_1 set logged",
        "alter table fetchq.counter_log_1 add column note text default 'none'",
    ] {
        all.write(change).await;
        let told = all.compare(change).await;
        assert_eq!(told, "a: 6000 0 0 0, b: 6000 0 0 0");
        all.write("begin; delete from fetchq.counter_log_1").await;
        all.write("rollback").await;
    }
    all.db.remove().await;
}
