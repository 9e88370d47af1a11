//! What becomes of a document whose handler begins and ends.

use super::*;

impl Engine {
    /// A handler is about to start. False: it must not, because the worker stops or the lease is gone.
    pub(crate) fn begin(&self, id: u64, task: usize, now: f64) -> bool {
        let mut guard = self.lock();
        let s = &mut *guard;
        let stopping = s.stopping;
        let begins = match s.runs.get_mut(&id) {
            Some(run) if !stopping && run.reason().is_none() && run.deadline > now => {
                run.started = Some(now);
                run.timeout_at = self.tasks[task]
                    .timeout
                    .map_or(NEVER, |timeout| now + timeout);
                true
            }
            Some(run) => {
                if run.reason().is_none() {
                    self.finish(s, id, Outcome::snooze_by_policy(), now);
                } else {
                    self.forget(s, id);
                }
                false
            }
            None => false,
        };
        if !begins {
            self.release(s, id);
        }
        begins
    }

    /// A handler has ended, with an outcome or an error.
    pub(crate) fn ended(
        &self,
        context: &Context,
        task: usize,
        result: Result<Outcome, BoxError>,
        now: f64,
    ) {
        let leased = &context.leased;
        // The rule of the application runs without the lock.
        let reason = leased.reason.get().copied();
        let outcome = match result {
            Ok(outcome) if reason != Some(Reason::Timeout) => outcome,
            Ok(_) => self.verdict(Aborted(Reason::Timeout).into(), context, task),
            Err(error) => self.verdict(error, context, task),
        };
        let mut guard = self.lock();
        let s = &mut *guard;
        self.release(s, leased.id);
        self.handled(s, leased.id, now);
        if let Some(run) = s.runs.get(&leased.id) {
            if run.settling {
                return;
            }
            if run.is_void() || (run.stuck && now >= run.deadline) {
                self.forget(s, leased.id);
            } else {
                self.finish(s, leased.id, outcome, now);
            }
        }
        self.topics.call();
    }

    fn handled(&self, s: &mut State, id: u64, now: f64) {
        s.metrics.handled += 1;
        let started = s.runs.get(&id).and_then(|run| run.started);
        s.metrics.handler_seconds += started.map_or(0.0, |started| now - started);
    }

    /// What becomes of a document whose handler has failed.
    fn verdict(&self, error: BoxError, context: &Context, task: usize) -> Outcome {
        let task = &self.tasks[task];
        let mut error = error;
        if was_aborted(&*error) {
            match context.leased.reason.get() {
                Some(Reason::Shutdown) => return Outcome::snooze_by_policy(),
                Some(Reason::Timeout) => {
                    let limit = task.timeout.unwrap_or_default();
                    error = format!("timeout: the handler was stopped after {limit} s").into();
                }
                _ => {}
            }
        }
        let given = if error.is::<InvalidPayload>() {
            task.kill_invalid.then(|| Outcome::kill(error.to_string()))
        } else {
            task.retry.as_ref().and_then(|rule| rule(&error, context))
        };
        let mut outcome = given.unwrap_or_else(|| Outcome::reject(""));
        if outcome.fails() {
            if outcome.message().is_empty() {
                outcome
                    .keys
                    .insert("message".into(), describe(&told(&*error)).into());
            }
            if !outcome.keys.contains_key("details") {
                let causes: Vec<String> = chain(&*error).map(ToString::to_string).collect();
                let stack: String = causes.join("\ncaused by: ").chars().take(4000).collect();
                outcome.keys.insert(
                    "details".into(),
                    json!({"stack": stack, "worker": self.settings.name}),
                );
            }
        }
        outcome
    }

    pub(super) fn redacted(&self, mut outcome: Outcome) -> Outcome {
        if outcome.fails() {
            for key in ["message", "details"] {
                if let Some(value) = outcome.keys.remove(key) {
                    let value = clean(value);
                    let value = match &self.settings.redact {
                        Some(hook) => map(value, &|text| hook(text)),
                        None => value,
                    };
                    let value = match value {
                        Value::String(message) if key == "message" => describe(&message).into(),
                        other => other,
                    };
                    outcome.keys.insert(key.to_owned(), value);
                }
            }
        }
        outcome
    }

    pub(super) fn finish(&self, s: &mut State, id: u64, outcome: Outcome, now: f64) {
        let Some(run) = s.runs.get_mut(&id) else {
            return;
        };
        let leased = Arc::clone(&run.leased);
        let follow_ups = leased
            .follow_ups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut outcome = self.redacted(outcome);
        let body = outcome
            .settlement(&leased.subject, leased.lease, &follow_ups)
            .or_else(|error| {
                outcome = self.redacted(Outcome::reject(error.to_string()));
                outcome.settlement(&leased.subject, leased.lease, &[])
            });
        let Ok(body) = body else { return };
        run.settling = true;
        let one = Settled {
            run: Some(id),
            subject: leased.subject.clone(),
            body,
            action: outcome.action,
            last_resort: false,
            resent: false,
            conflicts: 0,
        };
        if run.dirty && !outcome.succeeds() && !run.stuck {
            // The next attempt has to find the progress of this one: it is stored first.
            run.next_beat = 0.0;
            run.stored.push(Stored::Settle(Box::new(one)));
            self.topics.beat.notify_one();
        } else {
            let (lane, at) = (run.lane, now + BATCH.min(run.seconds / 10.0));
            self.queue(s, lane, one, at);
        }
        self.log_outcome(&leased, &outcome);
    }

    pub(super) fn queue(&self, s: &mut State, lane: usize, one: Settled, at: f64) {
        let lane = &mut s.lanes[lane];
        lane.settle.push(one);
        if at < lane.settle_at {
            lane.settle_at = at;
            self.topics.call();
        }
    }

    fn log_outcome(&self, leased: &Leased, outcome: &Outcome) {
        if !outcome.fails() {
            return;
        }
        let killed = outcome.action == "kill";
        let last = killed
            || leased
                .max_attempts
                .is_some_and(|most| leased.attempts >= most);
        let most = leased
            .max_attempts
            .map_or_else(String::new, |most| format!(" of {most}"));
        let how = if killed { "was killed" } else { "failed" };
        let message = format!(
            "attempt {}{most} {how}: {}",
            leased.attempts,
            outcome.message()
        );
        self.log(
            if last { Level::Error } else { Level::Warn },
            leased,
            &message,
        );
    }

    /// A transactional handler has ended, and its settlement is about to be sent: from now on the lease ends by that,
    /// and nothing aborts it.
    pub(crate) fn settles(&self, id: u64) -> Result<(), Aborted> {
        let mut s = self.lock();
        let Some(run) = s.runs.get_mut(&id) else {
            return Err(Aborted(Reason::Lost));
        };
        match run.reason() {
            Some(Reason::Shutdown) | None => {
                run.settling = true;
                Ok(())
            }
            Some(reason) => Err(Aborted(reason)),
        }
    }

    /// The settlement of a transactional handler.
    pub(crate) fn settlement(
        &self,
        leased: &Leased,
        outcome: &mut Outcome,
    ) -> Result<Query, Error> {
        let follow_ups = leased
            .follow_ups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        *outcome = self.redacted(outcome.clone());
        let body = outcome.settlement(&leased.subject, leased.lease, &follow_ups)?;
        Ok(q!(sql::SETTLE, leased.queue, format!("[{body}]"), "error"))
    }

    /// A transactional handler has committed its writes and its settlement.
    pub(crate) fn committed(&self, leased: &Leased, outcome: &Outcome, now: f64) {
        let mut s = self.lock();
        self.release(&mut s, leased.id);
        self.handled(&mut s, leased.id, now);
        self.log_outcome(leased, outcome);
        self.is_settled(&mut s, Some(leased.id), outcome.action);
        self.topics.call();
    }

    /// A handler has ended whose document is not ours any more: there is nothing to settle.
    pub(crate) fn dropped(&self, leased: &Leased, why: Option<&str>, now: f64) {
        let mut s = self.lock();
        self.release(&mut s, leased.id);
        self.handled(&mut s, leased.id, now);
        if let (Some(why), None) = (why, leased.reason.get()) {
            let lane = s.runs.get(&leased.id).map_or(0, |run| run.lane);
            self.lost(&mut s, lane, &leased.subject, why);
        }
        self.forget(&mut s, leased.id);
        self.topics.call();
    }

    /// What to do after a transaction without a commit. `database` is the error of the database behind the error.
    pub(crate) fn after_rollback(
        &self,
        job: &Job,
        error: BoxError,
        database: Option<&Error>,
        phase: Phase,
        broken: bool,
        reruns: u32,
    ) -> After {
        let mut s = self.lock();
        if let Some(run) = s.runs.get_mut(&job.leased.id) {
            run.settling = false;
        }
        let reason = job.leased.reason.get().copied();
        let kind = database.map_or(Kind::Data, Error::kind);
        let lost = phase != Phase::Handler && kind == Kind::Lost;
        if matches!(reason, Some(Reason::Cancelled | Reason::Lost)) || lost {
            return After::Drop;
        }
        if reason.is_some() {
            return After::Settle(error);
        }
        // The connection has broken. Was it committed? Only an answer to a commit would say so.
        if kind == Kind::Connection && (broken || phase == Phase::Commit) && reruns < RERUNS {
            return After::Confirm;
        }
        let state = database.and_then(Error::sqlstate);
        if matches!(state, Some("40001" | "40P01")) && reruns < self.tasks[job.task].conflicts {
            return After::Again;
        }
        if phase == Phase::Settle && kind == Kind::Data {
            return After::Settle(format!("the settlement was refused: {}", told(&*error)).into());
        }
        After::Settle(error)
    }

    pub(super) fn release(&self, s: &mut State, id: u64) {
        if let Some(slots) = s.jobs.remove(&id) {
            s.slots[slots].jobs -= 1;
            if s.jobs.len() + 1 == self.settings.concurrency {
                self.topics.call(); // Queues that had no slot left may have one now.
            }
        }
    }

    /// The document is not ours any more.
    pub(super) fn forget(&self, s: &mut State, id: u64) {
        let Some(run) = s.runs.remove(&id) else {
            return;
        };
        s.bytes -= run.size;
        let key = (run.leased.queue.clone(), run.leased.subject.clone());
        if s.keys.get(&key) == Some(&id) {
            s.keys.remove(&key);
        }
        tell(
            run.stored,
            &Aborted(run.leased.reason.get().copied().unwrap_or(Reason::Lost)).into(),
        );
        if s.stopping && s.runs.is_empty() {
            self.topics.all();
        }
    }

    pub(super) fn abort(&self, s: &mut State, id: u64, reason: Reason, now: f64) {
        let Some(run) = s.runs.get_mut(&id) else {
            return;
        };
        if run.settling || run.leased.reason.set(reason).is_err() {
            return;
        }
        run.aborted_at = now;
        if reason == Reason::Lost {
            s.metrics.lost += 1;
        }
        run.leased.token.cancel();
        tell(std::mem::take(&mut run.stored), &Aborted(reason).into());
        let level = if reason == Reason::Shutdown {
            Level::Info
        } else {
            Level::Warn
        };
        self.log(level, &run.leased, &format!("stopped: {reason}"));
    }
}
