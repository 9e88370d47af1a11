//! How long the queues would stand still: the comparison of all documents, timed before they do.
use std::time::{Duration, Instant};

use fetchq_domain::names::QueueName;

use crate::failure::{Failure, Result};
use crate::say::say;
use crate::server::Server;
use crate::strangers;

/// Reads the seconds of `--pause-limit`.
pub fn parse_seconds(text: &str) -> std::result::Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("seconds are expected, more than 0 and at most 3600".to_owned()),
    }
}

/// How long the transaction of the switch may run a statement, without the time for which it waits for a
/// lock, or wait for the next one.
///
/// The comparison under the lock reads tables that have grown since it was timed, on servers that are as
/// busy as they are.
pub fn transaction_limit(pause_limit: Duration) -> Duration {
    (pause_limit * 4).max(Duration::from_secs(60))
}

/// The number of documents of a queue, and a text that differs where the documents do.
pub fn summary(name: &QueueName) -> String {
    format!(
        "select coalesce(sum(s.n), 0)::bigint,
            coalesce(string_agg(format('%s with status %s (%s)', s.n, s.status, s.sums), ', ' order by s.status), 'none')
        from (
            select d.status, count(*) as n,
                concat_ws(' ', sum(d.seq), max(d.lease), max(d.next_iteration)) as sums
            from only {} d group by d.status) s",
        name.qualified("docs")
    )
}

/// How long each server needs.
struct Took {
    old: Duration,
    /// None before the tables are copied.
    new: Option<Duration>,
}

impl Took {
    fn longest(&self) -> Duration {
        self.old.max(self.new.unwrap_or_default())
    }
}

impl std::fmt::Display for Took {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} s on the old server", self.old.as_secs_f64())?;
        match self.new {
            Some(new) => write!(f, " and {:.2} s on the new one", new.as_secs_f64()),
            None => Ok(()),
        }
    }
}

/// Refuses queues whose documents take longer to compare than they may stand still. Nothing is locked.
/// `new`: the new server, when the tables are copied.
pub async fn require_short(
    old: &Server,
    new: Option<&Server>,
    names: &[QueueName],
    limit: Duration,
) -> Result<()> {
    strangers::require_none(old, names).await?;
    let mut took = time(old, new, names).await?;
    if took.longest() > limit {
        // The first look has filled the caches, as it does for the look under the lock.
        took = time(old, new, names).await?;
    }
    say(&format!("comparing all documents takes {took}"));
    judge(&took, limit)
}

async fn time(old: &Server, new: Option<&Server>, names: &[QueueName]) -> Result<Took> {
    // At the same time, as under the lock: both can be on one machine.
    let there = async {
        match new {
            Some(new) => time_one(new, names).await.map(Some),
            None => Ok(None),
        }
    };
    let (old, new) = tokio::join!(time_one(old, names), there);
    Ok(Took {
        old: old?,
        new: new?,
    })
}

async fn time_one(server: &Server, names: &[QueueName]) -> Result<Duration> {
    let began = Instant::now();
    for name in names {
        server.one(&summary(name), &[]).await?;
    }
    Ok(began.elapsed())
}

fn judge(took: &Took, limit: Duration) -> Result<()> {
    if took.longest() <= limit {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the queues would stand still for too long: comparing all documents under the lock takes {took}, and --pause-limit is {} s",
        limit.as_secs_f64()
    ))
    .with_hint(
        "Completed and killed documents that the queues keep are compared as well. Give the queues a history \
         (queue_configure, \"history\"), into which these documents move and which is not compared, and move the queues \
         when that is done. Or let them stand still for longer, with a greater --pause-limit.",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(old: u64, new: Option<u64>) -> Took {
        Took {
            old: Duration::from_millis(old),
            new: new.map(Duration::from_millis),
        }
    }

    #[test]
    fn a_comparison_that_takes_too_long_on_either_server_is_refused_with_its_time() {
        let limit = Duration::from_secs(20);
        assert!(judge(&took(20_000, Some(20_000)), limit).is_ok());
        assert!(judge(&took(20_000, None), limit).is_ok());
        assert!(judge(&took(20_001, None), limit).is_err());
        assert!(judge(&took(31_240, Some(1)), limit).is_err());
        let failure = judge(&took(1, Some(31_240)), limit).unwrap_err();
        let text = failure.to_string();
        assert!(!failure.is_busy(), "it would be the same again");
        for part in ["31.24 s on the new one", "--pause-limit is 20 s", "history"] {
            assert!(text.contains(part), "{text}");
        }
        let longer = Duration::from_secs(32);
        assert!(judge(&took(1, Some(31_240)), longer).is_ok());
    }

    #[test]
    fn the_limits_of_the_transaction_follow_from_that_of_the_pause() {
        let limit = |seconds| transaction_limit(Duration::from_secs(seconds)).as_secs();
        assert_eq!(
            (limit(1), limit(15), limit(20), limit(600)),
            (60, 60, 80, 2400)
        );
    }

    #[test]
    fn a_pause_limit_has_seconds_and_their_parts() {
        assert_eq!(parse_seconds("20"), Ok(Duration::from_secs(20)));
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "3601", "nan", "inf", "20s", ""] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn documents_are_compared_by_status_and_sums() {
        let sql = summary(&QueueName::parse("q").unwrap());
        assert!(sql.contains("from only fetchq_data.\"q__docs\" d group by d.status"));
    }
}
