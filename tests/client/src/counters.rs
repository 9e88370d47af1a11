//! Counters against a real count.

use std::collections::BTreeMap;

use tokio_postgres::Client;

use crate::Session;

/// All metrics of a queue by `metric_get`.
pub async fn metrics(client: &Client, queue: &str) -> BTreeMap<String, i64> {
    client
        .query(
            "select metric, current_value from fetchq.metric_get($1)",
            &[&queue],
        )
        .await
        .expect("metric_get")
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect()
}

/// Compares every gauge of a queue, by each function that reads it, with a real
/// count of the documents: all in one snapshot, whatever else is going on.
pub async fn counters_are_exact(session: &mut Session, queue: &str) {
    in_snapshot(session, queue).await;
}

/// The same; gives the metrics of that snapshot.
pub async fn in_snapshot(session: &mut Session, queue: &str) -> BTreeMap<String, i64> {
    let tx = session
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .expect("begin");
    let counted = tx
        .query(
            &format!(
                "select status, version, count(*) from fetchq_data.\"{queue}__docs\" group by 1, 2"
            ),
            &[],
        )
        .await
        .expect("count");
    let mut real: BTreeMap<String, i64> = ["cnt", "pln", "pnd", "act", "cpl", "kll"]
        .iter()
        .map(|m| ((*m).to_owned(), 0))
        .collect();
    for row in &counted {
        let (status, version, n): (i32, i32, i64) = (row.get(0), row.get(1), row.get(2));
        let gauge = match status {
            -1 => "kll",
            0 => "pln",
            1 => "pnd",
            2 => "act",
            3 => "cpl",
            _ => panic!("a document has status {status}"),
        };
        *real.get_mut("cnt").unwrap() += n;
        *real.get_mut(gauge).unwrap() += n;
        *real.entry(format!("v{version}")).or_insert(0) += n;
    }

    let got = metrics(tx.client(), queue).await;
    let common = tx
        .query_one("select * from fetchq.metric_get_common($1)", &[&queue])
        .await
        .expect("metric_get_common");
    let computed = tx
        .query_one("select * from fetchq.metric_compute($1)", &[&queue])
        .await
        .expect("metric_compute");
    for (metric, n) in &real {
        let shown = got.get(metric).copied().unwrap_or(0);
        assert_eq!(
            shown, *n,
            "{queue}: metric_get says {metric} = {shown}, counted: {real:?}, all: {got:?}"
        );
        if !metric.starts_with('v') {
            assert_eq!(
                i64::from(common.get::<_, i32>(metric.as_str())),
                *n,
                "{queue}: metric_get_common, {metric}"
            );
            assert_eq!(
                i64::from(computed.get::<_, i32>(metric.as_str())),
                *n,
                "{queue}: metric_compute, {metric}"
            );
        }
    }
    // A version without documents counts 0, or is not there.
    for (metric, n) in got
        .iter()
        .filter(|(m, _)| m.starts_with('v') && !real.contains_key(*m))
    {
        assert_eq!(*n, 0, "{queue}: {metric} without documents");
    }
    tx.commit().await.expect("commit");
    got
}
