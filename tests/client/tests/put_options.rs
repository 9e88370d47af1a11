//! Headers, from the producer to every place where a document can be, and delays.

use fetchq_client_tests::{Server, Session, counters_are_exact, wait_until};

/// Adds three documents with headers, in every way: `a`, `b`, and one with a generated subject.
/// Returns their subjects.
async fn add(session: &Session) -> Vec<String> {
    session
        .sql("select fetchq.doc_put('q', 'a', headers => '{\"of\": \"a\"}')")
        .await;
    session
        .sql("select fetchq.doc_put_many('q', '[{\"subject\": \"b\", \"headers\": {\"of\": \"b\"}}]')")
        .await;
    let appended = "select fetchq.doc_append('q', '{}', headers => '{\"of\": \"c\"}')";
    vec!["a".into(), "b".into(), session.text(appended).await]
}

/// Checks that the documents of a query have the headers that `add` gave them. The query has a
/// column with the headers.
async fn headers_are(session: &Session, what: &str, from: &str) {
    let sql = format!("select headers ->> 'of' from {from} order by 1");
    assert_eq!(session.column(&sql).await, ["a", "b", "c"], "{what}");
}

/// Settles the leased documents of `q` one by one, and in a list.
async fn settle(session: &Session, lease: &str, one: &str, many: &str) {
    let subjects = session
        .column("select subject from fetchq_data.q__docs where status = 2 order by seq")
        .await;
    let call = |subject: &String| one.replace("{s}", subject).replace("{l}", lease);
    session.sql(&call(&subjects[0])).await;
    if many.is_empty() {
        session.sql(&call(&subjects[1])).await;
        session.sql(&call(&subjects[2])).await;
        return;
    }
    let list = subjects[1..].join(",");
    session
        .sql(&many.replace("{s}", &list).replace("{l}", lease))
        .await;
}

async fn lease(session: &Session) -> String {
    let sql = "create temp table leased as select * from fetchq.doc_lease('q', 10)";
    session.sql("drop table if exists leased").await;
    session.sql(sql).await;
    headers_are(session, "doc_lease", "leased").await;
    session.text("select max(lease) from leased").await
}

const START: &str = "
    select fetchq.queue_drop(name) from fetchq.queues;
    select fetchq.queue_create(name) from unnest('{q,letters,other}'::text[]) name";

#[tokio::test]
async fn headers_go_wherever_the_document_goes() {
    let db = Server::of_suite().database("put_headers").await;
    let mut session = db.connect().await;
    session.sql("set fetchq.strict = on").await;
    for direct in ["on", "off"] {
        session
            .sql(&format!("set fetchq.direct = {direct}; {START}"))
            .await;
        add(&session).await;
        headers_are(&session, "docs_list", "fetchq.docs_list('q')").await;

        // Retries, of each kind.
        let number = lease(&session).await;
        let reject = "select fetchq.doc_reject('q', '{s}', 'no', lease => {l}, delay => '0')";
        settle(&session, &number, reject, "").await;
        let number = lease(&session).await;
        let again = "select fetchq.doc_reschedule('q', '{s}', now(), lease => {l})";
        let many = "select fetchq.doc_reschedule_many('q', '{{s}}', now(), lease => {l})";
        settle(&session, &number, again, many).await;
        lease(&session).await;
        session
            .sql("update fetchq_data.q__docs set next_iteration = now() - interval '1 s' where status = 2; select fetchq.mnt_run('q', 100)")
            .await;
        let retry = "select fetchq.docs_retry('q', '{\"status\": \"pending\"}')";
        session.sql(retry).await;

        // Killed, redriven, completed, revived.
        session
            .sql("update fetchq_data.q__docs set next_iteration = now(), attempts = 0")
            .await;
        let number = lease(&session).await;
        settle(
            &session,
            &number,
            "select fetchq.doc_kill('q', '{s}', lease => {l})",
            "",
        )
        .await;
        session.sql("select fetchq.queue_redrive('q')").await;
        let number = lease(&session).await;
        let complete = "select fetchq.doc_complete('q', '{s}', lease => {l})";
        let many = "select fetchq.doc_complete_many('q', '{{s}}', lease => {l})";
        settle(&session, &number, complete, many).await;
        session
            .sql("select fetchq.doc_revive('q', subject) from fetchq_data.q__docs")
            .await;

        // Into dead letters, leased there, and back; moved, and back.
        session
            .sql("select fetchq.queue_configure('q', '{\"dead_letter\": \"letters\", \"max_attempts\": 1}')")
            .await;
        let number = lease(&session).await;
        let kill = "select fetchq.doc_kill('q', '{s}', lease => {l}, message => 'no')";
        settle(&session, &number, kill, "").await;
        let letters = "(select * from fetchq.doc_lease('letters', 10, '0')) d";
        headers_are(&session, "dead letters", letters).await;
        session
            .sql("select fetchq.mnt_run('letters', 100); select fetchq.queue_redrive('q')")
            .await;
        headers_are(&session, "redriven", "fetchq.docs_list('q')").await;
        session
            .sql("select fetchq.docs_move('q', 'other', '{\"all\": true}')")
            .await;
        headers_are(&session, "moved", "fetchq.docs_list('other')").await;
        let any = "(select * from fetchq.doc_lease_any('{letters,other}', 10, '0')) d";
        headers_are(&session, "doc_lease_any", any).await;
        session
            .sql("select fetchq.mnt_run('other', 100); select fetchq.docs_move('other', 'q', '{\"all\": true}')")
            .await;

        // Into the history, each in another way.
        session
            .sql("select fetchq.queue_configure('q', '{\"dead_letter\": null, \"max_attempts\": null, \"history\": {\"completed\": \"1 day\", \"killed\": \"1 day\", \"dropped\": \"1 day\"}}')")
            .await;
        let number = lease(&session).await;
        let subjects = session.column("select subject from leased").await;
        session
            .sql(&format!(
                "select fetchq.doc_complete('q', '{}', lease => {number}), fetchq.doc_drop('q', '{}', {number}), fetchq.doc_kill('q', '{}', lease => {number})",
                subjects[0], subjects[1], subjects[2]
            ))
            .await;
        headers_are(&session, "history", "fetchq.history").await;
        let got = subjects
            .iter()
            .map(|s| format!("select * from fetchq.doc_get('q', '{s}')"));
        let got = got.collect::<Vec<_>>().join(" union all ");
        headers_are(&session, "doc_get", &format!("({got}) d")).await;
        for queue in ["q", "letters", "other"] {
            counters_are_exact(&mut session, queue).await;
        }
    }
    db.remove().await;
}

#[tokio::test]
async fn a_document_with_a_delay_is_leased_when_it_is_due() {
    let db = Server::of_suite().database("put_delay").await;
    let mut session = db.connect().await;
    for direct in ["on", "off"] {
        session
            .sql(&format!("set fetchq.direct = {direct}; {START}"))
            .await;
        session
            .sql(
                "select fetchq.doc_put('q', 'put', delay => '2 s'), fetchq.doc_append('q', '{}', delay => '2 s');
                 select fetchq.doc_put_many('q', '[{\"subject\": \"listed\", \"delay\": \"2 s\"}, {\"subject\": \"later\", \"delay\": \"1 hour\"}]')",
            )
            .await;
        let delays =
            "select distinct next_iteration - created_at from fetchq_data.q__docs order by 1";
        assert_eq!(session.column(delays).await, ["00:00:02", "01:00:00"]);
        let mut leased = Vec::new();
        wait_until("three documents are due", async || {
            session.sql("select fetchq.mnt_run('q', 100)").await;
            let more = "select picked_at >= due_at from fetchq.doc_lease('q', 10)";
            leased.extend(session.column(more).await);
            leased.len() == 3
        })
        .await;
        assert_eq!(leased, ["t", "t", "t"], "none before it is due");
        let planned = "select subject from fetchq_data.q__docs where status = 0";
        assert_eq!(session.column(planned).await, ["later"]);
        counters_are_exact(&mut session, "q").await;
    }
    db.remove().await;
}

#[tokio::test]
async fn drivers_send_delays_and_headers_without_types() {
    let db = Server::of_suite().database("put_untyped").await;
    let session = db.connect().await;
    session.sql(START).await;
    for call in [
        "fetchq.doc_put(queue => $1, subject => $2, delay => $3, headers => $4)",
        "fetchq.doc_put($1, $2, null, null, null, null, null, null, null, $3, $4)",
        "fetchq.doc_append(queue => $1, payload => '{}', ordering_key => $2, delay => $3, headers => $4)",
        "fetchq.doc_append($1, '{}', null, null, $2, null, $3, $4)",
    ] {
        session
            .sql(&format!(
                "prepare put as select {call}; execute put('q', 's' || clock_timestamp(), '5 minutes', '{{\"n\": 1}}');
                 execute put('q', 't' || clock_timestamp(), null, null); deallocate put"
            ))
            .await;
    }
    let sql = "select next_iteration - created_at as delay, headers, count(*) from fetchq_data.q__docs group by 1, 2 order by 1";
    assert_eq!(
        session.rows(sql).await,
        ["00:00:00||4", "00:05:00|{\"n\": 1}|4"]
    );
    db.remove().await;
}

#[tokio::test]
async fn a_producer_replaces_and_merges_headers_and_does_not_read_them() {
    let db = Server::of_suite().database("put_producer").await;
    let session = db.connect().await;
    session.sql(START).await;
    session
        .sql(
            "drop role if exists put_producer; create role put_producer;
             select fetchq.queue_grant('q', 'put_producer', 'producer')",
        )
        .await;
    for direct in ["on", "off"] {
        session
            .sql(&format!(
                "reset role; set fetchq.direct = {direct}; select fetchq.queue_truncate('q');
                 select fetchq.doc_put('q', 's', '{{}}', '2050-01-01', headers => '{{\"a\": 1}}');
                 set role put_producer"
            ))
            .await;
        for (mode, result) in [
            ("ignore", "ignored"),
            ("replace", "updated"),
            ("debounce", "updated"),
            ("earliest", "ignored"),
            ("merge", "updated"),
        ] {
            let put = format!(
                "select fetchq.doc_put('q', 's', delay => '1 hour', mode => '{mode}', headers => '{{\"b\": \"{mode}\"}}')"
            );
            assert_eq!(session.text(&put).await, result, "{mode}");
            session
                .sql("select fetchq.doc_append('q', '{}', headers => '{}')")
                .await;
        }
        let read = "select headers from fetchq_data.q__docs";
        assert_eq!(session.state(read).await, "42501");
        session.sql("reset role").await;
        let kept = "select headers from fetchq_data.q__docs where subject = 's'";
        assert_eq!(session.text(kept).await, "{\"b\": \"merge\"}");
    }
    session
        .sql("drop owned by put_producer; drop role put_producer")
        .await;
    db.remove().await;
}
