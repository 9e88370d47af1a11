//! Every function of layer 5, called by tokio-postgres with its natural types and by psql, directly
//! and behind PgBouncer in transaction mode. The suites in tests/npm and tests/python do so with
//! node-pg, psycopg and asyncpg.

use fetchq_client_tests::{
    Database, Pooler, Server, Session, bin, calls, error_of, prepare_calls, run_with_input,
};

/// Makes every call in a transaction that is rolled back. Procedures end their own transactions.
async fn call_everything(session: &Session) {
    let mut wrong = Vec::new();
    for call in calls() {
        let name = &call.name;
        if !call.is_procedure {
            session.sql("begin").await;
        }
        for statement in &call.before {
            session.sql(statement).await;
        }
        match call.run(session).await {
            Err(e) => wrong.push(format!("{name}: {e:?}")),
            Ok(rows) => {
                if call.rows.is_some_and(|n| n != rows.len()) {
                    wrong.push(format!("{name}: {} rows", rows.len()));
                }
                for row in &rows {
                    for at in 0..row.len() {
                        // The value decodes as its type.
                        fetchq_client_tests::text_of(row, at);
                    }
                }
                if let Some(check) = &call.check
                    && session.text(check).await != "t"
                {
                    wrong.push(format!("{name}: this is not true: {check}"));
                }
            }
        }
        for statement in &call.after {
            session.sql(statement).await;
        }
        if !call.is_procedure {
            session.sql("rollback").await;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn prepared(name: &str) -> Database {
    let db = Server::of_suite().database(name).await;
    prepare_calls(&db.connect().await).await;
    db
}

#[tokio::test]
async fn tokio_postgres_calls_every_function() {
    let db = prepared("calls_tokio").await;
    call_everything(&db.connect().await).await;
    db.remove().await;
}

#[tokio::test]
async fn tokio_postgres_calls_every_function_behind_a_pooler() {
    let db = prepared("calls_pooled").await;
    let pooler = Pooler::start(&db).await;
    call_everything(&pooler.behind(&db).connect().await).await;
    drop(pooler);
    db.remove().await;
}

/// The statements of all calls for psql, which stops at the first error.
fn script() -> String {
    let mut script = String::from("\\set ON_ERROR_STOP on\n");
    for call in calls() {
        script += &format!("\\echo {}\n", call.name);
        let statements: Vec<String> = (call.before.iter().cloned())
            .chain([call.with_literals()])
            .chain((call.check.iter()).map(|check| {
                format!(
                    "select 1 / (({check})::int) as \"{} did what it should\"",
                    call.name
                )
            }))
            .chain(call.after.iter().cloned())
            .collect();
        let all = statements.join(";\n") + ";\n";
        script += &if call.is_procedure {
            all
        } else {
            format!("begin;\n{all}rollback;\n")
        };
    }
    script + "\\echo all calls were made\n"
}

/// A row that is a value has the columns of its type, whatever the statement behind it has read.
#[tokio::test]
async fn every_function_gives_rows_as_values() {
    let db = prepared("calls_values").await;
    let session = db.connect().await;
    let mut wrong = Vec::new();
    for direct in ["on", "off"] {
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        for call in calls().iter().filter(|call| !call.is_procedure) {
            let statement = call.with_literals().replacen("select * from", "select", 1);
            session.sql("begin").await;
            for statement in &call.before {
                session.sql(statement).await;
            }
            // PL/pgSQL assigns the row to a variable of its type.
            let block = format!(
                "do $$ declare r record; begin for r in {statement} as result loop perform r.result::text; end loop; end $$"
            );
            if let Err(e) = session.batch_execute(&block).await {
                wrong.push(format!("{}, direct {direct}: {}", call.name, error_of(&e)));
            }
            session.sql("rollback").await;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    db.remove().await;
}

fn psql(db: &Database) -> String {
    let config = db.server.config();
    let password = String::from_utf8(config.get_password().expect("a password").to_vec());
    let port = config.get_ports()[0].to_string();
    let mut command = bin("psql");
    command
        .args(["-Xq", "-h", "127.0.0.1", "-p", &port, "-d", &db.name])
        .args(["-U", config.get_user().expect("a user")])
        .env("PGPASSWORD", password.expect("UTF-8"));
    run_with_input(&mut command, &script())
}

#[tokio::test]
async fn psql_calls_every_function() {
    let db = prepared("calls_psql").await;
    assert!(psql(&db).ends_with("all calls were made\n"));
    db.remove().await;
}

#[tokio::test]
async fn psql_calls_every_function_behind_a_pooler() {
    let db = prepared("calls_psql_pooled").await;
    let pooler = Pooler::start(&db).await;
    assert!(psql(&pooler.behind(&db)).ends_with("all calls were made\n"));
    drop(pooler);
    db.remove().await;
}
