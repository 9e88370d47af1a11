//! Schedules: each tick is pushed exactly once, whatever ends the session that pushes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use fetchq_client_tests::{
    Cluster, Server, Session, counters_are_exact, wait_until, with_worker, worker_comes,
};

/// Time zones with daylight-saving time of an hour or half an hour: two changes in each year.
const CHANGING: [&str; 3] = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"];
const ZONES: [&str; 5] = [
    "UTC",
    "Asia/Kolkata",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
];

/// The expected ticks, in plain SQL.
enum Expected {
    /// Whenever the local time `l` satisfies this condition.
    Clock(&'static str),
    /// Once on each day that satisfies the first condition: at a time of day, or, when the clock
    /// skips that time, at the first later time.
    Day(&'static str, &'static str),
    /// Every n minutes from the start.
    Minutes(i32),
    /// Every day at the local time of the start, as PostgreSQL computes it.
    Days,
}

const KINDS: [(&str, &str, Expected); 10] = [
    (
        "quarter",
        "*/15 * * * *",
        Expected::Clock("extract(minute from l)::int % 15 = 0 and extract(second from l) = 0"),
    ),
    (
        "even",
        "0 */2 * * *",
        Expected::Clock(
            "extract(hour from l)::int % 2 = 0 and extract(minute from l) = 0 and extract(second from l) = 0",
        ),
    ),
    ("gap", "30 2 * * *", Expected::Day("true", "02:30")),
    ("gap2", "0 10 2 * * *", Expected::Day("true", "02:10")),
    ("twice", "45 1 * * *", Expected::Day("true", "01:45")),
    ("midnight", "@midnight", Expected::Day("true", "00:00")),
    (
        "office",
        "0 9 * * mon-fri",
        Expected::Day("extract(isodow from l) < 6", "09:00"),
    ),
    (
        "seconds",
        "*/20 30 8-17 * * 1-5",
        Expected::Clock(
            "extract(minute from l) = 30 and extract(hour from l) between 8 and 17 and extract(isodow from l) < 6",
        ),
    ),
    ("elapsed", "45 minutes", Expected::Minutes(45)),
    ("days", "every 1 day", Expected::Days),
];

impl Expected {
    /// A query of one column: the ticks from `from` to `to` in a time zone.
    fn sql(&self, zone: &str, from: &str, to: &str) -> String {
        let clock = format!(
            "select t, t at time zone '{zone}' as l from generate_series('{from}'::timestamptz, '{to}', '20 seconds') t"
        );
        match self {
            Self::Clock(when) => format!("select t from ({clock}) c where {when}"),
            // A day that begins before `from` may have ticked before it.
            Self::Day(when, time) => format!(
                "select t from (
                    select min(t) as t from (
                        select t, t at time zone '{zone}' as l
                        from generate_series('{from}'::timestamptz - interval '2 days', '{to}', '5 minutes') t) c
                    where {when} and l::time >= '{time}' group by l::date) d
                where t >= '{from}' and t <= '{to}'"
            ),
            Self::Minutes(n) => {
                format!("select generate_series('{from}'::timestamptz, '{to}', '{n} minutes') as t")
            }
            Self::Days => format!(
                "select t from (
                    select l at time zone '{zone}' as t
                    from generate_series('{from}'::timestamptz at time zone '{zone}', '{to}'::timestamptz at time zone '{zone}', '1 day') l) d
                where t <= '{to}'"
            ),
        }
    }
}

/// The weeks of next year with a clock change, in order: from, to.
async fn weeks(session: &Session) -> Vec<(String, String)> {
    let zones = CHANGING.map(|zone| format!("'{zone}'")).join(", ");
    let weeks = session
        .rows(&format!(
            "with hours as (
                select z, t, extract(epoch from (t at time zone z) - (t at time zone 'UTC')) as ahead
                from unnest(array[{zones}]) z,
                    generate_series(date_trunc('year', now()) + interval '1 year', date_trunc('year', now()) + interval '2 years', '30 minutes') t),
            changes as (
                select z, t, ahead <> lag(ahead) over (partition by z order by t) as is_change from hours)
            select t - case z when 'Europe/Berlin' then interval '3 days' else interval '2 days' end,
                t + case z when 'Europe/Berlin' then interval '4 days' else interval '2 days' end
            from changes where is_change order by t"
        ))
        .await;
    assert_eq!(weeks.len(), 6, "{weeks:?}");
    weeks
        .iter()
        .map(|week| week.split_once('|').unwrap())
        .map(|(from, to)| (from.to_owned(), to.to_owned()))
        .collect()
}

/// A pseudorandom number below `n`.
fn random(state: &AtomicU64, n: u64) -> u64 {
    let x = state
        .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 33) % n
}

async fn connected(server: &Server) -> Session {
    wait_until("the server answers", async || {
        match server.try_connect("postgres").await {
            Ok(session) => session.batch_execute("select").await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
    server.connect("postgres").await
}

/// Runs the schedules that are due at a simulated time (microseconds since 1970), until it is
/// stopped. It reconnects when its session ends.
async fn runs(
    server: Server,
    clock: Arc<AtomicI64>,
    is_over: Arc<AtomicBool>,
    seed: Arc<AtomicU64>,
) {
    'session: while !is_over.load(Ordering::Relaxed) {
        let Ok(session) = server.try_connect("postgres").await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        while !is_over.load(Ordering::Relaxed) {
            let micros = clock.load(Ordering::Relaxed);
            let limit = 1 + random(&seed, 30);
            let run = format!(
                "select processed from fetchq.schedule_run_at({limit}, 'epoch'::timestamptz + {micros} * interval '1 microsecond')"
            );
            match session.simple_query(&run).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(random(&seed, 4))).await,
                Err(_) => continue 'session,
            }
        }
    }
}

/// Fifty schedules over the weeks with clock changes, run by sessions that are terminated at
/// random, in different ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_tick_of_fifty_schedules_exactly_once() {
    let cluster = Cluster::new(
        "schedules",
        "fsync = off\nrestart_after_crash = on\nlog_min_messages = error\nmax_wal_size = 4GB",
    );
    cluster.start();
    let server = cluster.server();
    let mut session = connected(&server).await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q'); create table expected (subject text, week int)")
        .await;
    let weeks = weeks(&session).await;
    let seed = Arc::new(AtomicU64::new(20_260_329));
    let clock = Arc::new(AtomicI64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let runners: Vec<_> = (0..4)
        .map(|_| {
            tokio::spawn(runs(
                server.clone(),
                clock.clone(),
                is_over.clone(),
                seed.clone(),
            ))
        })
        .collect();

    let mut kills = 0;
    for (number, (from, to)) in weeks.iter().enumerate() {
        for zone in ZONES {
            let city = &zone[zone.rfind('/').map_or(0, |at| at + 1)..];
            for (kind, schedule, expected) in &KINDS {
                let name = format!("{kind} {city}");
                session
                    .sql(&format!(
                        "select fetchq.schedule_create('{name}', 'q', '{schedule}', timezone => '{zone}', catch_up => 'all',
                            catch_up_limit => 10000, starts_at => '{from}', ends_at => '{to}', replace => true);
                         insert into expected
                         select '{name}@' || to_char(t at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), {number}
                         from ({}) e",
                        expected.sql(zone, from, to)
                    ))
                    .await;
            }
        }
        let micros = |time: &str| {
            format!("select (extract(epoch from '{time}'::timestamptz) * 1000000)::bigint")
        };
        let mut now: i64 = session.text(&micros(from)).await.parse().unwrap();
        let end: i64 = session.text(&micros(to)).await.parse().unwrap();
        // The server crashes in two of the weeks.
        let crash_at = (number % 3 == 1).then_some(now + (end - now) / 2);
        let mut has_crashed = false;
        while now < end {
            // Usually the clock advances by minutes, now and then by half a day.
            let most = if random(&seed, 20) == 0 { 720 } else { 60 };
            now = (now + (1 + random(&seed, most) as i64) * 60_000_000).min(end);
            clock.store(now, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(3 + random(&seed, 8))).await;
            let others = "from pg_stat_activity where pid <> pg_backend_pid() and backend_type = 'client backend'";
            if crash_at.is_some_and(|at| at <= now) && !has_crashed {
                has_crashed = true;
                let chosen = format!(
                    "select pid {others} and state = 'active' union all select pid {others} limit 1"
                );
                // A session that was chosen may end by itself before it is killed: then another one is.
                wait_until("the server has noticed", async || {
                    let Ok(row) = session.query_opt(&chosen, &[]).await else {
                        return true;
                    };
                    if let Some(row) = row {
                        cluster.kill_if_there(row.get::<_, i32>(0).cast_unsigned());
                    }
                    false
                })
                .await;
                session = connected(&server).await;
                kills += 1;
            } else if random(&seed, 6) == 0 {
                let killed = session
                    .column(&format!("select pg_terminate_backend(pid) from (select pid {others} order by random() limit 1) k"))
                    .await;
                kills += killed.len();
            }
        }
        wait_until("all ticks of the week are pushed", async || {
            session
                .text("select count(*) from fetchq.schedules where next_tick is not null")
                .await
                == "0"
        })
        .await;
    }
    is_over.store(true, Ordering::Relaxed);
    for runner in runners {
        runner.await.unwrap();
    }

    assert_eq!(
        session.text("select count(*) from fetchq.schedules").await,
        "50"
    );
    assert!(kills > 30, "{kills} kills");
    for (what, sql) in [
        (
            "missing",
            "select subject from expected except select subject from fetchq_data.q__docs order by 1 limit 20",
        ),
        (
            "extra",
            "select subject from fetchq_data.q__docs except select subject from expected order by 1 limit 20",
        ),
        (
            "expected twice",
            "select subject from expected group by 1 having count(*) > 1 limit 20",
        ),
        (
            "planned for a wrong time",
            "select subject from fetchq_data.q__docs where next_iteration <> substr(subject, strpos(subject, '@') + 1)::timestamptz limit 20",
        ),
        (
            "failed",
            "select name from fetchq.schedules where attempts > 0 or last_error is not null",
        ),
    ] {
        let found = session.column(sql).await;
        assert!(found.is_empty(), "{what}: {found:#?}");
    }
    let expected: u32 = session
        .text("select count(*) from expected")
        .await
        .parse()
        .unwrap();
    assert!(expected > 15_000, "{expected}");
    // No tick was pushed a second time, when its document existed already.
    assert_eq!(
        session
            .text("select sum(ticks) from fetchq.schedules")
            .await,
        expected.to_string()
    );
    counters_are_exact(&mut session, "q").await;
    println!("{expected} ticks, {kills} kills");
}

/// The number of seconds since a point in time that have a document, and of those that lack one.
const EACH_SECOND: &str = "with ticks as (
        select substr(subject, 8)::timestamptz as t, created_at from fetchq_data.q__docs where subject like 'second@%')
    select count(*) from ticks
    having count(*) = extract(epoch from max(t) - min(t)) + 1";

#[tokio::test]
async fn ticks_are_on_time_and_complete_when_processes_are_killed() {
    let cluster = with_worker("ticking", "restart_after_crash = on");
    let db = cluster.server().database("ticking").await;
    let session = db.connect().await;
    let worker = "select pid from pg_stat_activity where backend_type = 'fetchq background worker' and datname = current_database()";
    wait_until("the background worker runs", async || {
        !session.column(worker).await.is_empty()
    })
    .await;
    session.sql("select fetchq.queue_create('q')").await;
    // The new schedule wakes the idle background worker at once.
    tokio::time::sleep(Duration::from_millis(500)).await;
    session
        .sql("select fetchq.schedule_create('second', 'q', '* * * * * *', '{\"n\": 1}')")
        .await;
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    let n: u32 = session.text(EACH_SECOND).await.parse().unwrap();
    assert!(n >= 3, "{n} ticks in 4 seconds");
    let late = session
        .text("select max(created_at - next_iteration) < interval '500 ms' and min(created_at - next_iteration) >= '0' from fetchq_data.q__docs")
        .await;
    assert_eq!(late, "t", "a tick was late");
    assert_eq!(session.text("select count(*) from fetchq_data.q__docs where status <> 1 or payload <> '{\"n\": 1}'").await, "0");

    // The background worker and the server are killed in different ways.
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(370)).await;
        session
            .sql("select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'fetchq background worker'")
            .await;
    }
    wait_until("the background worker runs", async || {
        !session.column(worker).await.is_empty()
    })
    .await;
    let pid = session.column(worker).await[0].clone();
    cluster.kill_if_there(pid.parse().unwrap());
    wait_until("the server has noticed", async || {
        session.batch_execute("select").await.is_err()
    })
    .await;
    let server = cluster.server();
    wait_until("the server answers", async || {
        match server.try_connect(&db.name).await {
            Ok(session) => session.batch_execute("select").await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
    let mut session = db.connect().await;
    let on = "select count(*) from fetchq_data.q__docs where next_iteration > now() - interval '1500 ms'";
    wait_until("the schedule ticks again", async || {
        session.text(on).await != "0"
    })
    .await;
    session.sql("select fetchq.schedule_pause('second')").await;
    let n = session.text(EACH_SECOND).await;
    assert_eq!(n, session.text("select ticks from fetchq.schedules").await);
    assert!(n.parse::<u32>().unwrap() > 5, "{n}");
    counters_are_exact(&mut session, "q").await;

    // A paused schedule pushes nothing, and skips the ticks of the pause.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(session.text(EACH_SECOND).await, n);
    session.sql("select fetchq.schedule_resume('second')").await;
    wait_until("the schedule continues", async || {
        session
            .text("select count(*) from fetchq_data.q__docs")
            .await
            .parse::<u32>()
            .unwrap()
            > n.parse::<u32>().unwrap() + 1
    })
    .await;
    session.sql("select fetchq.schedule_drop('second')").await;
    assert!(
        session.column(EACH_SECOND).await.is_empty(),
        "the ticks of the pause were pushed"
    );
}

#[tokio::test]
async fn a_failing_schedule_does_not_stop_others() {
    let cluster = with_worker("failing", "");
    let db = cluster.server().database("failing").await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q'), fetchq.queue_create('bad');
             create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'not today'; end $$;
             create trigger refuse before insert on fetchq_data.bad__docs for each row execute function public.refuse();
             select fetchq.schedule_create('bad', 'bad', '* * * * * *'), fetchq.schedule_create('good', 'q', '* * * * * *'),
                 fetchq.schedule_create('worse', 'q', '* * * * * *')",
        )
        .await;
    // This schedule is changed by plain SQL to a value that cannot be parsed.
    session
        .sql("update fetchq.schedules set cron = 'nonsense *' where name = 'worse'")
        .await;
    let list = "select name, state, ticks > 0, last_error from fetchq.schedule_list()";
    wait_until("all schedules have run more than once", async || {
        session
            .text("select count(*) from fetchq.schedules where attempts > 1 or ticks > 2")
            .await
            == "3"
    })
    .await;
    assert_eq!(
        session.rows(list).await,
        [
            "bad|failing|f|not today",
            "good|active|t|",
            "worse|failing|f|\"nonsense *\" is neither a cron expression nor an interval: it has 2 fields, not 5 or 6"
        ]
    );
    session
        .sql("drop trigger refuse on fetchq_data.bad__docs; select fetchq.schedule_resume('bad')")
        .await;
    wait_until("the schedule works again", async || {
        session
            .text("select attempts = 0 and ticks > 0 from fetchq.schedules where name = 'bad'")
            .await
            == "t"
    })
    .await;
    // A queue that is dropped while its schedules run takes its schedules with it.
    session.notices();
    session.sql("select fetchq.queue_drop('q')").await;
    let told: Vec<String> = session
        .notices()
        .iter()
        .map(|n| n.message().to_owned())
        .collect();
    assert!(
        told.iter()
            .any(|n| n.contains("the schedules of queue \"q\" are dropped too: good, worse")),
        "{told:?}"
    );
    assert_eq!(
        session
            .column("select name from fetchq.schedule_list()")
            .await,
        ["bad"]
    );
}

/// A run of large documents is done in parts, so that an owner cannot fill the memory of the background
/// worker: here 40 documents of a megabyte, of which one transaction takes 16.
#[tokio::test]
async fn a_large_run_is_done_in_parts() {
    const TICKS: i64 = 40;
    let cluster = with_worker("parts", "");
    let db = cluster.server().database("parts").await;
    let session = db.connect().await;
    worker_comes(&session, &db.name).await;
    session
        .sql(&format!(
            "select fetchq.queue_create('q');
             begin;
             select fetchq.schedule_create('big', 'q', 'every 1 hour', jsonb_build_object('x', repeat('y', 1048576)),
                 catch_up => 'all', catch_up_limit => 1000);
             update fetchq.schedules set every = '1 second', anchor = date_trunc('second', now()) - interval '{TICKS} s',
                 next_tick = date_trunc('second', now()) - interval '{TICKS} s',
                 due_at = now() - interval '{TICKS} s', ends_at = date_trunc('second', now()) - interval '1 s';
             commit"
        ))
        .await;
    let count = "select count(*) from fetchq_data.q__docs";
    wait_until("all ticks have happened", async || {
        session.text(count).await == TICKS.to_string()
    })
    .await;
    let runs = "select count(distinct xmin::text), max(n) from (
        select xmin, count(*) over (partition by xmin::text) as n from fetchq_data.q__docs) d";
    assert_eq!(session.rows(runs).await, ["3|15"]);
    let ticks = "select ticks, next_tick is null from fetchq.schedules";
    assert_eq!(session.rows(ticks).await, [format!("{TICKS}|t")]);
}

/// A tick that was on time when its run began is not missed because the parts before it took long.
#[tokio::test]
async fn no_part_of_a_run_is_missed_because_the_parts_before_it_took_long() {
    let cluster = with_worker("slow_parts", "");
    let db = cluster.server().database("slow_parts").await;
    let session = db.connect().await;
    worker_comes(&session, &db.name).await;
    // A part has one document, and takes four seconds. The ticks are 46 to 50 seconds old, and too old after 60:
    // the last one when its part begins, none when the run begins, also on a busy machine.
    session
        .sql(
            "select fetchq.queue_create('q');
             create function slow() returns trigger language plpgsql as 'begin perform pg_sleep(4); return new; end';
             create trigger slow before insert on fetchq_data.q__docs for each row execute function slow();
             begin;
             select fetchq.schedule_create('big', 'q', 'every 1 hour', jsonb_build_object('x', (
                     select string_agg(md5(i::text), '') from generate_series(1, 300000) i)),
                 catch_up => 'skip');
             update fetchq.schedules set every = '1 second', anchor = date_trunc('second', now()) - interval '50 s',
                 next_tick = date_trunc('second', now()) - interval '50 s',
                 due_at = now() - interval '50 s', ends_at = date_trunc('second', now()) - interval '46 s';
             commit",
        )
        .await;
    let state = "select ticks, next_tick is null from fetchq.schedules";
    wait_until("the schedule has ended", async || {
        session.rows(state).await[0].ends_with('t')
    })
    .await;
    assert_eq!(session.rows(state).await, ["5|t"]);
    let count = "select count(*) from fetchq_data.q__docs";
    assert_eq!(session.text(count).await, "5");
}
