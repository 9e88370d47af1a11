//! The calls that settle and lease: one at a time for each lane.

use super::*;

impl Engine {
    /// The next call that is due, or when one is.
    pub(crate) fn take_call(&self, now: f64) -> Result<Call, f64> {
        let mut s = self.lock();
        if s.abandoned {
            return Err(NEVER);
        }
        let count = s.lanes.len();
        let mut earliest = NEVER;
        for step in 0..count {
            let lane = (s.turn + step) % count;
            let due = self.due(&s, lane, now);
            if due > now {
                earliest = earliest.min(due);
                continue;
            }
            s.turn = lane + 1; // The others come first next time.
            return Ok(self.make_call(&mut s, lane, now));
        }
        Err(earliest)
    }

    fn due(&self, s: &State, at: usize, now: f64) -> f64 {
        let lane = &s.lanes[at];
        if lane.calling || (s.gave_up && s.finished()) {
            return NEVER;
        }
        let mut due = lane.sweeps.first().map_or(NEVER, |sweep| sweep.0);
        let leases = !s.stopping && self.room(s, at) > 0;
        if !lane.settle.is_empty() {
            due = due.min(if s.slots[lane.slots].jobs == 0 || s.stopping {
                now
            } else {
                lane.settle_at
            });
        } else if leases && (lane.ready || now >= lane.poll_at) {
            due = now;
        } else if leases && lane.poll_at < due {
            due = lane.poll_at;
        }
        due.max(lane.not_before)
    }

    fn make_call(&self, s: &mut State, at: usize, now: f64) -> Call {
        s.ids += 1;
        let id = s.ids;
        s.calls.insert(id, now);
        let name = &self.settings.name;
        let lane = &mut s.lanes[at];
        lane.calling = true;
        lane.quiet_at = NEVER;
        if lane.sweeps.first().is_some_and(|sweep| sweep.0 <= now) {
            let (_, pid) = lane.sweeps.remove(0);
            let query = q!(sql::LEASES, lane.queue, name, pid, self.settings.exclusive);
            return Call {
                id,
                lane: at,
                what: What::Leases,
                settled: Vec::new(),
                max_docs: 0,
                pid,
                sent: now,
                query,
            };
        }
        let most = if lane.isolate > 0 { 1 } else { MOST }.min(lane.settle.len());
        let settled: Vec<Settled> = lane.settle.drain(..most).collect();
        lane.settle_at = NEVER;
        let bodies: Vec<&str> = settled.iter().map(|one| one.body.as_str()).collect();
        let body = format!("[{}]", bodies.join(","));
        // What was sent before is sent alone: the server then says of each document what has become of it.
        let alone = s.stopping || lane.isolate > 0 || settled.iter().any(|one| one.resent);
        let room = if alone { 0 } else { self.room(s, at) };
        let lane = &s.lanes[at];
        let (what, query) = if room == 0 {
            (What::Settle, q!(sql::SETTLE, lane.queue, body, "report"))
        } else {
            let mut query = q!(sql::NEXT, lane.queue, body, room, "", lane.version, name);
            query.values[3].clone_from(&lane.lease);
            (What::Next, query)
        };
        Call {
            id,
            lane: at,
            what,
            settled,
            max_docs: room,
            pid: 0,
            sent: now,
            query,
        }
    }

    /// For how many documents there is room: by the task, by the process, and by their size.
    pub(super) fn room(&self, s: &State, at: usize) -> usize {
        let lane = &s.lanes[at];
        if lane.closed {
            return 0;
        }
        let limit = self.settings.concurrency;
        let mine = &s.slots[lane.slots];
        let left = limit.saturating_sub(s.jobs.len());
        let mut free = left;
        if s.slots.len() > 1 && free > 0 {
            let total: usize = s.slots.iter().map(|slots| slots.weight).sum();
            let share = |slots: &Slots| {
                (limit * slots.weight / total.max(1))
                    .max(1)
                    .min(slots.limit)
            };
            let hungry: BTreeSet<usize> = s
                .lanes
                .iter()
                .filter(|lane| lane.ready)
                .map(|lane| lane.slots)
                .collect();
            for other in hungry.into_iter().filter(|other| *other != lane.slots) {
                let other = &s.slots[other];
                free = free.saturating_sub(share(other).saturating_sub(other.jobs));
            }
            free = free.max(share(mine).saturating_sub(mine.jobs)).min(left);
        }
        free = free.min(mine.limit.saturating_sub(mine.jobs));
        let fitting = (self.settings.max_bytes.saturating_sub(s.bytes) as f64 / s.mean) as usize;
        free.min(if s.bytes > 0 { fitting } else { fitting.max(1) })
    }

    /// A call has succeeded: what was sent is settled, and what it has leased is to be started.
    pub(crate) fn answered(
        &self,
        call: Call,
        rows: &[Row],
        notices: &[(String, String)],
        now: f64,
    ) -> Vec<Job> {
        let mut guard = self.lock();
        let s = &mut *guard;
        self.call_done(s, &call, now);
        s.lanes[call.lane].failures = 0;
        if call.what == What::Leases {
            self.hand_back(s, &call, rows, now);
            s.lanes[call.lane].ready = true;
            return Vec::new();
        }
        if call.what == What::Settle {
            self.report(s, &call, rows);
        }
        for (_, message) in notices.iter().filter(|(state, _)| state == "55000") {
            let number = message
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(1);
            s.metrics.lost += number;
            let (queue, worker) = (
                s.lanes[call.lane].queue.as_str(),
                self.settings.name.as_str(),
            );
            tracing::warn!(target: "fetchq", queue, worker, "{message}");
        }
        for one in &call.settled {
            self.is_settled(s, one.run, one.action);
        }
        let jobs = if call.what == What::Next {
            self.lease(s, &call, rows, now)
        } else {
            Vec::new()
        };
        let lane = &mut s.lanes[call.lane];
        lane.isolate = lane.isolate.saturating_sub(1);
        if call.max_docs > 0 {
            lane.ready = rows.len() >= call.max_docs;
            lane.misses = if rows.is_empty() && call.settled.is_empty() {
                lane.misses + 1
            } else {
                0
            };
        }
        if !lane.ready {
            let jitter = if lane.misses > 0 {
                between(0.0, (0.01 * 2f64.powi(lane.misses as i32)).min(1.0))
            } else {
                0.0
            };
            lane.quiet_at = now + jitter;
            lane.poll_at = if s.polling {
                now + self.settings.poll * between(0.75, 1.25)
            } else {
                NEVER
            };
            self.topics.wait();
            self.topics.tick.notify_one();
        }
        self.topics.call();
        jobs
    }

    fn call_done(&self, s: &mut State, call: &Call, now: f64) {
        s.calls.remove(&call.id);
        s.lanes[call.lane].calling = false;
        s.metrics.calls += 1;
        s.down_since = None;
        self.was_held_up(s, call.sent, now);
    }

    /// Whether a call went on as soon as the waiting session had given its connection back.
    pub(super) fn was_held_up(&self, s: &mut State, sent: f64, now: f64) {
        if let Some(at) = s.crowded_at.filter(|at| sent < *at) {
            if now - at < 1.0 {
                self.poll_now(
                    s,
                    "a call was held up while a session waited: the pooler has too few connections",
                );
            }
            s.crowded_at = None;
        } else if s.pooled && now - sent > CROWDED {
            self.poll_now(
                s,
                "a call was held up by other sessions: the pooler has too few connections",
            );
        }
    }

    fn lease(&self, s: &mut State, call: &Call, rows: &[Row], now: f64) -> Vec<Job> {
        let mut jobs = Vec::new();
        for row in rows {
            let run = self.read(s, call, row);
            let (id, task) = (
                run.leased.id,
                self.task_of(&s.lanes[call.lane], &run.leased),
            );
            let key = (run.leased.queue.clone(), run.leased.subject.clone());
            // A lease number of ours that is older was lost, or its settlement came before.
            if let Some(former) = s.keys.get(&key).copied() {
                self.abort(s, former, Reason::Lost, now);
                self.forget(s, former);
            }
            s.keys.insert(key, id);
            s.bytes += run.size;
            s.mean += (run.size as f64 + 100.0 - s.mean) / 10.0;
            let leased = Arc::clone(&run.leased);
            s.runs.insert(id, run);
            match task {
                Some(task) if !s.stopping => {
                    let slots = s.lanes[call.lane].slots;
                    s.jobs.insert(id, slots);
                    s.slots[slots].jobs += 1;
                    if let Some(run) = s.runs.get_mut(&id) {
                        run.has_job = true;
                    }
                    jobs.push(Job { leased, task });
                }
                Some(_) => self.finish(s, id, Outcome::snooze_by_policy(), now),
                None => {
                    let delay = self.unknown(s, &leased);
                    self.finish(s, id, Outcome::snooze(seconds(delay)), now);
                }
            }
        }
        if !rows.is_empty() {
            let is_waiting = s.groups[0].call.is_some();
            if s.tick_at > now + if is_waiting { WATCH_AFTER } else { 0.1 } {
                self.topics.tick.notify_one();
            }
            self.topics.beat.notify_one();
            self.topics.wait();
        }
        jobs
    }

    fn read(&self, s: &mut State, call: &Call, row: &Row) -> Run {
        s.ids += 1;
        let lane = &s.lanes[call.lane];
        let number = |index: usize| row.get(index).and_then(Value::as_f64).unwrap_or(0.0);
        let json =
            |index: usize| text(row.get(index)).and_then(|text| serde_json::from_str(&text).ok());
        let headers = match json(2) {
            Some(Value::Object(headers)) => headers,
            _ => Map::new(),
        };
        let payload = text(row.get(1));
        let (size, length) = (payload.as_deref().map_or(0, str::len), number(6));
        let leased = Leased {
            id: s.ids,
            queue: lane.queue.clone(),
            subject: text(row.first()).unwrap_or_default(),
            payload,
            headers,
            attempts: number(3) as i64,
            max_attempts: row.get(4).and_then(Value::as_i64),
            lease: row.get(5).and_then(Value::as_i64).unwrap_or(0),
            priority: number(8) as i64,
            last_error: text(row.get(9)),
            version: lane.version,
            token: CancellationToken::new(),
            reason: OnceLock::new(),
            progress: Mutex::new(json(10).unwrap_or(Value::Null)),
            follow_ups: Mutex::default(),
        };
        Run {
            leased: Arc::new(leased),
            lane: call.lane,
            seconds: length,
            ends: number(7),
            sent: call.sent,
            // Not from the time of the answer: the lease began before it.
            deadline: call.sent + length,
            next_beat: call.sent + length / 3.0 * between(0.8, 1.0),
            beat_sent: call.sent,
            dirty: false,
            stored: Vec::new(),
            aborted_at: NEVER,
            started: None,
            timeout_at: NEVER,
            has_job: false,
            stuck: false,
            limited: false,
            settling: false,
            size,
        }
    }

    fn task_of(&self, lane: &Lane, leased: &Leased) -> Option<usize> {
        let name = leased.headers.get(TASK_HEADER).and_then(Value::as_str);
        let named = |name: Option<&str>| {
            lane.tasks
                .iter()
                .find(|task| task.0.as_deref() == name)
                .map(|task| task.1)
        };
        let alone = lane.tasks.len() == 1;
        match name {
            None if alone => lane.tasks.first().map(|task| task.1),
            None => named(None),
            Some(_) => named(name).or_else(|| if alone { named(None) } else { None }),
        }
    }

    /// How long a document of a task that this process does not know is left to others: each time longer.
    fn unknown(&self, s: &mut State, leased: &Leased) -> f64 {
        let name = leased
            .headers
            .get(TASK_HEADER)
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned();
        let delay = s.unknown.entry(name.clone()).or_insert(5.0);
        *delay = (*delay * 2.0).min(300.0);
        self.log(
            Level::Warn,
            leased,
            &format!("there is no task {name:?} here: snoozed for {delay} s"),
        );
        *delay
    }

    fn report(&self, s: &mut State, call: &Call, rows: &[Row]) {
        for (one, row) in call.settled.iter().zip(rows) {
            // What was settled by a call whose answer was lost is no loss. The server says so ("repeated"), but
            // where a document has left the queue, or is due again.
            if one.run.is_none() || (one.resent && matches!(one.action, "drop" | "snooze")) {
                continue;
            }
            let outcome = row.get(1).and_then(Value::as_str).unwrap_or_default();
            if matches!(outcome, "lost" | "missing" | "not_active") {
                self.lost(s, call.lane, &one.subject, outcome);
            }
        }
    }

    /// A lease was lost before its document was settled: another worker has it, or it was cancelled.
    pub(super) fn lost(&self, s: &mut State, lane: usize, subject: &str, why: &str) {
        s.metrics.lost += 1;
        let (queue, worker) = (s.lanes[lane].queue.as_str(), self.settings.name.as_str());
        tracing::warn!(target: "fetchq", queue, subject, worker, "{queue}: {subject} was not settled: {why}");
    }

    pub(super) fn is_settled(&self, s: &mut State, run: Option<u64>, action: &'static str) {
        *s.metrics.settled.entry(action).or_default() += 1;
        if let Some(run) = run {
            self.forget(s, run);
        }
    }

    /// A call has failed. What it was to settle is kept.
    pub(crate) fn failed(&self, mut call: Call, error: &Error, pid: i64, now: f64) {
        let mut guard = self.lock();
        let s = &mut *guard;
        let down_since = s.down_since;
        self.call_done(s, &call, now);
        let lane = &mut s.lanes[call.lane];
        lane.settle_at = now;
        lane.ready = true; // It is not known whether there are documents.
        lane.failures += 1;
        let failures = lane.failures;
        match error.kind() {
            Kind::Data if call.what == What::Leases => {}
            Kind::Connection => {
                call.settled.iter_mut().for_each(|one| one.resent = true);
                lane.settle.splice(0..0, call.settled.drain(..));
                if call.what == What::Next {
                    // It may have leased documents without our knowing. The server may still be at it.
                    lane.sweeps = vec![(now + 0.5, pid), (now + 10.0, pid)];
                }
                lane.not_before = now + backoff(failures);
                s.down_since = down_since.or(Some(now));
                self.warn_call(s, &call, error);
            }
            Kind::Conflict => {
                let some = between(0.005, 0.02) * 2f64.powi(failures.min(6) as i32);
                lane.not_before = now
                    + if failures <= 20 {
                        some
                    } else {
                        backoff(failures - 20)
                    };
                if failures > CONFLICTS && call.settled.len() > 1 {
                    lane.isolate = call.settled.len();
                    lane.settle.splice(0..0, call.settled.drain(..));
                } else if lane.isolate > 0 || (failures > CONFLICTS && call.settled.len() == 1) {
                    // The others must not wait for one that conflicts for ever.
                    lane.isolate = lane.isolate.max(lane.settle.len() + 1);
                    for mut one in call.settled.drain(..) {
                        one.conflicts += 1;
                        if one.conflicts > CONFLICTS {
                            self.refused(s, call.lane, one, error, now);
                        } else {
                            s.lanes[call.lane].settle.push(one);
                        }
                    }
                } else {
                    lane.settle.splice(0..0, call.settled.drain(..));
                }
            }
            _ if call.settled.len() > 1 => {
                // The server refuses a list: find out which one it is.
                lane.isolate = call.settled.len();
                lane.settle.splice(0..0, call.settled.drain(..));
            }
            _ if call.settled.len() == 1 => {
                if let Some(one) = call.settled.pop() {
                    self.refused(s, call.lane, one, error, now);
                }
            }
            Kind::Config => self.end(s, error),
            _ => {
                lane.not_before = now + backoff(failures);
                self.warn_call(s, &call, error);
            }
        }
        self.topics.call();
    }

    fn warn_call(&self, s: &State, call: &Call, error: &Error) {
        let lane = &s.lanes[call.lane];
        let (queue, worker) = (lane.queue.as_str(), self.settings.name.as_str());
        if matches!(lane.failures, 1 | 5) || lane.failures.is_multiple_of(20) {
            tracing::warn!(target: "fetchq", queue, worker, "{queue}: {:?} failed, and is repeated: {error}", call.what);
        } else {
            tracing::debug!(target: "fetchq", queue, worker, "{queue}: {:?} failed, and is repeated: {error}", call.what);
        }
    }

    /// The server refuses a settlement: the document is rejected instead, or its lease expires.
    fn refused(&self, s: &mut State, lane: usize, one: Settled, error: &Error, now: f64) {
        let run = one.run.and_then(|id| s.runs.get(&id));
        let Some(run) = run.filter(|_| !one.last_resort) else {
            let queue = s.lanes[lane].queue.as_str();
            tracing::error!(target: "fetchq", queue, subject = one.subject, "{queue}: a settlement is refused, and the lease expires: {error}");
            if let Some(id) = one.run {
                self.forget(s, id);
            }
            return;
        };
        self.log(
            Level::Error,
            &run.leased,
            &format!("the settlement is refused: {error}"),
        );
        let outcome = self.redacted(Outcome::reject(format!(
            "the settlement was refused: {error}"
        )));
        if let Ok(body) = outcome.settlement(&run.leased.subject, run.leased.lease, &[]) {
            let settled = Settled {
                body,
                action: outcome.action,
                last_resort: true,
                resent: false,
                conflicts: 0,
                ..one
            };
            s.lanes[lane].settle.insert(0, settled);
            s.lanes[lane].settle_at = now;
        }
    }

    fn hand_back(&self, s: &mut State, call: &Call, rows: &[Row], now: f64) {
        let queue = &s.lanes[call.lane].queue;
        let others = s
            .lanes
            .iter()
            .any(|other| other.calling && other.queue == *queue);
        let lane = &mut s.lanes[call.lane];
        for row in rows {
            let (subject, lease) = (
                text(row.first()).unwrap_or_default(),
                row.get(1).and_then(Value::as_i64).unwrap_or(0),
            );
            let known = s
                .keys
                .get(&(lane.queue.clone(), subject.clone()))
                .and_then(|id| s.runs.get(id));
            if known.is_some_and(|run| run.leased.lease == lease) {
                continue;
            }
            if others {
                // The answer of another call may bring it.
                lane.sweeps.insert(0, (now + 1.0, call.pid));
                break;
            }
            tracing::info!(target: "fetchq", queue = lane.queue, subject, "{subject} was leased by a call without an answer, and goes back");
            let outcome = Outcome::snooze_by_policy();
            if let Ok(body) = outcome.settlement(&subject, lease, &[]) {
                let action = outcome.action;
                lane.settle.push(Settled {
                    run: None,
                    subject,
                    body,
                    action,
                    last_resort: false,
                    resent: false,
                    conflicts: 0,
                });
            }
        }
        lane.settle_at = now;
        self.topics.call();
    }

    /// Rights or declarations are wrong: the worker stops, and whoever waits for it gets the error.
    pub(super) fn end(&self, s: &mut State, error: &Error) {
        if s.fatal.is_none() {
            s.fatal = Some(error.clone());
            tracing::error!(target: "fetchq", worker = self.settings.name, "the worker stops: {error}");
        }
        s.stopping = true;
        self.topics.all();
    }
}
