//! doc_append_many writes the rows of a list in groups. However large the payloads are, every document is
//! added once, in the order of the list, and the rows of the list are not in memory all at a time.

use fetchq_client_tests::{Database, Server, counters_are_exact};

/// Appends payloads of these sizes, and compares what was stored with the list.
async fn appends(db: &Database, sizes: &str) {
    let mut session = db.connect().await;
    let payload = "jsonb_build_object('n', n, 'filler', repeat(md5(n::text), size / 32))";
    session
        .sql(&format!(
            "select fetchq.queue_create('q');
             create table listed as select n, {payload} as payload
                from unnest(array[{sizes}]::int[]) with ordinality as sizes (size, n);
             create table returned as select subject, n
                from fetchq.doc_append_many('q', (select array_agg(payload order by n) from listed))
                    with ordinality as returned (subject, n)"
        ))
        .await;
    let wrong = "select count(*) from listed l full join returned r using (n)
        full join fetchq_data.q__docs d on d.subject = r.subject
        where d.payload is distinct from l.payload";
    assert_eq!(session.text(wrong).await, "0", "{sizes}");
    let numbers = "select payload->>'n' from fetchq_data.q__docs order by seq";
    let in_order = "select n from listed order by n";
    assert_eq!(
        session.column(numbers).await,
        session.column(in_order).await
    );
    counters_are_exact(&mut session, "q").await;
    session
        .sql("drop table listed, returned; select fetchq.queue_drop('q')")
        .await;
}

#[tokio::test]
async fn a_list_with_large_payloads_is_appended_once_and_in_its_order() {
    let db = Server::of_suite().database("append_groups").await;
    const BOUND: usize = 1 << 20;
    let around: Vec<String> = (0..20)
        .map(|n| (BOUND / 2 - 320 + n * 32).to_string())
        .collect();
    appends(&db, &around.join(", ")).await;
    appends(&db, &format!("{}", 3 * BOUND)).await;
    appends(&db, &format!("{}, 10", 3 * BOUND)).await;
    appends(&db, &format!("10, 10, {0}, 10, {0}, {0}, 10", 3 * BOUND)).await;
    let mixed: Vec<String> = (0..600usize)
        .map(|n| match n % 40 {
            0 => BOUND + n,
            n => n * 100,
        })
        .map(|size| size.to_string())
        .collect();
    appends(&db, &mixed.join(", ")).await;
    db.remove().await;
}

/// The greatest size that the process of a session had, in kB.
fn peak_of(pid: &str) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let size = line.and_then(|line| line.trim().strip_suffix(" kB"));
    size.expect("VmHWM").trim().parse().expect("a number")
}

#[tokio::test]
async fn the_rows_of_a_list_with_large_payloads_are_not_in_memory_all_at_a_time() {
    let db = Server::of_suite().database("append_memory").await;
    // As a compressed value, the list takes little memory before it is read.
    db.connect()
        .await
        .sql(
            "select fetchq.queue_create('q');
             create table lists as select array_agg(to_jsonb(repeat('x', 1000000))) as payloads
                from generate_series(1, 100)",
        )
        .await;
    let mut peaks = Vec::new();
    for sql in [
        "select count(p) from (select unnest(payloads) as p from lists) each",
        "select count(subject) from lists, fetchq.doc_append_many('q', payloads)",
    ] {
        let session = db.connect().await;
        let pid = session.text("select pg_backend_pid()").await;
        assert_eq!(session.text(sql).await, "100");
        peaks.push(peak_of(&pid));
    }
    // The rows of the whole list take 100 MB.
    let rows = peaks[1] - peaks[0];
    assert!(rows < 50_000, "{rows} kB for the rows: {peaks:?}");
    db.remove().await;
}
