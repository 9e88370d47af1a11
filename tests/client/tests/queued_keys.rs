//! What was put on a leased document has an ordering key of its own. Whoever settles the document, takes its
//! lease back or puts on it locks documents and keys in one order: no two of them fail with a deadlock, and
//! maintenance waits for nobody.

use std::cell::OnceCell;

use fetchq_client_tests::{Database, Server, Session, wait_until};

const SETTINGS: [&str; 2] = [r#"{"ordered": true}"#, r#"{"max_active_per_key": 2}"#];

/// A document with the payload `waits` is added only when nobody has the advisory lock.
const WAITS: &str = "create or replace function waits() returns trigger language plpgsql as $$
     begin perform pg_advisory_xact_lock_shared(1); return new; end $$;
     create trigger waits before insert on fetchq_data.q__docs
     for each row when (new.payload ? 'waits') execute function waits()";

/// Sessions that do something at once, and one that looks.
struct Scene {
    one: Session,
    other: Session,
    observer: Session,
}

impl Scene {
    async fn of(db: &Database) -> Self {
        let scene = Self {
            one: db.connect().await,
            other: db.connect().await,
            observer: db.connect().await,
        };
        for session in [&scene.one, &scene.other] {
            session.sql("set deadlock_timeout = '10ms'").await;
        }
        scene
    }

    /// Creates the queue, and leases documents: subject, key.
    async fn lease(&self, settings: &str, docs: &[(&str, &str)]) {
        let create = format!("select fetchq.queue_create('q', '{settings}'); {WAITS}");
        self.observer.sql(&create).await;
        for (subject, key) in docs {
            let put = format!("select fetchq.doc_put('q', '{subject}', ordering_key => '{key}')");
            self.observer.sql(&put).await;
        }
        let lease = format!(
            "select subject from fetchq.doc_lease('q', {}, '1 hour')",
            docs.len()
        );
        assert_eq!(self.observer.column(&lease).await.len(), docs.len());
    }

    /// Puts on a leased document, with another key.
    async fn queue(&self, subject: &str, key: &str, payload: &str) {
        let put = format!(
            "select fetchq.doc_put('q', '{subject}', '{payload}', ordering_key => '{key}', mode => 'replace')"
        );
        assert_eq!(self.observer.text(&put).await, "queued");
    }

    /// A call with the lease numbers of its documents, in the place of `LEASE(subject)`.
    async fn with_leases(&self, call: &str) -> String {
        let mut call = call.to_owned();
        let leases = "select subject || ' ' || lease from fetchq_data.q__docs where status = 2";
        for found in self.observer.column(leases).await {
            let (subject, lease) = found.split_once(' ').expect("two values");
            call = call.replace(&format!("LEASE({subject})"), lease);
        }
        format!("select * from fetchq.{call}")
    }

    /// Waits until a session waits for a lock. Fails if its statement ends instead: `ended` is its SQLSTATE.
    async fn waits(&self, pid: &str, statement: &str, ended: &OnceCell<String>) {
        let is_waiting =
            format!("select wait_event_type = 'Lock' from pg_stat_activity where pid = {pid}");
        wait_until(&format!("a lock is waited for: {statement}"), async || {
            assert_eq!(ended.get(), None, "it did not wait: {statement}");
            self.observer.text(&is_waiting).await == "t"
        })
        .await;
    }

    /// Runs both statements: the second one when the first one waits, and `release` when both do.
    async fn at_once(&self, first: &str, second: &str, release: &str) -> (String, String) {
        let pid = "select pg_backend_pid()";
        let (one, other) = (self.one.text(pid).await, self.other.text(pid).await);
        let ended = [OnceCell::new(), OnceCell::new()];
        let runs = async |session: &Session, statement: &str, at: usize| {
            let state = session.state(statement).await;
            ended[at].set(state).expect("it ends once");
        };
        let then = async {
            self.waits(&one, first, &ended[0]).await;
            let releases = async {
                self.waits(&other, second, &ended[1]).await;
                self.observer.sql(release).await;
            };
            tokio::join!(runs(&self.other, second, 1), releases);
        };
        tokio::join!(runs(&self.one, first, 0), then);
        let [one, other] = ended.map(|ended| ended.into_inner().unwrap_or_default());
        (one, other)
    }

    /// No key is left that has no document, and each document that is ready can be leased.
    async fn is_left_tidy(&self, subjects: &str) {
        let empty = "select count(*) from fetchq.ordering_keys where cardinality(unblocked) = 0";
        assert_eq!(self.observer.text(empty).await, "0");
        let leased =
            "select string_agg(subject, ' ' order by subject) from fetchq.doc_lease('q', 9)";
        assert_eq!(self.observer.text(leased).await, subjects);
        self.observer.sql("select fetchq.queue_drop('q')").await;
    }
}

#[tokio::test]
async fn two_who_settle_lock_the_keys_of_what_is_queued_in_one_order() {
    let db = Server::of_suite().database("queued_keys_settle").await;
    let scene = Scene::of(&db).await;
    for settings in SETTINGS {
        for calls in [
            [
                "doc_complete('q', 'd1', lease => LEASE(d1))",
                "doc_complete('q', 'd2', lease => LEASE(d2))",
            ],
            [
                "doc_drop('q', 'd1', lease => LEASE(d1))",
                r#"docs_settle('q', '[{"subject": "d2", "lease": LEASE(d2), "action": "drop"}]')"#,
            ],
            [
                r#"docs_drop('q', '{"subject": "d1", "status": "active"}')"#,
                "doc_drop('q', 'd2', lease => LEASE(d2))",
            ],
        ] {
            scene.lease(settings, &[("d1", "b"), ("d2", "a")]).await;
            scene.queue("d1", "a", r#"{"waits": 1}"#).await;
            scene.queue("d2", "b", r#"{"waits": 1}"#).await;
            scene.observer.sql("select pg_advisory_lock(1)").await;
            let first = scene.with_leases(calls[0]).await;
            let second = scene.with_leases(calls[1]).await;
            let release = "select pg_advisory_unlock(1)";
            let done = scene.at_once(&first, &second, release).await;
            assert_eq!(done, (String::new(), String::new()), "{settings} {calls:?}");
            scene.is_left_tidy("d1 d2").await;
        }
    }
    db.remove().await;
}

#[tokio::test]
async fn lists_lock_new_keys_of_what_is_queued_in_their_order() {
    let db = Server::of_suite().database("queued_keys_lists").await;
    let scene = Scene::of(&db).await;
    for settings in SETTINGS {
        let docs = [("d1", "k1"), ("d2", "k2"), ("d3", "k3"), ("d4", "k4")];
        scene.lease(settings, &docs).await;
        // Neither m nor n is there yet.
        scene.queue("d1", "m", "{}").await;
        scene.queue("d2", "n", r#"{"waits": 1}"#).await;
        scene.queue("d3", "n", "{}").await;
        scene.queue("d4", "m", r#"{"waits": 1}"#).await;
        scene.observer.sql("select pg_advisory_lock(1)").await;
        let list = |one, other| {
            format!(
                r#"docs_settle('q', '[{{"subject": "{one}", "lease": LEASE({one}), "action": "complete"}},
                    {{"subject": "{other}", "lease": LEASE({other}), "action": "complete"}}]')"#
            )
        };
        let first = scene.with_leases(&list("d1", "d2")).await;
        let second = scene.with_leases(&list("d3", "d4")).await;
        let done = scene
            .at_once(&first, &second, "select pg_advisory_unlock(1)")
            .await;
        assert_eq!(done, (String::new(), String::new()), "{settings}");
        let expected = match settings.contains("ordered") {
            true => "d1 d2",
            false => "d1 d2 d3 d4",
        };
        scene.is_left_tidy(expected).await;
    }
    db.remove().await;
}

/// A list of puts locks the documents that are leased as whoever settles them does.
#[tokio::test]
async fn a_list_of_puts_locks_leased_documents_as_their_worker_does() {
    let db = Server::of_suite().database("queued_keys_puts").await;
    let scene = Scene::of(&db).await;
    for settings in SETTINGS {
        scene.lease(settings, &[("d1", "b"), ("d2", "a")]).await;
        let settle = r#"docs_settle('q', '[{"subject": "d1", "lease": LEASE(d1), "action": "complete"},
            {"subject": "d2", "lease": LEASE(d2), "action": "complete"}]')"#;
        let settle = scene.with_leases(settle).await;
        let put = r#"select * from fetchq.doc_put_many('q', '[{"subject": "d2", "ordering_key": "a"},
            {"subject": "d1", "ordering_key": "b"}]', 'replace')"#;
        // Both wait for d1; the worker has come first.
        let lock = "begin; select from fetchq_data.q__docs where subject = 'd1' for update";
        scene.observer.sql(lock).await;
        let done = scene.at_once(&settle, put, "commit").await;
        assert_eq!(done, (String::new(), String::new()), "{settings}");
        scene.is_left_tidy("d1 d2").await;
    }
    db.remove().await;
}

/// Maintenance leaves documents leased while a producer has the key of what is queued on them.
#[tokio::test]
async fn maintenance_does_not_wait_for_the_keys_of_what_is_queued() {
    let db = Server::of_suite().database("queued_keys_maintenance").await;
    let scene = Scene::of(&db).await;
    let (producer, maintenance) = (&scene.one, &scene.other);
    maintenance.sql("set lock_timeout = '10s'").await;
    for settings in SETTINGS {
        for attempts in [1, 2] {
            // Of a lease that has expired, and of a call that is over.
            for binding in ["off", "call"] {
                for is_new in [false, true] {
                    let what = format!("{settings} {attempts} {binding} {is_new}");
                    scene
                        .observer
                        .sql(&format!("select fetchq.queue_create('q', '{settings}')"))
                        .await;
                    let puts = format!(
                        "select fetchq.doc_put('q', 'd1', ordering_key => 'k', max_attempts => {attempts}), fetchq.doc_put('q', 'd2', ordering_key => 'j', max_attempts => {attempts})"
                    );
                    scene.observer.sql(&puts).await;
                    let lease = format!(
                        "select subject from fetchq.doc_lease('q', 2, '1 hour', worker => 'w', binding => '{binding}')"
                    );
                    assert_eq!(scene.observer.column(&lease).await.len(), 2, "{what}");
                    scene.queue("d1", "x", r#"{"again": 1}"#).await;
                    if !is_new {
                        let put = "select fetchq.doc_put('q', 'of_x', ordering_key => 'x')";
                        scene.observer.sql(put).await;
                    }
                    if binding == "off" {
                        let expire = "update fetchq_data.q__docs set next_iteration = now() - interval '1 s' where status = 2";
                        scene.observer.sql(expire).await;
                    }
                    producer.sql("begin").await;
                    producer
                        .sql("select fetchq.doc_put('q', 'n1', ordering_key => 'x')")
                        .await;
                    let run = "select fetchq.mnt_run('q', 10)";
                    assert_eq!(maintenance.state(run).await, "", "{what}");
                    let status = "select status from fetchq_data.q__docs where subject = 'd1'";
                    assert_eq!(scene.observer.text(status).await, "2", "{what}");
                    let other = "select status from fetchq_data.q__docs where subject = 'd2'";
                    assert_ne!(scene.observer.text(other).await, "2", "{what}");
                    let put = "select fetchq.doc_put('q', 'n2', ordering_key => 'k')";
                    assert_eq!(producer.state(put).await, "", "{what}");
                    producer.sql("commit").await;
                    assert_eq!(maintenance.state(run).await, "", "{what}");
                    let again = "select status in (0, 1) and payload ? 'again' and queued is null and ordering_key = 'x' from fetchq_data.q__docs where subject = 'd1'";
                    assert_eq!(scene.observer.text(again).await, "t", "{what}");
                    let empty = "select count(*) from fetchq.ordering_keys where cardinality(unblocked) = 0";
                    assert_eq!(scene.observer.text(empty).await, "0", "{what}");
                    scene.observer.sql("select fetchq.queue_drop('q')").await;
                }
            }
        }
    }
    db.remove().await;
}
