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
        let watched: Vec<u64> = if first { watchable(s, now) } else { Vec::new() };
        let pooled = if s.pooled { POOLED_WAIT } else { NEVER };
        let mut longest = LONGEST_WAIT.min(pooled) * between(0.9, 1.0);
        // Documents that are too young to be watched, or that a call may bring, are watched by the next wait.
        let young = s.runs.values().map(|run| run.sent + WATCH_AFTER);
        let soon = young.filter(|at| *at > now).fold(NEVER, f64::min);
        let calling = s.calls.values().any(|sent| now < sent + 0.5);
        if first && (soon < NEVER || calling) {
            longest = longest.min((soon.min(now + WATCH_AFTER) - now).max(SHORT_WAIT));
        }
        let mut queues = quiet;
        if queues.is_empty() && watched.is_empty() {
            // Nothing to wait for. A worker that is always busy is asked to stop, too.
            let next = if s.stopping { NEVER } else { group.probe_at };
            if !first || now < next {
                return Next::Pause(if first { next.min(soon) } else { NEVER });
            }
            queues = group
                .lanes
                .iter()
                .map(|lane| s.lanes[*lane].queue.clone())
                .collect();
            longest = 0.0;
        }
        let leases: Vec<Value> = watched
            .iter()
            .filter_map(|id| s.runs.get(id))
            .map(|run| json!({"queue": run.leased.queue, "subject": run.leased.subject, "lease": run.leased.lease}))
            .collect();
        let group = &mut s.groups[at];
        group.probe_at = now + PROBE;
        longest = longest.min(group.timeout);
        let names = array(queues.iter().map(String::as_str));
        let list = Value::Array(leases);
        let mut query = q!(
            sql::WAIT,
            names,
            self.settings.name,
            seconds(longest),
            list,
            group.version,
            ""
        );
        query.values[5].clone_from(&group.mark);
        let watched = watched.into_iter().collect();
        group.call = Some(WaitCall {
            queues,
            watched,
            sent: now,
            longest,
            interrupted: false,
        });
        Next::Wait(query)
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
        let mark = row.get(3).and_then(Value::as_array);
        group.mark = mark.map(|mark| array(mark.iter().map(Value::to_string)));
        group.failures = 0;
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
