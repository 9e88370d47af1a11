//! The course of a run of `fetchq move`.
use std::time::{Duration, Instant};

use fetchq_domain::names::{LINE, QueueName, is_line};
use serde_json::{Value, json};

use crate::args::MoveArgs;
use crate::failure::{Failure, Result};
use crate::hooks::{self, When};
use crate::left::{self, Left};
use crate::names::{parse_all, texts};
use crate::pause;
use crate::records::{self, Record};
use crate::rest::{self, Queue};
use crate::say::{count, list, say};
use crate::server::{Server, Side};
use crate::stage::Staged;
use crate::step::{Step, Stops};
use crate::stream::{self, Names};
use crate::switch::{Switch, is_committed};
use crate::{check, clean, finish, stage, status};

/// How often the switch is tried when the queues could not be locked, or the new server was too slow.
const TRIES: u32 = 5;

/// The pause between two tries.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// How long a server that has gone away is waited for.
const RECONNECT: Duration = Duration::from_secs(60);

/// A run: its options, and the sessions of both servers.
struct Run<'a> {
    args: &'a MoveArgs,
    queues: Vec<QueueName>,
    place: String,
    stops: Stops,
    /// The session that holds the lock of this run, and locks the queues.
    old: Server,
    /// Another one, for what is looked up meanwhile.
    watch: Server,
    new: Server,
}

/// How a run has ended.
pub enum Ended {
    /// As asked; the line says what was done.
    Done(String),
    /// Nothing has moved.
    Failed(Failure),
    /// The switch is committed, or that is not known. The same command has to be run again.
    Unfinished(Failure),
    /// Nothing was done, and what an earlier run has done could not be found out.
    Unknown(Failure),
}

/// Runs the command.
pub async fn run(args: &MoveArgs) -> Ended {
    let (stops, queues) = match read(args) {
        Ok(read) => read,
        Err(failure) => return Ended::Failed(failure),
    };
    match connect(args, stops, queues).await {
        Ok(run) => run.go().await,
        Err(failure) if args.status || args.dry_run => Ended::Failed(failure),
        Err(failure) => Ended::Unknown(failure),
    }
}

fn read(args: &MoveArgs) -> Result<(Stops, Vec<QueueName>)> {
    let stops = Stops::from_environment()?;
    match &args.place {
        Some(place) if !is_line(place) => Err(Failure::new(format!("--place must be {LINE}"))),
        _ => Ok((stops, parse_all(&args.queues)?)),
    }
}

async fn connect(args: &MoveArgs, stops: Stops, queues: Vec<QueueName>) -> Result<Run<'_>> {
    let old = Server::connect(Side::Old, &args.from).await?;
    let watch = Server::connect(Side::Old, &args.from).await?;
    let new = Server::connect(Side::New, &args.to).await?;
    let place = args.place.clone().unwrap_or_else(|| new.place.clone());
    Ok(Run {
        args,
        queues,
        place,
        stops,
        old,
        watch,
        new,
    })
}

impl Run<'_> {
    async fn go(self) -> Ended {
        if self.args.status {
            return match status::lines(&self.old, &self.new, &self.queues).await {
                Ok(lines) => Ended::Done(lines.join("\n")),
                Err(failure) => Ended::Failed(failure),
            };
        }
        if self.args.dry_run {
            return match self.check().await {
                Ok(_) => Ended::Done(format!("{} can move", count(self.n(), "queue"))),
                Err(failure) => Ended::Failed(failure),
            };
        }
        match left::look_back(&self.old, &self.watch, &self.new, &self.queues).await {
            Err(failure) => Ended::Unknown(failure),
            Ok(Left::Committed(record)) => self.go_on(&record).await,
            Ok(Left::Unfinished(ids)) => self.begin_anew(&ids).await,
            Ok(Left::Nothing) if self.args.abort => {
                Ended::Done("there is nothing to remove".to_owned())
            }
            Ok(Left::Nothing) => self.move_them().await,
        }
    }

    fn n(&self) -> i64 {
        self.queues.len() as i64
    }

    /// Finishes a move whose switch is committed.
    async fn go_on(&self, record: &Record) -> Ended {
        if let Err(failure) = records::require_same(record, &self.queues) {
            return Ended::Unfinished(failure);
        }
        if self.args.abort {
            return Ended::Unfinished(Failure::new(
                "the switch is committed, and the queues live on the new server: it cannot be undone",
            ));
        }
        say("the switch is committed: finishing it");
        self.complete(&record.id).await
    }

    /// Removes what an earlier run has left, and moves the queues unless that was all that was asked.
    async fn begin_anew(&self, ids: &[String]) -> Ended {
        say("an earlier run was not finished: removing what it has left");
        // It may have held back the clients. They work on while the tables are copied again.
        if let Err(failure) = self.hook(When::Undo).await {
            say(&failure.to_string());
        }
        for id in ids {
            if let Err(failure) = self.clean(id).await {
                return Ended::Failed(failure);
            }
        }
        match self.args.abort {
            true => Ended::Done("what the move had made is removed".to_owned()),
            false => self.move_them().await,
        }
    }

    /// Removes everything that an unfinished move has made.
    async fn clean(&self, id: &str) -> Result<()> {
        left::clean(&self.old, &self.new, id, &self.queues).await
    }

    /// Moves the queues.
    async fn move_them(&self) -> Ended {
        if let Some(line) = self.has_moved().await {
            return Ended::Done(line);
        }
        let queues = match self.check().await {
            Ok(queues) => queues,
            Err(failure) => return Ended::Failed(failure),
        };
        let id = match self.prepare().await {
            Ok(id) => id,
            Err(failure) => return Ended::Failed(failure),
        };
        if let Err(failure) = self.record(&id).await {
            return Ended::Failed(self.give_up(&id, failure).await);
        }
        match self.try_to_switch(&id, &queues).await {
            Ok(true) => self.complete(&id).await,
            Ok(false) => Ended::Unfinished(Failure::new(
                "the connection was lost at the commit, and the old server does not say whether it has committed",
            )),
            Err(failure) => Ended::Failed(self.give_up(&id, failure).await),
        }
    }

    /// Checks both servers. What the old one says of the pause it says before hours of copying.
    async fn check(&self) -> Result<Vec<Queue>> {
        self.stops.before(Step::Check).await;
        let queues = check::check(&self.old, &self.new, &self.queues).await?;
        let limit = self.args.pause_limit;
        pause::require_short(&self.watch, None, &self.queues, limit).await?;
        Ok(queues)
    }

    /// A line for queues that an earlier run has moved, all of them and to this server.
    async fn has_moved(&self) -> Option<String> {
        const PLACES: &str =
            "select count(*) from fetchq.queue_places where queue = any ($1::text[])";
        let names = texts(&self.queues);
        let given = self.old.first(PLACES, &[&names]).await.ok()??;
        let there = check::read_queues(&self.new, &self.queues).await.ok()?;
        let is_all = given.get::<_, i64>(0) == self.n() && there.len() == self.queues.len();
        is_all.then(|| {
            let list = list(names.iter().copied());
            format!("nothing to do: {list} had moved before")
        })
    }

    async fn prepare(&self) -> Result<String> {
        self.stops.before(Step::Record).await;
        records::prepare(&self.new).await?;
        records::prepare(&self.old).await?;
        records::new_id(&self.new).await
    }

    async fn record(&self, id: &str) -> Result<()> {
        let to = check::identity_of(&self.new).await?;
        records::add(&self.old, id, &self.queues, records::STARTED).await?;
        records::set(&self.old, id, records::STARTED, &json!({"to": to})).await?;
        records::add(&self.new, id, &self.queues, records::COPYING).await
    }

    /// Cleans up after a failure before the switch, also when a server had gone away.
    async fn give_up(&self, id: &str, failure: Failure) -> Failure {
        say(&format!("failed: {}", first_line(&failure)));
        say("nothing has moved: removing what was made");
        // The sessions may be lost, or in a transaction.
        self.old.roll_back().await;
        let cleaned = match self.clean(id).await {
            Ok(()) => Ok(()),
            Err(_) => self.clean_anew(id).await,
        };
        match cleaned {
            Ok(()) => {
                say("everything is removed, and the queues work on where they are");
                failure
            }
            Err(other) => Failure::new(format!(
                "{failure}\nand what was made could not be removed: {other}"
            ))
            .with_hint("Run the command with --abort, or again, when both servers are there."),
        }
    }

    /// Cleans up with new sessions.
    async fn clean_anew(&self, id: &str) -> Result<()> {
        let old = reconnect(Side::Old, &self.args.from).await?;
        let new = reconnect(Side::New, &self.args.to).await?;
        // The session with the server that is still there has these locks.
        for server in [&self.old, &self.watch, &self.new] {
            server.roll_back().await;
            records::unlock(server).await;
        }
        records::lock(&old, records::Session::Main, &self.queues).await?;
        records::lock(&new, records::Session::Main, &self.queues).await?;
        left::clean(&old, &new, id, &self.queues).await
    }

    /// Copies the tables and switches. Returns true when the old server has committed, false when that
    /// is not known. An error: it has not.
    async fn try_to_switch(&self, id: &str, queues: &[Queue]) -> Result<bool> {
        let objects = Names::of(id);
        self.stops.before(Step::Stage).await;
        let staged = stage::make(&self.watch, &self.new, id, queues).await?;
        self.copy(id, queues, &staged.shapes, &objects).await?;
        let mut tries = 1;
        loop {
            let switch = self.switch(id, queues, &staged, &objects);
            match self.try_once(&switch).await {
                Err(failure) if failure.is_busy() && tries < TRIES => {
                    say(&format!("try {tries} of {TRIES}: {}", first_line(&failure)));
                    tries += 1;
                    tokio::time::sleep(RETRY_AFTER).await;
                    stream::wait_until_close(&self.watch, &objects).await?;
                }
                other => return other,
            }
        }
    }

    fn switch<'s>(
        &'s self,
        id: &'s str,
        queues: &'s [Queue],
        staged: &'s Staged,
        objects: &'s Names,
    ) -> Switch<'s> {
        Switch {
            old: &self.old,
            watch: &self.watch,
            new: &self.new,
            id,
            queues,
            names: &self.queues,
            staged,
            objects,
            place: &self.place,
            lock_timeout: self.args.lock_timeout,
            pause_limit: self.args.pause_limit,
            stops: self.stops,
        }
    }

    /// Copies the tables while the queues work.
    async fn copy(
        &self,
        id: &str,
        queues: &[Queue],
        shapes: &[Value],
        objects: &Names,
    ) -> Result<()> {
        let published = stream::published(queues, shapes);
        let histories = published.iter().filter(|queue| queue.has_history).count();
        self.stops.before(Step::Publish).await;
        stream::publish(&self.watch, &self.old, objects, &published).await?;
        self.stops.before(Step::Subscribe).await;
        let dsn = self.args.subscribe.as_ref().unwrap_or(&self.args.from);
        stream::subscribe(&self.new, objects, dsn, histories > 0).await?;
        self.stops.before(Step::Copy).await;
        say("copying the tables, while the queues work");
        let expected = (3 * queues.len() + histories) as i64;
        if let Some(oid) = clean::subscription(&self.new, objects).await? {
            let detail = json!({"subscription": oid});
            records::set(&self.watch, id, records::STARTED, &detail).await?;
        }
        stream::wait_for_copies(&self.new, objects, expected).await?;
        say("the tables are copied: vacuuming the documents");
        stream::vacuum(&self.new, queues).await?;
        let limit = self.args.pause_limit;
        pause::require_short(&self.watch, Some(&self.new), &self.queues, limit).await?;
        say("waiting until the new server is close behind");
        stream::wait_until_close(&self.watch, objects).await
    }

    /// Tries to switch. A try that fails is undone.
    async fn try_once(&self, switch: &Switch<'_>) -> Result<bool> {
        self.stops.before(Step::Before).await;
        let done = self.pause_and_commit(switch).await;
        if done.is_err()
            && let Err(failure) = self.hook(When::Undo).await
        {
            say(&failure.to_string());
        }
        done
    }

    async fn pause_and_commit(&self, switch: &Switch<'_>) -> Result<bool> {
        self.hook(When::Before).await?;
        self.stops.before(Step::Lock).await;
        say("locking the queues");
        let documents = switch.prepare().await?;
        let documents = count(documents, "document");
        say(&format!("the new server has all {documents}: committing"));
        self.commit(switch).await
    }

    async fn commit(&self, switch: &Switch<'_>) -> Result<bool> {
        let Err(failure) = switch.commit().await else {
            return Ok(true);
        };
        say(&format!(
            "no answer to the commit: {}",
            first_line(&failure)
        ));
        let Ok(old) = reconnect(Side::Old, &self.args.from).await else {
            return Ok(false);
        };
        // The session of the commit had this lock, so that it is decided afterwards.
        if records::lock(&old, records::Session::Main, &self.queues)
            .await
            .is_err()
        {
            return Ok(false);
        }
        match is_committed(&old, switch.id, &self.queues).await {
            Ok(true) => Ok(true),
            Ok(false) => Err(failure),
            Err(_) => Ok(false),
        }
    }

    async fn hook(&self, when: When) -> Result<()> {
        // A pooler that pauses holds the clients back from the first moment on.
        let limit = Duration::from_secs(self.args.lock_timeout.into());
        let (command, limit) = match when {
            When::Before => (&self.args.before, Some(limit)),
            When::After => (&self.args.after, None),
            When::Undo => (&self.args.undo, None),
        };
        hooks::run(when, command.as_deref(), &self.queues, &self.place, limit).await
    }

    /// Finishes a move whose switch is committed.
    async fn complete(&self, id: &str) -> Ended {
        match self.complete_all(id).await {
            Ok(line) => Ended::Done(line),
            Err(failure) => Ended::Unfinished(failure),
        }
    }

    async fn complete_all(&self, id: &str) -> Result<String> {
        self.stops.before(Step::Finish).await;
        let (new, record) = self.finish(id).await?;
        let new = new.as_ref().unwrap_or(&self.new);
        // The clients do not wait for an old server that is gone.
        match left::require_given_away(&self.watch, id).await {
            Err(failure) if !failure.is_lost() => return Err(failure),
            _ => {}
        }
        self.stops.before(Step::After).await;
        self.hook(When::After).await?;
        finish::pack(new).await;
        self.stops.before(Step::Clean).await;
        say("removing publications and slot");
        let oid = records::find(&self.watch, &self.queues)
            .await
            .ok()
            .and_then(|found| {
                found
                    .iter()
                    .find_map(|record| record.number("subscription"))
            });
        if clean::old_server(&self.watch, id, oid).await.is_err() {
            let old = reconnect(Side::Old, &self.args.from).await?;
            left::require_given_away(&old, id).await?;
            clean::old_server(&old, id, oid).await?;
        }
        // Last of all: it has what the last line says.
        records::remove(new, id).await?;
        let paused = record.number("paused_ms").unwrap_or(0);
        let documents = record.number("documents").unwrap_or(0);
        Ok(last_line(self.n(), documents, paused))
    }

    /// Makes the queues live on the new server, also when that has gone away and comes back. Returns a
    /// new session if there had to be one, and the record.
    async fn finish(&self, id: &str) -> Result<(Option<Server>, Record)> {
        match self.finish_on(&self.new, id).await {
            Err(failure) if failure.is_lost() => {
                say(&format!("the new server is gone: {}", first_line(&failure)));
                let new = reconnect(Side::New, &self.args.to).await?;
                records::lock(&new, records::Session::Main, &self.queues).await?;
                let record = self.finish_on(&new, id).await?;
                Ok((Some(new), record))
            }
            other => other.map(|record| (None, record)),
        }
    }

    /// Refuses to finish a move of which the new server has not everything.
    async fn require_whole(&self, new: &Server, record: &Record) -> Result<()> {
        let rows = records::count_rows(new, &record.id).await?;
        if record.state == records::READY && record.number("rows") == Some(rows) {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{} has lost the end of the move: its record is \"{}\", with {rows} rows. The old server has committed the \
             switch",
            new.name(),
            record.state
        ))
        .with_hint(format!(
            "Was it restored, or did a standby take over that lacked the last commits? Nothing was removed: the \
             replication slot {} of the old server still has all changes of the documents.",
            Names::of(&record.id).slot
        )))
    }

    async fn finish_on(&self, new: &Server, id: &str) -> Result<Record> {
        let find = async || -> Result<Record> {
            let found = records::find(new, &self.queues).await?;
            found
                .into_iter()
                .find(|record| record.id == id)
                .ok_or_else(|| {
                    Failure::new(format!("{}: the record of the move is gone", new.name()))
                })
        };
        let record = find().await?;
        if record.state == records::DONE {
            return Ok(record);
        }
        self.require_whole(new, &record).await?;
        let locked_at = record
            .number("locked_at")
            .unwrap_or_else(crate::say::now_ms);
        let queues = rest::numbered(&self.queues, &record.detail)?;
        finish::finish(new, id, &queues, locked_at).await?;
        say("the queues are live on the new server");
        find().await
    }
}

/// Connects to a server that has gone away, as soon as it is back.
async fn reconnect(side: Side, dsn: &str) -> Result<Server> {
    let began = Instant::now();
    loop {
        match Server::connect(side, dsn).await {
            Err(failure) if failure.is_lost() && began.elapsed() < RECONNECT => {
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            other => return other,
        }
    }
}

fn first_line(failure: &Failure) -> String {
    let text = failure.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

/// The last line of the output.
fn last_line(queues: i64, documents: i64, paused_ms: i64) -> String {
    format!(
        "moved {}, {}; paused for {:.2} s",
        count(queues, "queue"),
        count(documents, "document"),
        paused_ms as f64 / 1000.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_the_numbers() {
        assert_eq!(
            last_line(1, 1_000_000, 412),
            "moved 1 queue, 1000000 documents; paused for 0.41 s"
        );
        assert_eq!(
            last_line(2, 1, 0),
            "moved 2 queues, 1 document; paused for 0.00 s"
        );
    }

    #[test]
    fn a_progress_line_has_no_hint() {
        let failure = Failure::new("it is full").with_hint("Make room.");
        assert_eq!(first_line(&failure), "it is full");
    }
}
