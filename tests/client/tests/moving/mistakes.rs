//! A move believes no record that another role can have written, and finishes or removes nothing on a
//! guess.

use super::{Hook, Stopped, ends_with, is_clean, live, mover, pair};

#[tokio::test]
async fn records_of_another_role_are_not_read() {
    let (_clusters, [from, to]) = pair(["move-h", "move-i"]).await;
    for (db, side) in [(&from, "the old server"), (&to, "the new server")] {
        let session = db.connect().await;
        session
            .sql(&format!(
                "create role stranger; grant create on database {} to stranger; set role stranger;
                 create schema fetchq_move;
                 create function fetchq_move.id() returns text language plpgsql
                     as $$ begin alter role stranger superuser; return 'ab'; end $$;
                 create view fetchq_move.moves as select fetchq_move.id() as id, s as side, array['q'] as queues,
                     'done'::text as state, '{{}}'::jsonb as detail, now() as since
                     from unnest('{{old,new}}'::text[]) s;
                 create table fetchq_move.rows (move text, queue text, source text, content jsonb)",
                db.name
            ))
            .await;
        for (option, status) in [("--status", 1), ("--abort", 2), ("--lock-timeout=1", 2)] {
            let (_, messages) = ends_with(mover(&from, &to, &["q"]).arg(option), status);
            assert!(
                messages.contains("belongs to stranger") && messages.contains(side),
                "{option}: {messages}"
            );
        }
        session.sql("reset role").await;
        assert_eq!(
            session
                .text("select rolsuper from pg_roles where rolname = 'stranger'")
                .await,
            "f"
        );
        session.sql("drop schema fetchq_move cascade").await;
    }
}

#[tokio::test]
async fn nothing_is_finished_or_removed_on_a_guess() {
    let ([_old, new], [from, to]) = pair(["move-j", "move-k"]).await;
    let (here, there) = (from.connect().await, to.connect().await);
    here.sql("select fetchq.queue_create('q'); select fetchq.doc_push('q', 'd' || n) from generate_series(1, 50) n;
              select fetchq.queue_create('lost'); select fetchq.doc_push('lost', 'd')")
        .await;

    // An unfinished move has tables on its server, and another one has not.
    let third = new.server().database("moving_third").await;
    Stopped::before(&mut mover(&from, &to, &["q"]), "catch-up").kill();
    let (_, messages) = ends_with(&mut mover(&from, &third, &["q"]), 2);
    assert!(messages.contains("goes to another server"), "{messages}");
    ends_with(mover(&from, &to, &["q"]).arg("--abort"), 0);
    is_clean(&here).await;
    is_clean(&there).await;

    // A right that is given to a role of the old server alone, after the check.
    let hook = Hook::new("role");
    let mut command = mover(&from, &to, &["q"]);
    command.args(["--lock-timeout", "20", "--before", &hook.waits()]);
    let running = hook.begins(&mut command).await;
    here.sql("create role later; select fetchq.queue_grant('q', 'later', 'reader')")
        .await;
    let messages = hook.ends(running);
    assert!(
        messages.contains("role \"later\" does not exist"),
        "{messages}"
    );
    assert_eq!(live(&here, &there).await, (true, false));
    is_clean(&here).await;
    is_clean(&there).await;
    there.sql("create role later").await;

    // The old server has lost the commit of the switch.
    Stopped::before(&mut mover(&from, &to, &["q"]), "clean").kill();
    here.sql(
        "update fetchq_move.moves set state = 'started';
              select fetchq.queue_place_set('q', null); select fetchq.queue_create('q')",
    )
    .await;
    let (_, messages) = ends_with(&mut mover(&from, &to, &["q"]), 2);
    assert!(
        messages.contains("has lost the commit of the switch"),
        "{messages}"
    );
    assert_eq!(
        here.text("select state from fetchq_move.moves").await,
        "started"
    );
    // What the hint says.
    here.sql(
        "select fetchq.queue_drop('q'); select fetchq.queue_place_set('q', 'there');
              drop schema fetchq_move cascade",
    )
    .await;
    let (line, _) = ends_with(&mut mover(&from, &to, &["q"]), 0);
    assert!(line.starts_with("moved 1 queue, 50 documents"), "{line}");
    is_clean(&here).await;
    is_clean(&there).await;

    // The new server has lost the end of the move.
    Stopped::before(&mut mover(&from, &to, &["lost"]), "finish").kill();
    there
        .sql("update fetchq_move.moves set state = 'copying'; delete from fetchq_move.rows")
        .await;
    let (_, messages) = ends_with(&mut mover(&from, &to, &["lost"]), 2);
    assert!(
        messages.contains("has lost the end of the move"),
        "{messages}"
    );
    let kept = "select (select count(*) from pg_subscription) || ' ' || (select count(*) from fetchq_data.lost__docs)";
    assert_eq!(there.text(kept).await, "1 1");
    assert_eq!(
        here.text("select count(*) from pg_replication_slots").await,
        "1"
    );
}
