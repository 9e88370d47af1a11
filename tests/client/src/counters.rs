//! Compares the counters with the documents.

use std::collections::BTreeMap;

use tokio_postgres::{Client, Row};

use crate::Session;

/// All metrics of a queue, as `metric_get` returns them.
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

/// Compares every gauge of a queue, as each function returns it, with the number of documents.
/// All reads use one snapshot, so other sessions may work meanwhile. The message of a failure names
/// the documents and the jobs, which say where in a test it is.
pub async fn counters_are_exact(session: &mut Session, queue: &str) {
    in_snapshot(session, queue).await;
}

/// Like [`counters_are_exact`]; returns the metrics of that snapshot.
pub async fn in_snapshot(session: &mut Session, queue: &str) -> BTreeMap<String, i64> {
    match compare_counters(session, queue).await {
        Ok(metrics) => metrics,
        Err(wrong) => panic!("{wrong}"),
    }
}

/// The metrics of a queue, which must be exact, and the rows of its documents and logs: all that a
/// call that fails must leave as it was.
pub async fn all_of(session: &mut Session, queue: &str) -> (BTreeMap<String, i64>, Vec<String>) {
    let metrics = in_snapshot(session, queue).await;
    let rows = format!(
        "select to_jsonb(d) from fetchq_data.{queue}__docs d
         union all select to_jsonb(l) from fetchq_data.{queue}__logs l order by 1"
    );
    (metrics, session.rows(&rows).await)
}

/// What `queue_stats` tells otherwise than the metrics in the same snapshot. It tells nothing while
/// another session, such as a vacuum, has locked the counters.
async fn differences_of_stats(
    client: &tokio_postgres::Client,
    queue: &str,
    shown: &impl Fn(&String) -> i64,
) -> Vec<String> {
    const COLUMNS: [(&str, &str); 9] = [
        ("planned", "pln"),
        ("active", "act"),
        ("completed", "cpl"),
        ("killed", "kll"),
        ("pushed", "ent"),
        ("picked", "pkd"),
        ("succeeded", "suc"),
        ("failed", "fai"),
        ("lost", "orp"),
    ];
    let row = client
        .query_one("select * from fetchq.queue_stats($1)", &[&queue])
        .await
        .expect("queue_stats");
    let mut wrong = Vec::new();
    for (column, metric) in COLUMNS {
        let told: Option<i64> = row.get(column);
        if told.is_some_and(|told| told != shown(&metric.to_owned()).max(0)) {
            wrong.push(format!("queue_stats returns {column} = {told:?}"));
        }
    }
    let pending = ["ready", "retrying", "blocked"].map(|column| row.get::<_, Option<i64>>(column));
    if let [Some(ready), Some(retrying), Some(blocked)] = pending
        && ready + retrying + blocked != shown(&"pnd".to_owned()).max(0)
    {
        wrong.push(format!("queue_stats returns {pending:?}"));
    }
    wrong
}

/// How many documents the histograms of a queue have, of the kind `wait` or `run`.
pub async fn timed(client: &tokio_postgres::Client, queue: &str, kind: &str) -> i64 {
    let sql = "select coalesce(sum(x.n), 0)::bigint from fetchq.queues q, lateral (
            select u.n from fetchq.timings t, unnest(t.counts) u (n)
            where t.queue_id = q.id and t.kind = $2
            union all
            select l.n from fetchq.counter_tail l
            where l.queue_id = q.id and l.bucket is not null
                and case when l.event <= 64 then (l.event in (3, 18)) = ($2 = 'wait')
                    else $2 = 'wait' or l.bucket % 143 <> 142 end) x
        where q.name = $1";
    let row = client.query_one(sql, &[&queue, &kind]).await;
    row.expect("timings").get(0)
}

/// Like [`in_snapshot`]; returns a description of the differences as the error.
pub async fn compare_counters(
    session: &mut Session,
    queue: &str,
) -> Result<BTreeMap<String, i64>, String> {
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
            _ => return Err(format!("{queue}: a document has status {status}")),
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
    let shown = |metric: &String| got.get(metric).copied().unwrap_or(0);
    let mut wrong = Vec::new();
    for (metric, n) in &real {
        let mut told = vec![("metric_get", shown(metric))];
        if !metric.starts_with('v') {
            let of = |row: &Row| i64::from(row.get::<_, i32>(metric.as_str()));
            told.push(("metric_get_common", of(&common)));
            told.push(("metric_compute", of(&computed)));
        }
        for (function, told) in told.into_iter().filter(|(_, told)| told != n) {
            wrong.push(format!("{function} returns {metric} = {told}"));
        }
    }
    // A version without documents has the count 0, or no counter.
    for (metric, n) in got
        .iter()
        .filter(|(m, _)| m.starts_with('v') && !real.contains_key(*m))
    {
        if *n != 0 {
            wrong.push(format!("{metric} = {n} without documents"));
        }
    }
    // Each pick has a wait, and what a worker settles has succeeded or failed.
    let waits = timed(tx.client(), queue, "wait").await;
    if waits != shown(&"pkd".to_owned()) {
        wrong.push(format!("{waits} waits"));
    }
    let [settled, succeeded, failed] = ["prc", "suc", "fai"].map(|m| shown(&m.to_owned()));
    if settled != succeeded + failed {
        wrong.push(format!(
            "prc = {settled}, suc = {succeeded}, fai = {failed}"
        ));
    }
    let runs = timed(tx.client(), queue, "run").await;
    if runs > settled {
        wrong.push(format!("{runs} runs"));
    }
    wrong.extend(differences_of_stats(tx.client(), queue, &shown).await);
    tx.commit().await.expect("commit");
    if wrong.is_empty() {
        return Ok(got);
    }
    Err(format!(
        "{queue}: {}; counted: {real:?}, all: {got:?}{}",
        wrong.join(", "),
        place(session, queue).await
    ))
}

/// Says where a test is: the newest documents of the queue, and its jobs. One check is called from many
/// places.
async fn place(session: &Session, queue: &str) -> String {
    let sql = format!(
        "select '; documents: ' || coalesce(string_agg(subject, ' ' order by seq), 'none') from (
             select subject, seq from fetchq_data.\"{queue}__docs\" order by seq desc limit 30) d
         union all
         select '; job ' || (to_jsonb(j) - 'settings')::text from fetchq.jobs j where queue in ('{queue}', '*')"
    );
    session.rows(&sql).await.concat()
}
