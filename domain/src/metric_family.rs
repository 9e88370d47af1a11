//! The metrics for monitoring systems: their names, as Prometheus wants them, types and help texts.

/// The type of a metric, in the sense of Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, and starts again at 0.
    Counter,
    /// It grows and shrinks.
    Gauge,
    /// How many times were at most so long, for some bounds; their sum and their number.
    Histogram,
}

impl Kind {
    /// The word of Prometheus.
    pub fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric with all its labels, which Prometheus calls a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Documents by queue and state.
    Documents,
    /// The age of the oldest ready document of a queue.
    OldestReady,
    /// For how long the first planned document of a queue is overdue.
    PlannedOverdue,
    /// Documents that entered a queue.
    Pushed,
    /// Documents that were picked.
    Picked,
    /// Documents that a worker settled or rejected, by outcome.
    Settled,
    /// Leases that expired.
    LeasesLost,
    /// Documents that did not begin in time.
    Expired,
    /// Documents that moved to a dead-letter queue.
    DeadLetters,
    /// How long documents waited.
    Wait,
    /// How long documents ran.
    Run,
    /// Sessions that work on a queue.
    Workers,
    /// Whether a queue is paused.
    Paused,
    /// Whether a queue is the dead-letter queue of another one.
    DeadLetterQueue,
    /// Schedules by state.
    Schedules,
    /// The time since maintenance ran last, by service.
    MaintenanceAge,
    /// Maintenance jobs that fail, by service.
    MaintenanceFailing,
    /// Documents that a ready floor had hidden.
    FloorMisses,
    /// What runs: versions, and the role of the server.
    Info,
    /// What is not known.
    Missing,
}

impl Family {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 20] = [
        Self::Documents,
        Self::OldestReady,
        Self::PlannedOverdue,
        Self::Pushed,
        Self::Picked,
        Self::Settled,
        Self::LeasesLost,
        Self::Expired,
        Self::DeadLetters,
        Self::Wait,
        Self::Run,
        Self::Workers,
        Self::Paused,
        Self::DeadLetterQueue,
        Self::Schedules,
        Self::MaintenanceAge,
        Self::MaintenanceFailing,
        Self::FloorMisses,
        Self::Info,
        Self::Missing,
    ];

    /// Returns the metric of a name, None for an unknown one.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Documents => "fetchq_documents",
            Self::OldestReady => "fetchq_oldest_ready_age_seconds",
            Self::PlannedOverdue => "fetchq_planned_overdue_seconds",
            Self::Pushed => "fetchq_pushed_total",
            Self::Picked => "fetchq_picked_total",
            Self::Settled => "fetchq_settled_total",
            Self::LeasesLost => "fetchq_leases_lost_total",
            Self::Expired => "fetchq_expired_total",
            Self::DeadLetters => "fetchq_dead_letters_total",
            Self::Wait => "fetchq_wait_seconds",
            Self::Run => "fetchq_run_seconds",
            Self::Workers => "fetchq_workers",
            Self::Paused => "fetchq_queue_paused",
            Self::DeadLetterQueue => "fetchq_dead_letter_queue",
            Self::Schedules => "fetchq_schedules",
            Self::MaintenanceAge => "fetchq_maintenance_last_run_age_seconds",
            Self::MaintenanceFailing => "fetchq_maintenance_failing_jobs",
            Self::FloorMisses => "fetchq_floor_misses_total",
            Self::Info => "fetchq_info",
            Self::Missing => "fetchq_metric_missing",
        }
    }

    /// Its type.
    pub fn kind(self) -> Kind {
        match self {
            Self::Pushed
            | Self::Picked
            | Self::Settled
            | Self::LeasesLost
            | Self::Expired
            | Self::DeadLetters
            | Self::FloorMisses => Kind::Counter,
            Self::Wait | Self::Run => Kind::Histogram,
            _ => Kind::Gauge,
        }
    }

    /// What it says, in one sentence without a full stop.
    pub fn help(self) -> &'static str {
        match self {
            Self::Documents => {
                "Documents of a queue by state: ready, retrying, blocked, planned, active, completed, killed; pending where the first three are not known"
            }
            Self::OldestReady => {
                "For how long the oldest ready document of a queue has been ready; 0 when none is ready"
            }
            Self::PlannedOverdue => {
                "For how long the first planned document of a queue should have been pending; 0 when none is overdue"
            }
            Self::Pushed => "Documents that entered a queue",
            Self::Picked => "Documents that were picked from a queue",
            Self::Settled => {
                "Documents that a worker settled by outcome: succeeded, rescheduled, rejected, killed"
            }
            Self::LeasesLost => "Documents whose lease expired",
            Self::Expired => "Documents that were killed because they did not begin in time",
            Self::DeadLetters => "Documents that moved to the dead-letter queue of their queue",
            Self::Wait => "How long documents were due before they were picked",
            Self::Run => "How long documents were active before their worker settled them",
            Self::Workers => "Connected sessions that have picked documents of a queue",
            Self::DeadLetterQueue => {
                "1 for a queue that is the dead-letter queue of another one, 0 for others"
            }
            Self::Paused => "1 for a paused queue, 0 for others",
            Self::Schedules => "Schedules by state: active, paused, failing, ended",
            Self::MaintenanceAge => {
                "Time since a service of maintenance has last ended a run in any queue"
            }
            Self::MaintenanceFailing => "Maintenance jobs of a service whose last run failed",
            Self::FloorMisses => {
                "Documents that a ready floor had hidden since the server started; anything but 0 is a defect"
            }
            Self::Info => {
                "1, with the versions of fetchq and PostgreSQL, the database, whether the server is a primary or a standby, and whether the library is preloaded"
            }
            Self::Missing => {
                "1 for each metric that could not be read, with the reason: locked, standby, no shared memory"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_prometheus_wants_them() {
        for family in Family::ALL {
            let name = family.name();
            assert!(
                name.bytes().all(|c| c == b'_' || c.is_ascii_lowercase()),
                "{name}"
            );
            assert_eq!(
                family.kind() == Kind::Counter,
                name.ends_with("_total"),
                "{name}"
            );
            assert_eq!(Family::parse(name), Some(family));
            assert!(!family.help().ends_with('.'), "{name}");
        }
        assert_eq!(Family::parse("fetchq_nothing"), None);
    }
}
