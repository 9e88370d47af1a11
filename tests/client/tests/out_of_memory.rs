//! Memory is used up: by large lists in a server under `ulimit -v`, and by others, so that a call gets
//! no more from the system. Each call ends in a result or in an ERROR, and no process of the server
//! crashes. In Rust a failed allocation aborts the process, and with it the whole server.

use fetchq_client_tests::{
    Call, Cluster, Function, LAUNCHER, Server, Session, Value, WORKER, calls, counters_are_exact,
    functions, prepare_calls, prepare_queue, process_id, wait_until, with_worker, worker_comes,
};
use tokio_postgres::types::Type;

/// The lengths of the lists.
const LENGTHS: [usize; 2] = [50_000, 700_000];

/// Lists of each type, in rows by their length. They are not compressed, to save time.
const MAKE_LISTS: &str = "
    create table public.lists (n int, texts text[], ints int[], jsons jsonb[], docs jsonb, documents text);
    alter table public.lists alter texts set storage external, alter ints set storage external,
        alter jsons set storage external, alter docs set storage external, alter documents set storage external;
    insert into public.lists
    select n, array_agg('subject-number-' || i), array_agg(1), array_agg('{\"a\": 1}'::jsonb),
        jsonb_agg(jsonb_build_object('subject', 's' || i, 'action', 'drop')),
        string_agg('(''s' || i || ''', 0, ''{}'', {DATA})', ',')
    from unnest(array[50000, 700000]) n, generate_series(1, n) i group by n";

/// The column of `lists` for an argument. None: the argument is no list.
fn column(name: &str, ty: &Type) -> Option<&'static str> {
    match *ty {
        Type::TEXT_ARRAY => Some("texts"),
        Type::INT4_ARRAY => Some("ints"),
        Type::JSONB_ARRAY => Some("jsons"),
        Type::JSONB => Some("docs"),
        Type::TEXT if name == "documents" => Some("documents"),
        _ if matches!(ty.kind(), tokio_postgres::types::Kind::Array(_)) => {
            panic!("a list of {ty}: add a column to `lists`")
        }
        _ => None,
    }
}

/// Whether a call has ended as it should. The connection is lost when a process has ended.
fn is_end<T>(result: &Result<T, tokio_postgres::Error>) -> bool {
    match result {
        Ok(_) => true,
        Err(e) => e.as_db_error().is_some_and(|e| e.severity() == "ERROR"),
    }
}

/// PostgreSQL itself ends a session that gets not even some bytes for the SET clause of a function, which
/// most functions of fetchq have: `ParseLongOption()` asks for them with FATAL.
fn is_of_set_clause<T>(result: &Result<T, tokio_postgres::Error>) -> bool {
    let error = result.as_ref().err().and_then(|e| e.as_db_error());
    error.is_some_and(|e| {
        e.severity() == "FATAL" && matches!(e.routine(), Some("guc_malloc" | "guc_strdup"))
    })
}

/// How a statement ended for which there was little memory.
#[derive(PartialEq)]
enum End {
    AsItShould,
    Wrong,
    /// As [`is_of_set_clause`] says.
    OfSession,
}

/// The lines of the log of a server that has crashed.
fn crashes(cluster: &Cluster) -> Vec<String> {
    let of_crash = [
        "terminated by signal",
        "PANIC:",
        "TRAP:",
        "memory allocation of",
        "The reserve of fetchq is used up",
    ];
    let lines = cluster.log_lines().into_iter();
    lines
        .filter(|line| of_crash.iter().any(|text| line.contains(text)))
        .collect()
}

async fn works(server: &Server, queue: &str) {
    let mut session = server.connect_when_up("postgres").await;
    session
        .sql(&format!("select fetchq.doc_put('{queue}', 'at the end')"))
        .await;
    let picked = format!("select subject from fetchq.doc_pick('{queue}', 1000)");
    assert!(session.column(&picked).await.contains(&"at the end".into()));
    let complete = format!("select fetchq.doc_complete('{queue}', 'at the end')");
    assert_eq!(session.text(&complete).await, "1");
    counters_are_exact(&mut session, queue).await;
}

/// Calls a function with lists of this length for the arguments at these positions.
async fn call(
    session: &Session,
    function: &Function,
    lists: &[usize],
    n: usize,
) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
    let mut values = Vec::new();
    let mut types = Vec::new();
    let mut places = Vec::new();
    for (at, (argument, value)) in function.arguments.iter().zip(function.valid()).enumerate() {
        match column(&argument.name, &argument.ty).filter(|_| lists.contains(&at)) {
            Some(column) => {
                places.push(format!("(select {column} from public.lists where n = {n})"))
            }
            None => {
                values.push(value);
                types.push(argument.ty.clone());
                places.push(format!("${}", values.len()));
            }
        }
    }
    let sql = format!(
        "select count(*) from fetchq.{}({})",
        function.name,
        places.join(", ")
    );
    let statement = session.prepare_typed(&sql, &types).await?;
    Function::call(session, &statement, &values).await
}

/// Each function with a list, one argument after the other and all at once.
async fn call_with_lists(server: &Server, functions: &[Function], limit: u32) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut session = server.connect_when_up("postgres").await;
    for function in functions {
        let of_lists: Vec<usize> = (0..function.arguments.len())
            .filter(|at| {
                let argument = &function.arguments[*at];
                column(&argument.name, &argument.ty).is_some()
            })
            .collect();
        let mut cases: Vec<Vec<usize>> = of_lists.iter().map(|at| vec![*at]).collect();
        if of_lists.len() > 1 {
            cases.push(of_lists.clone());
        }
        for (lists, n) in cases.iter().flat_map(|lists| LENGTHS.map(|n| (lists, n))) {
            let begun = session.batch_execute("begin").await;
            let result = call(&session, function, lists, n).await;
            let is_open = session.batch_execute("rollback").await.is_ok();
            if begun.is_err() || !is_end(&result) || !is_open {
                let signature = function.signature();
                wrong.push(format!(
                    "{signature}, arguments {lists:?} of {n}, {limit} kB: {result:?}"
                ));
                session = server.connect_when_up("postgres").await;
            }
        }
    }
    // What a driver passes.
    let texts = Value::Texts((0..LENGTHS[1]).map(|i| format!("q{i}")).collect());
    let result = session.query("call fetchq.queue_wait($1)", &[&texts]).await;
    if !is_end(&result) {
        wrong.push(format!("queue_wait, {limit} kB: {result:?}"));
    }
    wrong
}

#[tokio::test]
async fn a_large_list_under_a_limit_of_memory_ends_in_a_result_or_an_error() {
    let cluster = Cluster::new("lists", "fsync = off\nlog_min_messages = error");
    cluster.start();
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session.sql("create extension fetchq").await;
    prepare_queue(&session).await;
    session.sql(MAKE_LISTS).await;
    let all = functions(&session).await;
    drop(session);
    cluster.stop("fast");
    let mut wrong = Vec::new();
    for limit in [800_000, 520_000] {
        cluster.start_within(limit);
        wrong.extend(call_with_lists(&server, &all, limit).await);
        cluster.stop("fast");
    }
    cluster.start();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let crashes = crashes(&cluster);
    assert!(crashes.is_empty(), "{}", crashes.join("\n"));
    works(&server, "q").await;
}

#[tokio::test]
async fn a_list_of_more_than_a_million_elements_is_refused() {
    let cluster = Cluster::new("long_lists", "fsync = off");
    cluster.start();
    let session = cluster.server().connect("postgres").await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q')")
        .await;
    for (call, state) in [
        (
            "doc_drop_many('q', array_fill('s'::text, array[1000000]))",
            "55000",
        ),
        (
            "doc_drop_many('q', array_fill('s'::text, array[1000001]))",
            "54000",
        ),
        (
            "doc_append_many('q', array_fill('1'::jsonb, array[1000001]))",
            "54000",
        ),
        (
            "doc_put_many('q', (select jsonb_agg(i) from generate_series(1, 1000001) i))",
            "54000",
        ),
        (
            "docs_settle('q', (select jsonb_agg(i) from generate_series(1, 1000001) i))",
            "54000",
        ),
        (
            "doc_push('q', 0, now(), repeat('(''s'', 0, ''{}'', {DATA}),', 1000001))",
            "54000",
        ),
        (
            "docs_list('q', jsonb_build_object('status', repeat('x', 10000001)))",
            "54000",
        ),
        (
            "queue_configure('q', jsonb_build_object('history', repeat('x', 10000001)))",
            "54000",
        ),
    ] {
        let result = session
            .query(&format!("select count(*) from fetchq.{call}"), &[])
            .await;
        let found = result
            .err()
            .map_or_else(String::new, |e| fetchq_client_tests::state_of(&e));
        assert_eq!(found, state, "{call}");
    }
}

/// The memory of a process, in bytes.
fn size(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmSize:"));
    let size = line.and_then(|line| line.split_whitespace().nth(1));
    size.expect("a size").parse::<u64>().expect("a number") * 1024
}

/// `fill` has the process of a session use what its heap has free, down to pieces of 32 bytes.
const MAKE_FILL: &str = "
    create function public.fill(size int, max int, fails bool) returns int language plpgsql as $$
    declare i int := 0;
    begin
        while size >= 32 and i < max loop
            begin
                if fails then
                    raise exception using errcode = '53200';
                end if;
                perform pg_catalog.set_config('fill.g' || i, repeat('x', size), false);
                i := i + 1;
            exception when out_of_memory then
                size := size / 2;
            end;
        end loop;
        return i;
    end $$";

/// Runs a statement while the process of the session gets only so much more memory, as if others had
/// taken the rest. The statement has run before, so that most of what it needs is there. Returns how
/// it ended.
async fn squeezed(cluster: &Cluster, session: &Session, sql: &str, room: u64) -> End {
    let pid = session.text("select pg_backend_pid()").await;
    let prepared = session.prepare(sql).await.expect(sql);
    let fill = session
        .prepare("select public.fill(1048576, 100000, false)")
        .await
        .expect("fill");
    session
        .sql("begin; savepoint warm; select public.fill(64, 3, false), public.fill(64, 3, true)")
        .await;
    let _ = session.query(&prepared, &[]).await;
    session.sql("rollback to warm").await;
    cluster.limit_memory(&pid, &size(&pid).to_string());
    let filled = session.query_one(&fill, &[]).await;
    cluster.limit_memory(&pid, &(size(&pid) + room).to_string());
    let result = match filled {
        Ok(_) => session.query(&prepared, &[]).await,
        Err(e) => Err(e),
    };
    if is_of_set_clause(&result) {
        return End::OfSession;
    }
    if !is_end(&result) {
        eprintln!("{sql}: {result:?}");
        return End::Wrong;
    }
    let committed = session.batch_execute("commit").await;
    cluster.limit_memory(&pid, "unlimited");
    match is_end(&committed) {
        true => End::AsItShould,
        false => End::Wrong,
    }
}

/// What is left for a process. The C library asks for 132 kB at once, so less is nothing.
const ROOMS: [u64; 6] = [0, 140_000, 280_000, 700_000, 1_500_000, 5_000_000];

/// Calls with lists and with several documents, for which there is more to allocate.
const WITH_LISTS: [&str; 6] = [
    "select fetchq.doc_put('q', 's' || i) from generate_series(1, 30) i",
    "select count(*) from fetchq.doc_append_many('q', array_fill('{\"a\": 1}'::jsonb, array[20000]))",
    "select count(*) from fetchq.doc_pick('q', 3000)",
    "select count(*) from fetchq.doc_complete_many('q', array(select subject::text from fetchq_data.q__docs where status = 2))",
    "select count(*) from fetchq.docs_settle('q', (select jsonb_agg(jsonb_build_object('subject', i::text, 'action', 'drop')) from generate_series(1, 3000) i))",
    "select fetchq.docs_drop('q', '{\"all\": true}', 100000)",
];

#[tokio::test]
async fn a_session_that_gets_no_more_memory_raises_errors() {
    let cluster = Cluster::new("squeezed", "fsync = off\nlog_min_messages = error");
    cluster.start();
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session.sql("create extension fetchq").await;
    session.sql(MAKE_FILL).await;
    prepare_calls(&session).await;
    let calls: Vec<String> = (calls().iter())
        .filter(|call| !call.is_procedure)
        .map(Call::with_literals)
        .collect();
    let once = ROOMS
        .iter()
        .flat_map(|room| calls.iter().map(|call| (*room, call.as_str())));
    let lists = (0..40).flat_map(|n| WITH_LISTS.map(|call| (n * 140_000, call)));
    // It goes on after an ERROR for want of memory, with the next queue.
    let goes_on = "select * from fetchq.queue_truncate_all(empty => false)";
    let fine = (0..60).map(|n| (n * 40_960, goes_on));
    let (mut wrong, mut ended) = (Vec::new(), 0);
    for (room, sql) in lists.chain(once).chain(fine) {
        let session = server.connect_when_up("postgres").await;
        match squeezed(&cluster, &session, sql, room).await {
            // The same session works again.
            End::AsItShould => session.sql("select * from fetchq.doc_pick('other')").await,
            End::Wrong => wrong.push(format!("{sql}, room {room}")),
            End::OfSession => ended += 1,
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(ended < 10, "{ended} sessions have ended");
    let crashes = crashes(&cluster);
    assert!(crashes.is_empty(), "{}", crashes.join("\n"));
    works(&server, "other").await;
}

#[tokio::test]
async fn a_background_worker_that_gets_no_more_memory_goes_on_later() {
    let cluster = with_worker("squeezed_worker", "fsync = off\nlog_min_messages = error");
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q' || i) from generate_series(1, 30) i")
        .await;
    worker_comes(&session, "postgres").await;
    for turn in 0..10u64 {
        for kind in [WORKER, LAUNCHER] {
            if let Some(pid) = process_id(&session, kind).await {
                let pid = pid.to_string();
                cluster.limit_memory(&pid, &(size(&pid) + turn % 3 * 40_960).to_string());
            }
        }
        session
            .sql(&format!(
                "select fetchq.doc_put('q' || i, 't{turn}', due_at => now() + interval '100 ms') from generate_series(1, 30) i"
            ))
            .await;
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
        for kind in [WORKER, LAUNCHER] {
            if let Some(pid) = process_id(&session, kind).await {
                cluster.unlimit_memory_if_there(pid);
            }
        }
    }
    wait_until("all documents are due", async || {
        session
            .text("select (select count(*) from fetchq_data.q1__docs where status = 0) + (select count(*) from fetchq_data.q30__docs where status = 0)")
            .await
            == "0"
    })
    .await;
    let crashes = crashes(&cluster);
    assert!(crashes.is_empty(), "{}", crashes.join("\n"));
    works(&server, "q1").await;
}
