//! Deadlines, and how a worker stops.

use super::*;

impl Engine {
    /// Looks at all deadlines. Gives when to look again, and the waits that are to be interrupted.
    pub(crate) fn tick(&self, now: f64) -> (f64, Vec<usize>) {
        let mut guard = self.lock();
        let s = &mut *guard;
        let ids: Vec<u64> = s.runs.keys().copied().collect();
        for id in ids {
            self.tick_run(s, id, now);
        }
        if s.stopping {
            self.tick_stop(s, now);
        }
        let mut restart: Vec<usize> = (0..s.groups.len())
            .filter(|group| self.outdated(s, *group, now))
            .collect();
        if s.crowded_at.is_none() && !s.polling {
            let slow = s
                .calls
                .values()
                .copied()
                .chain(s.beating)
                .any(|sent| now - sent > CROWDED);
            let waiting: Vec<usize> = (0..s.groups.len())
                .filter(|group| s.groups[*group].call.is_some())
                .collect();
            if slow && !waiting.is_empty() {
                s.crowded_at = Some(now);
                restart = waiting;
            }
        }
        for group in &restart {
            s.groups[*group].interrupted_at = now;
            if let Some(call) = &mut s.groups[*group].call {
                call.interrupted = true;
            }
        }
        let mut waits = s.groups.iter().filter_map(|group| group.call.as_ref());
        let again = waits.any(|call| call.interrupted);
        let busy = !s.runs.is_empty() || s.stopping || !s.calls.is_empty() || again;
        let mut next = now + if busy { 0.1 } else { 30.0 };
        for lane in &s.lanes {
            let held = lane.quiet_at + HOLD;
            if now < held && held < NEVER {
                next = next.min(held);
            }
        }
        let first = &s.groups[0];
        if let Some(call) = &first.call {
            let (old, younger) = watchable(s, now);
            let begin = if old.is_subset(&call.watched) {
                younger
            } else {
                now
            };
            next = next.min(begin.max(first.interrupted_at + AGAIN).max(now + 0.005));
        }
        s.tick_at = next;
        (next, restart)
    }

    fn tick_run(&self, s: &mut State, id: u64, now: f64) {
        let Some(run) = s.runs.get(&id) else { return };
        if !run.settling && run.reason().is_none() {
            if now >= run.deadline {
                self.abort(s, id, Reason::Lost, now);
            } else if now >= run.timeout_at {
                self.abort(s, id, Reason::Timeout, now);
            }
        }
        let Some(run) = s.runs.get_mut(&id) else {
            return;
        };
        let runs = run.has_job && s.jobs.contains_key(&id);
        if !run.stuck && runs && now - run.aborted_at > self.settings.stuck_after {
            run.stuck = true;
            s.metrics.stuck += 1;
            let reason = run
                .reason()
                .map(|reason| reason.to_string())
                .unwrap_or_default();
            self.log(
                Level::Warn,
                &run.leased,
                &format!("the handler is stuck: it does not stop ({reason})"),
            );
            if self.settings.free_stuck {
                self.release(s, id);
            }
        }
    }

    fn tick_stop(&self, s: &mut State, now: f64) {
        if now >= s.abandon_at && !s.abandoned {
            s.abandoned = true;
            self.abandoned.cancel();
        }
        if s.stop_at == NEVER {
            s.stop_at = now + s.grace;
            s.give_up_at = s.stop_at + self.settings.abort_grace;
        }
        let ids: Vec<u64> = s.runs.keys().copied().collect();
        if now >= s.stop_at && !s.aborting {
            s.aborting = true;
            for id in &ids {
                self.abort(s, *id, Reason::Shutdown, now);
            }
        }
        if now >= s.give_up_at && !s.gave_up {
            s.gave_up = true;
            for id in ids {
                let Some(run) = s.runs.get(&id) else { continue };
                if run.is_void() {
                    self.forget(s, id);
                } else if !run.settling {
                    self.log(
                        Level::Error,
                        &run.leased,
                        "the handler does not stop, and its document goes back",
                    );
                    self.finish(s, id, Outcome::snooze_by_policy(), now);
                }
            }
            self.topics.all();
        }
        if s.finished() {
            self.topics.all();
        }
    }

    /// Whether the wait of a group has to be begun anew.
    fn outdated(&self, s: &State, at: usize, now: f64) -> bool {
        let group = &s.groups[at];
        let Some(call) = &group.call else {
            return false;
        };
        if now - group.interrupted_at < AGAIN {
            return false;
        }
        let left_out = |lane: &usize| {
            let lane_ = &s.lanes[*lane];
            !call.queues.contains(&lane_.queue)
                && self.quiet(s, *lane, now)
                && now >= lane_.quiet_at + HOLD
        };
        call.interrupted
            || s.polling
            || (s.finished() && s.runs.is_empty())
            || (s.stopping && !call.queues.is_empty())
            || group.lanes.iter().any(left_out)
            || (at == 0 && !watchable(s, now).0.is_subset(&call.watched))
    }

    /// Leases no more, and ends when all is settled, or when the grace is over.
    pub(crate) fn ask_stop(&self, grace: Option<f64>) {
        let mut s = self.lock();
        if let Some(grace) = grace {
            s.grace = grace;
            s.stop_at = NEVER;
        }
        s.stopping = true;
        self.topics.all();
    }

    /// Ends at once: it asks handlers to stop, and their documents go back without waiting for them. A server that
    /// does not answer is waited for two seconds.
    pub(crate) fn abandon(&self, now: f64) {
        let mut s = self.lock();
        s.stopping = true;
        (s.stop_at, s.give_up_at) = (now, now);
        s.abandon_at = now + 2.0;
        self.tick_stop(&mut s, now);
        self.topics.all();
    }

    /// Whether a stop is complete.
    pub(crate) fn finished(&self) -> bool {
        self.lock().finished()
    }

    /// The error that has ended the worker.
    pub(crate) fn fatal(&self) -> Option<Error> {
        self.lock().fatal.clone()
    }

    pub(crate) fn health(&self, now: f64) -> Health {
        let s = self.lock();
        let late = s
            .runs
            .values()
            .any(|run| run.extends() && run.next_beat < now - run.seconds / 3.0)
            || s.beating.is_some_and(|sent| now - sent > 10.0);
        Health {
            ok: s.down_since.is_none() && s.fatal.is_none() && !late,
            database: s.down_since.is_none(),
            loops: !late,
            heartbeat_age: s.last_beat.map(|at| now - at),
            stopping: s.stopping,
            polling: s.polling,
        }
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let s = self.lock();
        Metrics {
            slots_used: s.jobs.len(),
            slots: self.settings.concurrency,
            ..s.metrics.clone()
        }
    }
}
