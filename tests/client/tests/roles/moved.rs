//! Documents that a role has written into a queue of its own, and moves to one of another role.

use super::*;

/// Rows that no call of fetchq writes, as the manager of a queue can write them by plain SQL.
const FORGE: &str = "insert into fetchq_data.mal__docs (subject, status, next_iteration, result, origin, iterations, last_iteration,
        max_attempts, created_at, headers, worker_session, lease, last_error, attempts, due_at, picked_at, progress, ordering_key)
    select subject, status, next_iteration, '\"forged\"', '{\"queue\": \"orders\", \"subject\": \"forged\"}', 9223372036854775807, now(),
        -1, '-infinity', '\"h\"', 1, 1, 'forged', 2147483647, now(), now(), '\"forged\"', repeat('k', 9000)
    from (values ('paid', 3, now()), ('dead', -1, now()), ('due', 1, now()), ('later', 1, 'infinity'), ('planned', 0, now()),
        ('odd', -7, now())) d (subject, status, next_iteration)";

async fn forged(name: &str) -> (Database, Session, Session, Session) {
    let (db, admin, a, b) = applications(name).await;
    a.sql(
        "select fetchq.queue_create('orders'), fetchq.queue_create('letters');
         select fetchq.queue_configure('orders', '{\"dead_letter\": \"letters\"}');
         select fetchq.queue_grant('orders', 'fetchq_app_b', 'producer'), fetchq.queue_grant('letters', 'fetchq_app_b', 'producer')",
    )
    .await;
    b.sql(&format!("select fetchq.queue_create('mal'); {FORGE}"))
        .await;
    (db, admin, a, b)
}

fn moved(queue: &str) -> String {
    format!(
        "select subject || ' ' || status || ' ' || iterations || ' ' || attempts || ' ' || isfinite(created_at)
             || ' ' || length(ordering_key) || ' ' || num_nulls(result, origin, last_iteration, max_attempts, headers,
             worker_session, lease, last_error, due_at, picked_at, progress)
         from fetchq_data.{queue}__docs order by subject"
    )
}

/// What a producer could not have put does not get into the queue.
#[tokio::test]
async fn a_producer_moves_documents_as_if_it_put_them() {
    let (db, mut admin, a, b) = forged("moved_put").await;
    let all = "'{\"all\": true}'";
    let dry = format!("select fetchq.docs_move('mal', 'orders', {all}, dry_run => true)");
    assert_eq!(b.text(&dry).await, "3");
    let call = format!("select fetchq.docs_move('mal', 'orders', {all}, 2)");
    assert_eq!(b.text(&call).await, "2");
    let call = format!("select fetchq.docs_move('mal', 'letters', {all})");
    assert_eq!(b.text(&call).await, "1");
    let stay = "documents of queue \"mal\" that stay, because they are completed or killed and you do not manage queue \"letters\": 2";
    let notices = b.notices();
    assert!(notices.iter().any(|n| n.message() == stay), "{notices:?}");
    let left = "select subject from fetchq_data.mal__docs order by 1";
    assert_eq!(b.column(left).await, ["dead", "odd", "paid"]);
    let orders = ["due 1 0 0 true 255 11", "later 0 0 0 true 255 11"];
    assert_eq!(admin.column(&moved("orders")).await, orders);
    assert_eq!(
        admin.column(&moved("letters")).await,
        ["planned 1 0 0 true 255 11"]
    );
    // Nothing of it returns to a queue that it never was in.
    assert_eq!(a.text("select fetchq.queue_redrive('letters')").await, "0");
    assert_eq!(
        a.text("select count(*) from fetchq.doc_pop('orders', max_docs => 9)")
            .await,
        "1"
    );
    for queue in ["orders", "letters"] {
        counters_are_exact(&mut admin, queue).await;
    }
    drop((admin, a, b));
    db.remove().await;
}

/// A manager of both queues moves documents as they are, but for what would break the queue.
#[tokio::test]
async fn a_manager_moves_documents_as_they_are() {
    let (db, admin, a, b) = forged("moved_as_they_are").await;
    a.sql("select fetchq.queue_grant('orders', 'fetchq_app_b', 'manager')")
        .await;
    let call = "select fetchq.docs_move('mal', 'orders', '{\"all\": true}')";
    assert_eq!(b.text(call).await, "5");
    assert_eq!(
        admin.column(&moved("orders")).await,
        [
            "dead -1 9223372036854775807 0 true 255 2",
            "due 1 9223372036854775807 0 true 255 2",
            "later 1 9223372036854775807 0 true 255 2",
            "paid 3 9223372036854775807 0 true 255 2",
            "planned 0 9223372036854775807 0 true 255 2",
        ]
    );
    drop((admin, a, b));
    db.remove().await;
}

/// One document with the highest number of iterations does not fail the others of a batch.
#[tokio::test]
async fn iterations_end_at_their_highest_number() {
    let (db, admin, a, b) = applications("moved_iterations").await;
    let fill = "select fetchq.doc_put('top', n) from unnest('{a,b}'::text[]) n;
        update fetchq_data.top__docs set iterations = 9223372036854775807 where subject = 'a'";
    let pick = "select count(*) from fetchq.doc_pick('top', 2)";
    for (settings, picks, call) in [
        ("{}", true, "fetchq.doc_complete_many('top', '{a,b}')"),
        ("{}", true, "fetchq.doc_complete('top', 'a')"),
        (
            "{}",
            true,
            "fetchq.doc_reschedule('top', 'a', delay => '1 hour')",
        ),
        (
            "{}",
            true,
            "fetchq.doc_reschedule_many('top', '{a,b}', now())",
        ),
        ("{}", true, "fetchq.doc_reject('top', 'a', 'why', '{}')"),
        ("{}", true, "fetchq.doc_kill('top', 'a')"),
        (
            "{\"dead_letter\": \"letters\"}",
            true,
            "fetchq.doc_kill('top', 'a')",
        ),
        (
            "{}",
            true,
            "fetchq.docs_settle('top', '[{\"subject\": \"a\", \"action\": \"complete\"}, {\"subject\": \"b\", \"action\": \"complete\"}]')",
        ),
        (
            "{\"history\": {\"completed\": \"1 day\"}}",
            true,
            "fetchq.doc_complete_many('top', '{a,b}')",
        ),
        (
            "{\"history\": {\"completed\": \"1 day\"}}",
            false,
            "(select count(*) from fetchq.doc_pop('top', max_docs => 2))",
        ),
    ] {
        for direct in ["on", "off"] {
            a.sql(&format!("set fetchq.direct = {direct}; select fetchq.queue_create('letters'); select fetchq.queue_create('top', '{settings}'); {fill}"))
                .await;
            if picks {
                assert_eq!(a.text(pick).await, "2");
            }
            assert_eq!(
                a.state(&format!("select {call}")).await,
                "",
                "{call} {settings}"
            );
            a.sql("select fetchq.queue_drop('top')").await;
        }
    }
    drop((admin, a, b));
    db.remove().await;
}
