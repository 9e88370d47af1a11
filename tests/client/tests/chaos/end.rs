//! What must be true at the end: no document is lost, none is settled twice, and the counters are exact.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use fetchq_client_tests::{Server, counters_are_exact, wait_until};

use super::ledger::Ledger;

/// Completes the remaining documents, and compares the ledger with the tables.
pub async fn finish(server: &Server, ledger: &Ledger) {
    let mut session = server.connect_when_up("postgres").await;
    // Leases of ended sessions are released; the others expire.
    wait_until("nothing is planned or leased", async || {
        session
            .text("select count(*) from fetchq_data.q__docs where status in (0, 2)")
            .await
            == "0"
    })
    .await;
    counters_are_exact(&mut session, "q").await;
    wait_until("all documents are settled", async || {
        session
            .sql(
                "with picked as (select * from fetchq.doc_pick('q', 0, 1000, interval '1 hour')),
                 settled as (select subject, lease, fetchq.doc_complete('q', subject, null, lease) from picked)
                 insert into effects select subject, lease from settled",
            )
            .await;
        session
            .text("select count(*) from fetchq_data.q__docs where status not in (3, -1)")
            .await
            == "0"
    })
    .await;
    counters_are_exact(&mut session, "q").await;

    let effects = session
        .column("select subject from effects order by 1")
        .await;
    let settled: BTreeSet<&String> = effects.iter().collect();
    assert_eq!(settled.len(), effects.len(), "a document was settled twice");
    let there = session
        .rows("select subject, status, coalesce(last_error, '') = 'cancelled' from fetchq_data.q__docs")
        .await;
    let cancelled: BTreeSet<String> = there
        .iter()
        .filter(|row| row.ends_with("|-1|t"))
        .map(|row| row.split('|').next().unwrap().to_owned())
        .collect();
    compare(ledger, &there, &settled, &cancelled);
    let misses = session.text("select floor_misses from fetchq.ready_stats()");
    assert_eq!(misses.await, "0");
}

/// Compares the answers that the workers received with the documents and the effects.
fn compare(
    ledger: &Ledger,
    there: &[String],
    settled: &BTreeSet<&String>,
    cancelled: &BTreeSet<String>,
) {
    let documents = ledger.documents.lock().unwrap();
    for (subject, document) in documents.iter() {
        let (is_settled, is_cancelled) = (settled.contains(subject), cancelled.contains(subject));
        assert!(
            !(is_settled && is_cancelled),
            "{subject} was settled and cancelled"
        );
        if document.settled_by.is_some() {
            assert!(is_settled, "the effect of {subject} is lost: {document:?}");
        }
        if document.is_cancelled {
            assert!(is_cancelled, "{subject} is not cancelled: {document:?}");
        }
        if document.is_pushed {
            assert!(
                is_settled || is_cancelled && document.may_be_cancelled,
                "{subject} is lost: {document:?}"
            );
        }
    }
    for row in there {
        let subject = row.split('|').next().unwrap();
        assert!(
            documents.contains_key(subject),
            "{subject} was never pushed"
        );
    }
    let picks = ledger.picks.load(Ordering::Relaxed);
    let refused = ledger.refused.load(Ordering::Relaxed);
    eprintln!(
        "{} documents, {picks} picks, {} settled, {} cancelled, {refused} refused",
        documents.len(),
        settled.len(),
        cancelled.len()
    );
    assert!(refused > 0, "no lease was lost, so the test proves nothing");
    assert!(picks > documents.len() && documents.len() > 100);
}
