//! The commands that the caller has run around the switch.
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fetchq_domain::names::QueueName;

use crate::failure::{Failure, Result};
use crate::names::texts;
use crate::say::say;

/// When a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Before,
    After,
    Undo,
}

impl When {
    fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Undo => "undo",
        }
    }
}

/// How often it is looked whether a hook has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Runs a hook, if there is one. Its output goes to standard error.
///
/// A hook with a limit is ended when the time is over, with all processes that it has started, and the
/// failure says that the switch can be tried again.
pub async fn run(
    when: When,
    command: Option<&str>,
    queues: &[QueueName],
    place: &str,
    limit: Option<Duration>,
) -> Result<()> {
    let Some(text) = command.filter(|text| !text.trim().is_empty()) else {
        return Ok(());
    };
    say(&format!("running --{}", when.name()));
    let mut command = Command::new("sh");
    command
        .args(["-c", text])
        .env("FETCHQ_MOVE_HOOK", when.name())
        .env("FETCHQ_MOVE_QUEUES", texts(queues).join(" "))
        .env("FETCHQ_MOVE_PLACE", place)
        .stdin(Stdio::null())
        .stdout(Stdio::from(std::io::stderr()));
    // The strings with passwords are not for the hook.
    for variable in [
        "FETCHQ_MOVE_FROM",
        "FETCHQ_MOVE_TO",
        "FETCHQ_MOVE_SUBSCRIBE",
    ] {
        command.env_remove(variable);
    }
    if limit.is_some() {
        // A group of its own, which can be ended as a whole: the shell, and what it has started.
        command.process_group(0);
    }
    let failed = |what: String| Failure::new(format!("the command of --{} {what}", when.name()));
    let not_run = |error: std::io::Error| failed(format!("could not be run: {error}"));
    let mut child = command.spawn().map_err(not_run)?;
    match wait(&mut child, limit).await.map_err(not_run)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(failed(format!("ended with {status}"))),
        None => Err(Failure::busy(format!(
            "the command of --{} did not end within --lock-timeout, and was ended: transactions may take longer",
            when.name()
        ))),
    }
}

/// Waits for the end of a hook. None: the time was over, and its group of processes is ended.
async fn wait(child: &mut Child, limit: Option<Duration>) -> std::io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if limit.is_some_and(|limit| began.elapsed() >= limit) {
            // Until it is waited for, its number is that of no other process.
            let group = child.id().to_string();
            Command::new("sh")
                .args(["-c", "kill -s KILL -- \"-$0\"", &group])
                .status()?;
            // Also when the group could not be ended, nothing is waited for that does not end.
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::parse_all;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_hook_gets_the_names_and_its_failure_is_reported() {
        let queues = parse_all(&["b".to_owned(), "a".to_owned()]).unwrap();
        let test =
            "test \"$FETCHQ_MOVE_HOOK $FETCHQ_MOVE_QUEUES $FETCHQ_MOVE_PLACE\" = 'after a b there'";
        run(When::After, Some(test), &queues, "there", None)
            .await
            .unwrap();
        let failed = run(When::Undo, Some("exit 3"), &queues, "there", None).await;
        let message = failed.unwrap_err().to_string();
        assert!(
            message.contains("--undo") && message.contains('3'),
            "{message}"
        );
        run(When::Before, None, &queues, "there", None)
            .await
            .unwrap();
    }

    /// PAUSE holds back all clients, and ends when the last transaction has ended.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_hook_that_does_not_end_in_time_is_ended_with_all_that_it_has_started() {
        let queues = parse_all(&["q".to_owned()]).unwrap();
        let file = std::env::temp_dir().join(format!("fetchq-hook-{}", std::process::id()));
        let command = format!(
            "sleep 60 & echo \"$! $$\" > {}; sleep 60; true",
            file.display()
        );
        let began = Instant::now();
        let limit = Some(Duration::from_secs(1));
        let failed = run(When::Before, Some(&command), &queues, "there", limit).await;
        let failure = failed.unwrap_err();
        assert!(failure.is_busy(), "{failure}");
        assert!(failure.to_string().contains("--lock-timeout"), "{failure}");
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it was waited for"
        );
        let pids = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for pid in pids.split_whitespace() {
            while is_running(pid) {
                assert!(began.elapsed() < Duration::from_secs(30), "{pid} runs on");
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }

    /// Whether there is such a process. One that has ended and that nobody waits for is none.
    fn is_running(pid: &str) -> bool {
        let output = Command::new("ps").args(["-o", "stat=", "-p", pid]).output();
        let state = String::from_utf8(output.unwrap().stdout).unwrap();
        !state.trim().is_empty() && !state.starts_with('Z')
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_hook_that_ends_in_time_is_not_touched() {
        let queues = parse_all(&["q".to_owned()]).unwrap();
        let limit = Some(Duration::from_secs(60));
        run(When::Before, Some("sleep 0.1"), &queues, "there", limit)
            .await
            .unwrap();
        let failed = run(When::Before, Some("exit 3"), &queues, "there", limit).await;
        assert!(!failed.unwrap_err().is_busy());
    }

    /// The guide has the hooks of the test word for word, so what is tested is what it says.
    #[test]
    fn the_guide_has_the_hooks_of_the_test() {
        let script = include_str!("../../tests/move/pooler.sh");
        let guide = include_str!("../../docs/guides/moving-queues.md");
        let guide: String = guide
            .lines()
            .map(|line| format!("{}\n", line.strip_prefix("   ").unwrap_or(line)))
            .collect();
        assert!(guide.contains(&format!("```sh\n{script}```\n")));
    }
}
