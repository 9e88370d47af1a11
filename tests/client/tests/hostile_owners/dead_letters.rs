//! Dead letters that pass between owners that do not trust one another.

use super::*;

/// A database with mallory, and with alice, who may call everything and owns nothing yet.
async fn lair_with_alice(name: &str) -> (Database, Session) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    session.sql(LAIR).await;
    session
        .sql(
            "do $$ begin
                 if not exists (select from pg_roles where rolname = 'alice') then create role alice; end if;
             end $$;
             grant usage on schema fetchq, fetchq_data to alice;
             grant execute on all functions in schema fetchq to alice",
        )
        .await;
    (db, session)
}

#[tokio::test]
async fn dead_letters_between_owners_run_with_the_rights_of_each() {
    let cluster = with_worker("letters", "");
    let (db, session, mallory) = lair(&cluster, "letters").await;
    worker_comes(&session, &db.name).await;
    mail_and_evil(&session, &mallory).await;
    session
        .sql(
            "set role mallory;
             create trigger a before insert or update or delete on fetchq_data.evil__docs
                 for each row execute function lair.on_change('row');
             create constraint trigger z after insert on fetchq_data.evil__docs
                 deferrable initially deferred for each row execute function lair.on_change('deferred');
             reset role;
             update fetchq.queues set dead_letter = 'evil', max_attempts = 1 where name = 'mail'",
        )
        .await;
    // The settings are committed before: a commit wakes the background worker a moment before it tells
    // the other sessions that settings have changed, and the lease is over at once.
    session
        .sql(
            "select fetchq.doc_push('mail', 'a', '{\"n\": 1}');
             select fetchq.doc_pick('mail', 0, 1, '1 ms')",
        )
        .await;
    wait_until("the document has moved", async || {
        session
            .text("select count(*) from fetchq_data.evil__docs where origin ->> 'queue' = 'mail'")
            .await
            == "1"
    })
    .await;
    assert_eq!(runs(&session, "row before insert evil__docs").await, 1);
    assert_eq!(runs(&session, "deferred after insert evil__docs").await, 1);
    nothing_was_gained(&session).await;
    let kept = session
        .rows("select subject, version, status, payload, origin ->> 'subject', last_error is not null from fetchq_data.evil__docs")
        .await;
    assert_eq!(kept, ["a|0|1|{\"n\": 1}|a|t"]);

    // And back again, by a superuser: mallory could have changed it, so she must be able to push it.
    let redrive = "select fetchq.queue_redrive('mail', 10, '{}')";
    assert_eq!(session.state(redrive).await, "42501");
    session
        .sql(&format!(
            "select fetchq.queue_grant('mail', 'mallory', 'producer'); {redrive};
             select fetchq.queue_revoke('mail', 'mallory', 'producer')"
        ))
        .await;
    assert_eq!(
        session
            .text("select status from fetchq_data.mail__docs where subject = 'a'")
            .await,
        "1"
    );
    nothing_was_gained(&session).await;

    // Mallory may not write into mail.
    session
        .sql(
            "update fetchq.queues set dead_letter = null where name = 'mail';
             update fetchq.queues set dead_letter = 'mail', max_attempts = 1 where name = 'evil';
",
        )
        .await;
    mallory
        .sql(
            "select fetchq.doc_push('evil', 'spam');
             select fetchq.doc_pick('evil', 0, 1, '1 ms')",
        )
        .await;
    wait_until("the move was refused", async || {
        cluster
            .log_lines()
            .iter()
            .any(|line| line.contains("mail") && line.contains("mallory") && line.contains("evil"))
    })
    .await;
    assert_eq!(
        session
            .text("select count(*) from fetchq_data.mail__docs where subject = 'spam'")
            .await,
        "0"
    );
    // With the right to insert she may.
    session
        .sql("grant select, insert on fetchq_data.mail__docs to mallory")
        .await;
    wait_until("the document has moved", async || {
        session
            .text("select count(*) from fetchq_data.mail__docs where subject = 'spam'")
            .await
            == "1"
    })
    .await;
}

/// Constraint triggers of two owners may have the same name. What one of them has deferred runs with
/// none of the rights of the other, also when a session moves a dead letter or redrives.
#[tokio::test]
async fn deferred_triggers_of_one_name_run_with_the_rights_of_their_owners() {
    let (db, session) = lair_with_alice("hostile_names").await;
    session
        .sql(
            "create function public.nothing() returns trigger language plpgsql as 'begin return null; end';
             set role mallory;
             select fetchq.queue_create('evil');
             create constraint trigger z after insert or update or delete on fetchq_data.evil__docs
                 deferrable initially deferred for each row execute function lair.on_change('deferred');
             reset role;
             set role alice;
             select fetchq.queue_create('mail'), fetchq.queue_create('letters');
             create constraint trigger z after insert on fetchq_data.letters__docs
                 deferrable initially deferred for each row execute function public.nothing();
             create constraint trigger z after insert on fetchq_data.mail__docs
                 deferrable initially deferred for each row execute function public.nothing();
             select fetchq.queue_grant('letters', 'mallory', 'producer');
             select fetchq.queue_configure('mail', '{\"dead_letter\": \"letters\"}');
             select fetchq.queue_grant('mail', 'mallory', 'worker');
             reset role;
             select fetchq.queue_configure('evil', '{\"dead_letter\": \"letters\"}')",
        )
        .await;
    // What is deferred runs before COMMIT: an assertion of PostgreSQL 15 forbids that a trigger
    // catches an error within COMMIT, as this one does.
    let mallory = as_mallory(&db).await;
    for turn in ["kill", "reject"] {
        mallory
            .sql(&format!(
                "select fetchq.queue_set_max_attempts('evil', 1); select fetchq.queue_configure('evil', '{{\"rate\": {{\"picks\": 9, \"per\": \"1 s\"}}}}');
                 begin;
                 select fetchq.doc_push('evil', '{turn}'); select fetchq.doc_pick('evil', 1);
                 select fetchq.doc_{turn}('evil', '{turn}'{});
                 select fetchq.doc_push('evil', '{turn} 2'); select fetchq.doc_pick('evil', 1);
                 select fetchq.doc_kill('evil', '{turn} 2');
                 set constraints all immediate;
                 commit",
                if turn == "kill" { "" } else { ", 'why', '{}'" }
            ))
            .await;
    }
    // A redrive of another queue, while something of mallory's is deferred.
    session
        .sql("select fetchq.queue_grant('letters', 'mallory', 'worker')")
        .await;
    mallory
        .sql(
            "begin; select fetchq.doc_push('evil', 'pending');
             select fetchq.doc_push('mail', 'm'); select fetchq.doc_pick('mail', 1); select fetchq.doc_kill('mail', 'm');
             select fetchq.queue_redrive('mail', 10);
             set constraints all immediate;
             commit",
        )
        .await;
    assert_eq!(
        session
            .column("select subject from fetchq_data.letters__docs order by 1")
            .await,
        ["kill", "kill 2", "reject", "reject 2"]
    );
    assert!(runs(&session, "deferred").await > 0);
    nothing_was_gained(&session).await;
    drop((session, mallory));
    db.remove().await;
}

/// A column of the source has a type of its owner. Its cast does not run at all: such a queue is not opened.
#[tokio::test]
async fn casts_of_one_owner_do_not_run_as_another_one() {
    let (db, session) = lair_with_alice("hostile_casts").await;
    session
        .sql(
            "set role mallory;
             create type lair.kind as (v text);
             create function lair.to_text(lair.kind) returns text language plpgsql as $$
             begin perform lair.attack('cast'); return ($1).v; end $$;
             create cast (lair.kind as text) with function lair.to_text(lair.kind) as assignment;
             select fetchq.queue_create('evil');
             alter table fetchq_data.evil__docs alter column last_error type lair.kind using null;
             reset role;
             set role alice;
             select fetchq.queue_create('letters');
             select fetchq.queue_grant('letters', 'mallory', 'producer');
             reset role;
             set role mallory;
             select fetchq.queue_configure('evil', '{\"dead_letter\": \"letters\"}');
             insert into fetchq_data.evil__docs (subject, status, next_iteration, lease, attempts, last_error)
             values ('a', 2, now() + '1 hour', 1, 1, row('x'));
             reset role",
        )
        .await;
    let mallory = as_mallory(&db).await;
    for caller in [&mallory, &session] {
        let state = caller.state("select fetchq.doc_kill('evil', 'a')").await;
        assert_eq!(state, "42P16");
    }
    let letters = "select count(*) from fetchq_data.letters__docs";
    assert_eq!(session.text(letters).await, "0");
    assert_eq!(runs(&session, "cast").await, 0);
    nothing_was_gained(&session).await;
    drop((session, mallory));
    db.remove().await;
}
