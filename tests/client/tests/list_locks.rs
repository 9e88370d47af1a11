//! A worker settles a list while a producer that keeps to the order of the keys adds documents of the
//! same keys: whoever comes second waits, and neither fails with a deadlock.

use fetchq_client_tests::{Database, Server, Session, wait_until};

/// Calls that settle the documents d1 and d2, which are leased.
const LISTS: [&str; 5] = [
    r#"docs_settle('q', '[{"subject": "d1", "action": "complete"}, {"subject": "d2", "action": "drop"}]')"#,
    r#"docs_next('q', '[{"subject": "d1", "action": "complete"}, {"subject": "d2", "action": "complete"}]')"#,
    "doc_complete_many('q', array['d1', 'd2'])",
    "doc_drop_many('q', array['d1', 'd2'])",
    "doc_reschedule_many('q', array['d1', 'd2'], '2099-01-01')",
];

/// Settles d1, of the key `of_first`, and d2, of the key `of_second`, while a producer adds documents
/// of both keys, first of the one that comes first in the order of bytes.
async fn settles_beside_a_producer(
    db: &Database,
    settings: &str,
    (of_first, of_second): (&str, &str),
) {
    let (producer, worker, observer) = (db.connect().await, db.connect().await, db.connect().await);
    let mut keys = [of_first, of_second];
    keys.sort_unstable();
    // The producer waits last, and so it is the one to look for a deadlock.
    producer.sql("set deadlock_timeout = '10ms'").await;
    worker.sql("set deadlock_timeout = '60s'").await;
    let pid = worker.text("select pg_backend_pid()").await;
    for list in LISTS {
        observer
            .sql(&format!(
                "select fetchq.queue_create('q', '{settings}');
                 select fetchq.doc_put('q', 'd1', ordering_key => '{of_first}'),
                    fetchq.doc_put('q', 'd2', ordering_key => '{of_second}')"
            ))
            .await;
        let leased = "select subject from fetchq.doc_pick('q', 0, 2, '1 hour') order by subject";
        assert_eq!(observer.column(leased).await, ["d1", "d2"]);
        let put = |subject, key| {
            format!("select fetchq.doc_put('q', '{subject}', ordering_key => '{key}')")
        };
        producer.sql("begin").await;
        producer.sql(&put("n1", keys[0])).await;
        let settle = format!("select * from fetchq.{list}");
        let settles = worker.state(&settle);
        let adds = async {
            waits_for_a_lock(&observer, &pid).await;
            let state = producer.state(&put("n2", keys[1])).await;
            let end = if state.is_empty() {
                "commit"
            } else {
                "rollback"
            };
            producer.sql(end).await;
            state
        };
        let (settled, added) = tokio::join!(settles, adds);
        assert_eq!(
            (settled.as_str(), added.as_str()),
            ("", ""),
            "{settings} {list}"
        );
        let active =
            "select subject from fetchq_data.q__docs where status = 2 and subject like 'd%'";
        assert!(observer.column(active).await.is_empty(), "{list}");
        observer.sql("select fetchq.queue_drop('q')").await;
    }
}

async fn waits_for_a_lock(observer: &Session, pid: &str) {
    let is_waiting =
        format!("select wait_event_type = 'Lock' from pg_stat_activity where pid = {pid}");
    wait_until("the worker waits for the producer", async || {
        observer.text(&is_waiting).await == "t"
    })
    .await;
}

#[tokio::test]
async fn a_list_that_is_settled_locks_the_keys_in_their_order() {
    let db = Server::of_suite().database("list_locks").await;
    for settings in [r#"{"ordered": true}"#, r#"{"max_active_per_key": 2}"#] {
        settles_beside_a_producer(&db, settings, ("y", "x")).await;
        settles_beside_a_producer(&db, settings, ("a", "B")).await;
    }
    db.remove().await;
}

/// In such a database, "a" comes before "B".
#[tokio::test]
async fn the_order_of_the_keys_is_not_that_of_the_collation_of_the_database() {
    let server = Server::of_suite();
    let admin = server.connect("postgres").await;
    // From PostgreSQL 16 on, a server built without ICU has a collation `unicode` of ICU, too.
    let has_locales = "select current_setting('server_version_num')::int >= 150000
        and exists (select from pg_collation where collname = 'und-x-icu')";
    if admin.text(has_locales).await != "t" {
        eprintln!("not run: this server has no databases with a collation of ICU");
        return;
    }
    let db = server.empty_database("list_locks_icu").await;
    admin.sql(&format!("drop database {}", db.name)).await;
    let locale = "locale_provider icu icu_locale 'en-US' locale 'C'";
    let create = format!("create database {} template template0 {locale}", db.name);
    admin.sql(&create).await;
    let session = db.connect().await;
    session.sql("create extension fetchq").await;
    assert_eq!(session.text("select 'a' < 'B'").await, "t");
    drop(session);
    for settings in [r#"{"max_active_per_key": 2}"#, r#"{"ordered": true}"#] {
        settles_beside_a_producer(&db, settings, ("a", "B")).await;
        settles_beside_a_producer(&db, settings, ("B", "a")).await;
    }
    db.remove().await;
}
