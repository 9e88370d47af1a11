//! The heartbeat: one call extends all leases that are due, and stores progress.

use super::*;

impl Engine {
    /// Stores the progress of a document with the next heartbeat: at once if somebody waits for it.
    pub(crate) fn store(
        &self,
        leased: &Leased,
        change: impl FnOnce(&mut Value),
        done: Option<oneshot::Sender<Result<(), Error>>>,
    ) {
        let mut s = self.lock();
        let run = s
            .runs
            .get_mut(&leased.id)
            .filter(|run| run.reason().is_none());
        let Some(run) = run else {
            let reason = leased.reason.get().copied().unwrap_or(Reason::Lost);
            tell(
                done.map(Stored::Tell).into_iter().collect(),
                &Aborted(reason).into(),
            );
            return;
        };
        change(
            &mut leased
                .progress
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        run.dirty = true;
        run.next_beat = if done.is_some() {
            0.0
        } else {
            run.next_beat.min(run.beat_sent + 1.0)
        };
        run.stored.extend(done.map(Stored::Tell));
        self.topics.beat.notify_one();
    }

    /// Asks the server whether a lease still holds, after a commit without an answer.
    pub(crate) fn confirm(&self, leased: &Leased, done: oneshot::Sender<Result<(), Error>>) {
        let mut s = self.lock();
        match s
            .runs
            .get_mut(&leased.id)
            .filter(|run| run.reason().is_none())
        {
            Some(run) => {
                run.stored.push(Stored::Tell(done));
                run.next_beat = 0.0;
            }
            None => tell(vec![Stored::Tell(done)], &Aborted(Reason::Lost).into()),
        }
        self.topics.beat.notify_one();
    }

    /// The call that extends leases which are due, or when one is: one call for all of one lease duration.
    pub(crate) fn take_beat(&self, now: f64) -> Result<Beat, f64> {
        let mut guard = self.lock();
        let s = &mut *guard;
        let first = s
            .runs
            .values()
            .filter(|run| run.extends())
            .min_by(|a, b| a.next_beat.total_cmp(&b.next_beat));
        let Some(first) = first else {
            return Err(NEVER);
        };
        if first.next_beat > now {
            return Err(first.next_beat);
        }
        let late = if first.next_beat > 0.0 {
            now - first.next_beat
        } else {
            0.0
        };
        s.metrics.heartbeat_lag = late.max(s.metrics.heartbeat_lag * 0.9);
        let lease = s.lanes[first.lane].lease.clone();
        let (mut items, mut runs, mut stored) = (Vec::new(), Vec::new(), HashMap::new());
        for (id, run) in &mut s.runs {
            // Those that would be due soon come along.
            let soon =
                run.next_beat <= now + run.seconds / 6.0 || run.dirty || !run.stored.is_empty();
            if !soon || !run.extends() || s.lanes[run.lane].lease != lease {
                continue;
            }
            let mut item = json!({"queue": run.leased.queue, "subject": run.leased.subject, "lease": run.leased.lease});
            if run.dirty {
                item["progress"] = run
                    .leased
                    .progress
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                run.dirty = false;
            }
            run.next_beat = NEVER;
            stored.insert(*id, std::mem::take(&mut run.stored));
            items.push(item);
            runs.push(*id);
        }
        s.beating = Some(now);
        let mut query = q!(sql::EXTEND, Value::Array(items), "");
        query.values[1] = lease;
        Ok(Beat {
            runs,
            stored,
            sent: now,
            query,
        })
    }

    /// Leases were extended, or not.
    pub(crate) fn beaten(&self, mut beat: Beat, rows: &[Row], now: f64) {
        let mut guard = self.lock();
        let s = &mut *guard;
        s.last_beat = Some(now);
        s.down_since = None;
        s.beating = None;
        s.metrics.calls += 1;
        self.was_held_up(s, beat.sent, now);
        let mut stop = BTreeSet::new();
        for row in rows {
            let (queue, subject) = (
                text(row.first()).unwrap_or_default(),
                text(row.get(1)).unwrap_or_default(),
            );
            if row.get(4).and_then(Value::as_bool) == Some(true) {
                stop.insert(queue.clone());
            }
            let outcome = row.get(2).and_then(Value::as_str).unwrap_or_default();
            let ends = row.get(3).and_then(Value::as_f64).unwrap_or(0.0);
            let Some(id) = s
                .keys
                .get(&(queue, subject))
                .copied()
                .filter(|id| beat.runs.contains(id))
            else {
                continue;
            };
            let stored = beat.stored.remove(&id).unwrap_or_default();
            let Some(run) = s.runs.get_mut(&id) else {
                continue;
            };
            if matches!(outcome, "extended" | "limited") {
                if outcome == "limited" {
                    run.deadline += ends - run.ends;
                    run.limited = true;
                } else {
                    run.deadline = beat.sent + run.seconds;
                }
                run.ends = ends;
                run.beat_sent = beat.sent;
                run.next_beat = run
                    .next_beat
                    .min(beat.sent + run.seconds / 3.0 * between(0.8, 1.0));
                if run.dirty {
                    run.next_beat = run.next_beat.min(now + 1.0);
                }
                self.are_stored(s, id, stored);
            } else if run.settling {
                // Its settlement says what has become of it.
                self.are_stored(s, id, stored);
            } else {
                run.stored.extend(stored);
                let reason = if outcome == "cancelled" {
                    Reason::Cancelled
                } else {
                    Reason::Lost
                };
                self.abort(s, id, reason, now);
            }
        }
        // Those of documents that are gone.
        for (_, stored) in beat.stored {
            tell(stored, &Aborted(Reason::Lost).into());
        }
        for queue in stop {
            self.asked_to_stop(s, Some(&queue));
        }
        self.topics.beat.notify_one();
    }

    fn are_stored(&self, s: &mut State, id: u64, stored: Vec<Stored>) {
        for done in stored {
            match done {
                Stored::Tell(sender) => {
                    let _ = sender.send(Ok(()));
                }
                Stored::Settle(one) => {
                    if let Some(lane) = s.runs.get(&id).map(|run| run.lane) {
                        self.queue(s, lane, *one, 0.0);
                    }
                }
            }
        }
    }

    /// A heartbeat has failed. Gives for how long to wait before the next one.
    pub(crate) fn beat_failed(&self, beat: Beat, error: &Error, now: f64) -> f64 {
        let mut guard = self.lock();
        let s = &mut *guard;
        let kind = error.kind();
        s.beating = None;
        if kind == Kind::Connection && s.down_since.is_none() {
            s.down_since = Some(now);
        }
        let mut shortest = 10f64;
        for (id, stored) in beat.stored {
            let Some(run) = s.runs.get_mut(&id) else {
                tell(stored, error);
                continue;
            };
            shortest = shortest.min(run.seconds);
            run.next_beat = now;
            if kind == Kind::Data {
                // Progress that the server refuses must not cost the leases of all others.
                let (settles, told): (Vec<_>, Vec<_>) = stored
                    .into_iter()
                    .partition(|one| matches!(one, Stored::Settle(_)));
                tell(told, error);
                self.are_stored(s, id, settles);
            } else {
                run.dirty |= !run
                    .leased
                    .progress
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .is_null();
                run.stored.extend(stored);
            }
        }
        if kind == Kind::Config {
            self.end(s, error);
        }
        tracing::warn!(target: "fetchq", worker = self.settings.name, "the heartbeat failed: {error}");
        between(0.2, 0.4).min(shortest / 20.0)
    }

    /// Somebody has called `worker_stop()`: for all queues, or for one, if he may not work on the others.
    pub(super) fn asked_to_stop(&self, s: &mut State, queue: Option<&str>) {
        for lane in &mut s.lanes {
            lane.closed |= queue.is_none_or(|queue| queue == lane.queue);
        }
        if s.lanes.iter().all(|lane| lane.closed) && !s.stopping {
            tracing::info!(target: "fetchq", worker = self.settings.name, "the worker was asked to stop");
            s.stopping = true;
            self.topics.all();
        }
    }
}
