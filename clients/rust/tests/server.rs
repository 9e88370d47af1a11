//! Tests against a real server. They fail without FETCHQ_URL, which `scripts/cluster.sh NAME env` prints.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fetchq_client::testing::{Attempt, drain, fake, run_handler};
use fetchq_client::{
    BoxError, Client, Context, Declare, Doc, On, Outcome, Task, TokioPostgres, TxContext, Worker,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

type Tested = Result<(), BoxError>;

#[derive(Debug, Serialize, Deserialize)]
struct Number {
    n: i64,
}

impl Task for Number {
    const QUEUE: &'static str = "rust_numbers";
}

struct Db {
    client: Client,
    queue: String,
}

fn url() -> Result<String, BoxError> {
    std::env::var("FETCHQ_URL")
        .map_err(|_| "FETCHQ_URL is not set: these tests need a server".into())
}

/// A queue of the test's own.
async fn db() -> Result<Db, BoxError> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let client = Client::new(TokioPostgres::connect(&url()?, 10)?);
    let queue = format!(
        "rust{}_{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    client
        .sync(&Declare::new().queue(&queue, json!({})))
        .await?;
    Ok(Db { client, queue })
}

impl Db {
    fn doc(&self, n: i64) -> Doc {
        Doc::of(&self.queue, Number { n }).subject(n.to_string())
    }

    fn worker(&self) -> Worker {
        Worker::new(self.client.clone()).grace(Duration::from_secs(5))
    }

    fn on(&self) -> On {
        On::new().queue(&self.queue)
    }

    async fn sql(&self, text: &str) -> Result<Vec<tokio_postgres::Row>, BoxError> {
        Ok(self
            .client
            .driver()
            .pool()
            .get()
            .await?
            .query(text, &[])
            .await?)
    }

    async fn status(&self, subject: &str) -> Result<String, BoxError> {
        Ok(self
            .client
            .get(&self.queue, subject)
            .await?
            .map_or_else(String::new, |doc| doc.status))
    }

    /// Polls until a document has a status.
    async fn until(&self, subject: &str, status: &str) -> Tested {
        let end = Instant::now() + Duration::from_secs(30);
        while self.status(subject).await? != status {
            if Instant::now() > end {
                return Err(
                    format!("{subject} is {}, not {status}", self.status(subject).await?).into(),
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_is_part_of_the_transaction_of_the_application() -> Tested {
    let db = db().await?;
    let mut conn = db.client.driver().pool().get().await?;
    for (subject, commits) in [("1", true), ("2", false)] {
        let tx = conn.transaction().await?;
        let put = db
            .client
            .put_doc(db.doc(1).subject(subject))
            .tx(&tx)
            .await?;
        assert_eq!(
            (put.subject.as_str(), put.action.as_str()),
            (subject, "created")
        );
        if commits {
            tx.commit().await?
        } else {
            tx.rollback().await?
        }
    }
    drop(conn);
    assert!(!db.status("1").await?.is_empty());
    assert_eq!(db.status("2").await?, "");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_completes_what_is_put_and_waited_for() -> Tested {
    let db = db().await?;
    let twice = |number: Number, _: Context| async move { Ok(Outcome::complete(number.n * 2)) };
    let running = db.worker().handle(twice, db.on()).start().await?;
    for n in 1..=20 {
        db.client.put_doc(db.doc(n)).await?;
    }
    let done = db.client.wait(&db.queue, "20", "30 seconds").await?;
    assert_eq!(
        (done.status.as_str(), done.result),
        ("completed", Some(json!(40)))
    );
    running.stop();
    running.join().await?;
    assert_eq!(running.metrics().handled as i64, 20);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_handler_writes_and_settles_in_one_transaction() -> Tested {
    let db = db().await?;
    let table = format!("{}_t", db.queue);
    db.sql(&format!("create table {table} (n int)")).await?;
    let insert = format!("insert into {table} values (1)");
    let handler = move |number: Number, ctx: TxContext| {
        let insert = insert.clone();
        async move {
            ctx.tx().batch_execute(&insert).await?;
            if number.n == 2 {
                Err("no".into())
            } else {
                Ok(Outcome::done())
            }
        }
    };
    db.client
        .put_many(vec![db.doc(1), db.doc(2).max_attempts(1)])
        .await?;
    let running = db
        .worker()
        .handle_tx(handler, db.on().concurrency(2))
        .start()
        .await?;
    db.until("1", "completed").await?;
    db.until("2", "killed").await?;
    running.stop();
    running.join().await?;
    let count: i64 = db.sql(&format!("select count(*) from {table}")).await?[0].get(0);
    assert_eq!(count, 1);
    db.sql(&format!("drop table {table}")).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_document_stops_its_handler() -> Tested {
    let db = db().await?;
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    let handler = move |_: Number, ctx: Context| {
        let counter = Arc::clone(&counter);
        async move {
            let why = ctx.stopped().await;
            counter.fetch_add(
                if why.0 == fetchq_client::Reason::Cancelled {
                    1
                } else {
                    100
                },
                Ordering::SeqCst,
            );
            Err::<Outcome, BoxError>(why.into())
        }
    };
    let running = db.worker().handle(handler, db.on()).start().await?;
    db.client.put_doc(db.doc(1)).await?;
    db.until("1", "active").await?;
    assert!(db.client.cancel(&db.queue, "1").await?.was_cancelled);
    running.stop();
    running.join().await?;
    assert_eq!(seen.load(Ordering::SeqCst), 1);
    assert_eq!(db.status("1").await?, "killed");
    Ok(())
}

/// `worker_stop` is a request in the database, and comes by the session that waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_and_a_cancel_reach_a_worker_without_a_free_slot() -> Tested {
    let db = db().await?;
    let handler = |_: Number, ctx: Context| async move {
        Err::<Outcome, BoxError>(ctx.stopped().await.into())
    };
    let worker = db.worker().grace(Duration::ZERO).concurrency(1);
    let running = worker.handle(handler, db.on()).start().await?;
    db.client.put_many(vec![db.doc(1), db.doc(2)]).await?;
    for subject in ["1", "2"] {
        db.until(subject, "active").await?;
        let began = Instant::now();
        if subject == "1" {
            assert!(db.client.cancel(&db.queue, subject).await?.was_cancelled);
            db.until("2", "active").await?;
        } else {
            let stop = format!("select fetchq.worker_stop('{}')", running.name());
            db.sql(&stop).await?;
            running.join().await?;
        }
        println!("{subject}: after {} ms", began.elapsed().as_millis());
    }
    assert_eq!(db.status("2").await?, "pending");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_hands_back_what_does_not_end_in_time() -> Tested {
    let db = db().await?;
    let handler = |_: Number, ctx: Context| async move {
        Err::<Outcome, BoxError>(ctx.stopped().await.into())
    };
    let running = db.worker().handle(handler, db.on()).start().await?;
    db.client.put_doc(db.doc(1)).await?;
    db.until("1", "active").await?;
    running.stop_within(Duration::ZERO);
    running.join().await?;
    let doc = db.client.get(&db.queue, "1").await?.ok_or("it is gone")?;
    assert_eq!(doc.attempts, 0);
    assert_ne!(doc.status, "active");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_goes_on_after_its_connections_were_ended() -> Tested {
    let db = db().await?;
    let handler = |_: Number, _: Context| async { Ok(Outcome::done()) };
    // The worker connects with a name of its own, so that only its connections are ended.
    let mut config: tokio_postgres::Config = url()?.parse()?;
    config.application_name(&db.queue);
    let theirs = Client::new(TokioPostgres::new(
        db.client.driver().pool().clone(),
        config,
        tokio_postgres::NoTls,
    ));
    let worker = Worker::new(theirs).grace(Duration::from_secs(5));
    let running = worker.handle(handler, db.on()).start().await?;
    db.client.put_doc(db.doc(1)).await?;
    db.until("1", "completed").await?;
    let end = format!(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = '{}'",
        db.queue
    );
    let ended = db.sql(&end).await?.len();
    assert!(ended >= 3, "{ended} connections were ended");
    db.client.put_doc(db.doc(2)).await?;
    db.until("2", "completed").await?;
    running.stop();
    running.join().await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_does_not_decode_is_rejected_alone() -> Tested {
    let db = db().await?;
    let bad = Doc::of(&db.queue, json!({"n": "many"}))
        .subject("bad")
        .max_attempts(1);
    db.client.put_many(vec![bad, db.doc(1)]).await?;
    let handler = |_: Number, _: Context| async { Ok(Outcome::done()) };
    let settled = drain(
        &db.client,
        db.worker().handle(handler, db.on()),
        &[&db.queue],
        Duration::from_secs(30),
    )
    .await?;
    assert_eq!(settled.get("complete"), Some(&1));
    let doc = db.client.get(&db.queue, "bad").await?.ok_or("it is gone")?;
    assert_eq!(doc.status, "killed");
    assert!(
        doc.last_error
            .unwrap_or_default()
            .contains("the payload does not fit")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_its_queue_or_with_a_small_pool_does_not_start() -> Tested {
    let db = db().await?;
    let handler = |_: Number, _: Context| async { Ok(Outcome::done()) };
    let missing = db
        .worker()
        .handle(handler, On::new().queue("rust_missing"))
        .start()
        .await;
    assert!(missing.is_err_and(|error| error.to_string().contains("Client::sync")));
    let small = Client::new(TokioPostgres::connect(&url()?, 1)?);
    let refused = Worker::new(small).handle(handler, db.on()).start().await;
    assert!(refused.is_err_and(|error| error.to_string().contains("the pool")));
    Ok(())
}

#[tokio::test]
async fn a_handler_is_called_without_a_server() -> Tested {
    let handler = |number: Number, ctx: Context| async move {
        let kept: i64 = ctx
            .step("twice", || async { Ok::<_, BoxError>(number.n * 2) })
            .await?;
        ctx.then(Doc::new(&Number { n: kept }));
        Ok(Outcome::complete(kept))
    };
    let outcome = run_handler(handler, Number { n: 4 }, Attempt::default()).await?;
    assert_eq!(
        outcome,
        Outcome::complete(8).then(Doc::new(&Number { n: 8 }))
    );
    let progress: Value = json!({"fetchq-steps": {"twice": 10}});
    let outcome = run_handler(
        handler,
        Number { n: 4 },
        Attempt {
            progress,
            ..Attempt::default()
        },
    )
    .await?;
    assert_eq!(
        outcome,
        Outcome::complete(10).then(Doc::new(&Number { n: 10 }))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_an_outcome_for_each_document() -> Tested {
    let db = db().await?;
    let handler = |batch: Vec<(Number, Context)>| async move {
        let one = |(number, _): (Number, Context)| match number.n {
            3 => Outcome::kill("three"),
            n => Outcome::complete(n),
        };
        Ok(batch.into_iter().map(one).collect())
    };
    let bad = Doc::of(&db.queue, json!({"n": "many"}))
        .subject("bad")
        .max_attempts(1);
    db.client
        .put_many((1..=5).map(|n| db.doc(n)).chain([bad]).collect())
        .await?;
    let worker = db.worker().handle_batch(handler, db.on());
    let settled = drain(&db.client, worker, &[&db.queue], Duration::from_secs(30)).await?;
    assert_eq!(settled.get("complete"), Some(&4));
    assert_eq!(db.status("3").await?, "killed");
    assert_eq!(db.status("bad").await?, "killed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_fails_fails_all_its_documents() -> Tested {
    let db = db().await?;
    let handler = |_: Vec<(Number, Context)>| async { Err::<Vec<Outcome>, BoxError>("no".into()) };
    let running = db.worker().handle_batch(handler, db.on()).start().await?;
    let docs = (1..=2).map(|n| db.doc(n).max_attempts(1)).collect();
    db.client.put_many(docs).await?;
    db.until("1", "killed").await?;
    db.until("2", "killed").await?;
    running.stop();
    running.join().await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_is_part_of_a_transaction_of_sqlx() -> Tested {
    let db = db().await?;
    let pool = sqlx::PgPool::connect(&url()?).await?;
    for (n, commits) in [(1, true), (2, false)] {
        let mut tx = pool.begin().await?;
        let put = db.client.put_doc(db.doc(n)).tx(&mut tx).await?;
        assert_eq!(
            (put.subject, put.action.as_str()),
            (n.to_string(), "created")
        );
        if commits {
            tx.commit().await?
        } else {
            tx.rollback().await?
        }
    }
    assert!(!db.status("1").await?.is_empty());
    assert_eq!(db.status("2").await?, "");
    Ok(())
}

#[tokio::test]
async fn a_fake_records_puts_and_needs_no_server() -> Tested {
    let (client, recorded) = fake()?;
    let put = client.put(Number { n: 7 }).subject("seven").await?;
    assert_eq!(put.subject, "seven");
    let puts = recorded.puts::<Number>()?;
    assert_eq!(puts.iter().map(|number| number.n).collect::<Vec<_>>(), [7]);
    assert!(client.put_doc(Doc::of("q", json!("\0"))).await.is_err());
    assert!(client.get("q", "seven").await.is_err());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_in_examples_writes_results_rejects_what_fails_and_stops() -> Tested {
    let admin = db().await?;
    for sql in [
        "drop database if exists rust_example with (force)",
        "create database rust_example template template0",
    ] {
        admin.sql(sql).await?;
    }
    let url = format!(
        "{}/rust_example",
        url()?.rsplit_once('/').ok_or("no database")?.0
    );
    let db = Db {
        client: Client::new(TokioPostgres::connect(&url, 1)?),
        queue: "jobs".into(),
    };
    for sql in [
        "create extension fetchq",
        "select fetchq.queue_create('jobs')",
        "select fetchq.doc_put('jobs', 'first')",
        r#"select fetchq.doc_put('jobs', 'second', '{"fail": "bad luck"}')"#,
        "create table results (subject text, result jsonb)",
    ] {
        db.sql(sql).await?;
    }
    // The worker is built with the tests, beside them.
    let here = std::env::current_exe()?;
    let folder = here.ancestors().nth(2).ok_or("no folder")?;
    let mut worker = tokio::process::Command::new(folder.join("examples/rust-worker"))
        .env("DATABASE_URL", &url)
        .kill_on_drop(true)
        .spawn()?;
    db.until("first", "completed").await?;
    let end = Instant::now() + Duration::from_secs(30);
    let error = loop {
        let doc = db
            .client
            .get("jobs", "second")
            .await?
            .ok_or("no document")?;
        match doc.last_error {
            Some(error) => break error,
            None => assert!(Instant::now() < end, "it is not rejected: {}", doc.status),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(error, "bad luck");
    let pid = worker.id().ok_or("it has ended")?.to_string();
    let kill = std::process::Command::new("kill")
        .args(["-TERM", &pid])
        .status()?;
    assert!(kill.success());
    let ended = tokio::time::timeout(Duration::from_secs(30), worker.wait()).await??;
    assert_eq!(ended.code(), Some(0));
    let rows = db.sql("select subject, result from results").await?;
    assert_eq!(rows.len(), 1);
    let (subject, result): (String, Value) = (rows[0].get(0), rows[0].get(1));
    assert_eq!(
        (subject.as_str(), result),
        ("first", json!({"worked": true}))
    );
    db.client.driver().pool().close();
    admin.sql("drop database rust_example with (force)").await?;
    Ok(())
}
