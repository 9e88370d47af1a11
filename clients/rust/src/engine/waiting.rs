//! The session that waits for documents, for requests to stop, and for leases that end.

use super::*;

impl Engine {
    /// The wait that the session of a group should make now, or until when it has none to make.
    pub(crate) fn take_wait(&self, at: usize, now: f64) -> Next {
        let mut guard = self.lock();
        let s = &mut *guard;
        if s.polling || s.abandoned {
            return Next::Pause(NEVER);
        }
        if let Some(crowded) = s.crowded_at.filter(|crowded| now < crowded + 1.5) {
            return Next::Pause(crowded + 1.5);
        }
        let first = at == 0;
        let group = &s.groups[at];
        let quiet: BTreeSet<String> = group
            .lanes
            .iter()
            .filter(|lane| self.quiet(s, **lane, now))
            .map(|lane| s.lanes[*lane].queue.clone())
            .collect();
        let group = &mut s.groups[at];
        group.busy_at = if quiet.is_empty() {
            group.busy_at.min(now)
        } else {
            NEVER
        };
        if quiet.len() < group.lanes.len() && now < group.not_before {
            return Next::Pause(group.not_before);
        }
        let pending = group
            .lanes
            .iter()
            .map(|lane| s.lanes[*lane].quiet_at)
            .filter(|at| *at > now && *at < NEVER);
        let pending = pending.fold(NEVER, f64::min);
        if pending < now + HOLD {
            return Next::Pause(pending);
        }
        let (watched, younger) = if first {
            watchable(s, now)
        } else {
            (HashSet::new(), NEVER)
        };
        let pooled = if s.pooled { POOLED_WAIT } else { NEVER };
        let mut longest = LONGEST_WAIT.min(pooled) * between(0.9, 1.0);
        let group = &s.groups[at];
        let (mut queues, mut version) = (quiet.clone(), i64::from(group.version));
        if !quiet.is_empty() {
            longest = longest.min(younger - now);
        } else if !first || (s.stopping && watched.is_empty()) {
            return Next::Pause(younger);
        } else {
            // No slot is free. The session waits for requests to stop, and for what becomes of leases.
            let begin = group.busy_at + WATCH_AFTER;
            if now < begin {
                return Next::Pause(begin);
            }
            let open = s.lanes.iter().filter(|lane| !lane.closed && !s.stopping);
            queues = open.map(|lane| lane.queue.clone()).collect();
            version = NO_VERSION;
        }
        let leases = watched.iter().filter_map(|id| s.runs.get(id)).map(
            |run| json!({"queue": run.leased.queue, "subject": run.leased.subject, "lease": run.leased.lease}),
        );
        longest = longest.min(group.timeout).max(0.001);
        let mut query = q!(
            sql::WAIT,
            array(queues.iter().map(String::as_str)),
            self.settings.name,
            seconds(longest),
            Value::Array(leases.collect()),
            version,
            ""
        );
        query.values[5].clone_from(&group.mark);
        s.groups[at].call = Some(WaitCall {
            queues: quiet,
            watched,
            sent: now,
            longest,
            interrupted: false,
        });
        if younger < s.tick_at {
            self.topics.tick.notify_one();
        }
        Next::Wait(query)
    }

    /// Waits that end at once. Requests to stop count from then on, not from the first real wait, which may begin
    /// later or be interrupted.
    pub(crate) fn first_looks(&self) -> Vec<Query> {
        let s = self.lock();
        let look = |group: &Group| {
            let queues = group.lanes.iter().map(|lane| s.lanes[*lane].queue.as_str());
            let queues: BTreeSet<&str> = queues.collect();
            let mut query = q!(
                sql::WAIT,
                array(queues.into_iter()),
                self.settings.name,
                seconds(0.0),
                "[]",
                NO_VERSION,
                ""
            );
            query.values[5] = None;
            query
        };
        s.groups.iter().map(look).collect()
    }

    /// Keeps what the answer of a wait says the next one has to begin with.
    pub(crate) fn marked(&self, at: usize, row: Option<&Row>) {
        self.lock().groups[at].mark = mark(row);
    }

    /// Whether a lane needs somebody to say that there are documents.
    pub(super) fn quiet(&self, s: &State, at: usize, now: f64) -> bool {
        let lane = &s.lanes[at];
        !(lane.ready
            || lane.calling
            || !lane.settle.is_empty()
            || s.stopping
            || now < lane.not_before)
            && now >= lane.quiet_at
            && self.room(s, at) > 0
    }

    /// A wait has ended with an event, or without one when its time was over.
    pub(crate) fn waited(&self, at: usize, row: &Row, now: f64) {
        let mut guard = self.lock();
        let s = &mut *guard;
        let group = &mut s.groups[at];
        let call = group.call.take();
        group.mark = mark(Some(row));
        group.failures = 0;
        group.busy_at = NEVER;
        s.down_since = None;
        let slack = if s.pooled { CROWDED } else { 5.0 };
        if call
            .as_ref()
            .is_some_and(|call| now - call.sent > call.longest + slack)
        {
            self.poll_now(
                s,
                "a wait has taken longer than asked: the pooler has too few connections",
            );
        }
        let queue = text(row.get(1));
        match row.first().and_then(Value::as_str) {
            Some("ready" | "resumed") => {
                s.groups[at].not_before = now + HOLD;
                for lane in s.groups[at].lanes.clone() {
                    if Some(&s.lanes[lane].queue) == queue.as_ref() {
                        s.lanes[lane].ready = true;
                    }
                }
                self.topics.call();
            }
            Some("stop") => self.asked_to_stop(s, queue.as_deref()),
            Some(event @ ("cancelled" | "lost")) => {
                let reason = if event == "cancelled" {
                    Reason::Cancelled
                } else {
                    Reason::Lost
                };
                let queue = queue.unwrap_or_default();
                for subject in row.get(2).and_then(Value::as_array).into_iter().flatten() {
                    let key = (
                        queue.clone(),
                        subject.as_str().unwrap_or_default().to_owned(),
                    );
                    // It may have been settled since the wait began, and leased anew.
                    let id = s.keys.get(&key).copied();
                    let watched = call.as_ref().map(|call| &call.watched);
                    if let Some(id) = id.filter(|id| watched.is_some_and(|ids| ids.contains(id))) {
                        self.abort(s, id, reason, now);
                    }
                }
                s.groups[at].not_before = now + HOLD;
            }
            _ => {}
        }
    }

    /// A wait has failed. Gives for how long to wait before the next one.
    pub(crate) fn wait_failed(&self, at: usize, error: &Error, now: f64) -> f64 {
        let mut guard = self.lock();
        let s = &mut *guard;
        let group = &mut s.groups[at];
        let call = group.call.take();
        // A request to cancel may come late, and end the next wait.
        let late = error.sqlstate() == Some("57014") && now - group.interrupted_at < 10.0;
        if late || call.as_ref().is_some_and(|call| call.interrupted) {
            return 0.0;
        }
        group.failures += 1;
        let failures = group.failures;
        match (error.kind(), call) {
            (Kind::Conflict, Some(call)) => {
                // A statement_timeout ends each wait.
                group.timeout = ((now - call.sent) * 0.8).max(1.0);
                return between(0.0, 0.1);
            }
            (Kind::Config, _) => self.end(s, error),
            _ => {}
        }
        if matches!(failures, 1 | 5) {
            tracing::warn!(target: "fetchq", worker = self.settings.name, "waiting failed, and is repeated: {error}");
        }
        backoff(failures)
    }

    /// No session waits any more: queues without documents are asked again and again.
    pub(crate) fn poll_from_now_on(&self, why: &str) {
        self.poll_now(&mut self.lock(), why);
    }

    pub(super) fn poll_now(&self, s: &mut State, why: &str) {
        if s.polling {
            return;
        }
        s.polling = true;
        tracing::warn!(target: "fetchq", worker = self.settings.name, "the worker polls every {} s: {why}", self.settings.poll);
        s.lanes.iter_mut().for_each(|lane| lane.poll_at = 0.0);
        self.topics.all();
    }
}

fn mark(row: Option<&Row>) -> Option<String> {
    let mark = row?.get(3)?.as_array()?;
    Some(array(mark.iter().map(Value::to_string)))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Tested = Result<(), BoxError>;

    fn engine(concurrency: usize) -> Result<Engine, Error> {
        let settings = Settings {
            name: "w".into(),
            exclusive: true,
            concurrency,
            grace: 25.0,
            abort_grace: 5.0,
            stuck_after: 10.0,
            free_stuck: false,
            polling: false,
            poll: 1.0,
            max_bytes: 1 << 20,
            redact: None,
        };
        let task = TaskDef {
            queue: "q".into(),
            weight: 1,
            ..TaskDef::default()
        };
        Engine::new(settings, vec![task])
    }

    /// Leases documents, and starts their handlers.
    fn lease(engine: &Engine, subjects: &[&str], now: f64) -> Result<Vec<Job>, BoxError> {
        let call = engine.take_call(now).map_err(|_| "no call is due")?;
        let row = |subject: &&str| -> Row {
            let text: Value = (*subject).into();
            let (none, lease, seconds) = (Value::Null, json!(11), json!(60.0));
            vec![
                text,
                "{}".into(),
                "{}".into(),
                json!(1),
                none.clone(),
                lease,
                seconds.clone(),
                seconds,
                json!(0),
                none.clone(),
                none,
            ]
        };
        let rows: Vec<Row> = subjects.iter().map(row).collect();
        let jobs = engine.answered(call, &rows, &[], now);
        let began = |job: &Job| engine.begin(job.leased.id, job.task, now);
        Ok(jobs.into_iter().filter(began).collect())
    }

    fn wait(engine: &Engine, now: f64) -> Result<Query, BoxError> {
        match engine.take_wait(0, now) {
            Next::Wait(query) => Ok(query),
            Next::Pause(until) => Err(format!("no wait before {until}").into()),
        }
    }

    fn value(query: &Query, number: usize) -> &str {
        query.values[number].as_deref().unwrap_or_default()
    }

    #[test]
    fn a_session_watches_leases_and_for_a_stop_while_all_slots_are_taken() -> Tested {
        let engine = engine(1)?;
        let jobs = lease(&engine, &["x"], 0.0)?;
        assert!(wait(&engine, 0.0).is_err(), "most handlers are short");
        let query = wait(&engine, WATCH_AFTER)?;
        assert_eq!(value(&query, 0), r#"{"q"}"#);
        let seconds: f64 = value(&query, 2).replace(" seconds", "").parse()?;
        assert!(seconds > 30.0, "it does not ask again and again: {seconds}");
        assert!(value(&query, 3).contains(r#""subject":"x""#));
        assert_eq!(value(&query, 4), "-2147483648", "it waits for no document");
        let cancelled = vec!["cancelled".into(), "q".into(), json!(["x"]), Value::Null];
        engine.waited(0, &cancelled, 0.1);
        assert_eq!(jobs[0].leased.reason.get(), Some(&Reason::Cancelled));
        Ok(())
    }

    #[test]
    fn a_lease_that_ended_is_not_the_next_one_of_its_document() -> Tested {
        let engine = engine(2)?;
        lease(&engine, &["x"], 0.0)?;
        wait(&engine, WATCH_AFTER)?;
        engine.lock().lanes[0].ready = true;
        let jobs = lease(&engine, &["x"], 0.05)?;
        engine.waited(
            0,
            &vec!["lost".into(), "q".into(), json!(["x"]), Value::Null],
            0.1,
        );
        assert_eq!(jobs[0].leased.reason.get(), None);
        Ok(())
    }

    #[test]
    fn a_wait_that_has_begun_is_interrupted_for_a_younger_lease() -> Tested {
        let engine = engine(2)?;
        let jobs = lease(&engine, &["x", "y"], 0.0)?;
        if let Some(run) = engine.lock().runs.get_mut(&jobs[1].leased.id) {
            run.sent = 0.02;
        }
        assert!(wait(&engine, 0.0).is_err());
        assert!(!value(&wait(&engine, WATCH_AFTER)?, 3).contains(r#""subject":"y""#));
        let (due, interrupted) = engine.tick(WATCH_AFTER);
        assert!((due - 0.05).abs() < 1e-9 && interrupted.is_empty(), "{due}");
        assert_eq!(engine.tick(due).1, [0]);
        assert!(
            engine.tick(due + 0.01).1.is_empty(),
            "a request has its time"
        );
        assert_eq!(engine.tick(due + AGAIN).1, [0], "and is repeated");
        let ended = Error::Server {
            code: "57014".into(),
            message: String::new(),
            routine: None,
        };
        assert_eq!(engine.wait_failed(0, &ended, due + AGAIN), 0.0);
        assert!(value(&wait(&engine, due + AGAIN)?, 3).contains(r#""subject":"y""#));
        Ok(())
    }
}
