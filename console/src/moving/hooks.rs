//! The commands that the caller has run around the switch.
use std::process::{Command, Stdio};

use super::failure::{Failure, Result};
use super::name::{QueueName, texts};
use super::say::say;

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

/// Runs a hook, if there is one. Its output goes to standard error.
pub async fn run(
    when: When,
    command: Option<&str>,
    queues: &[QueueName],
    place: &str,
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
    let ended = tokio::task::spawn_blocking(move || command.status()).await;
    let failed = |what: String| Failure::new(format!("the command of --{} {what}", when.name()));
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(failed(format!("ended with {status}"))),
        Ok(Err(error)) => Err(failed(format!("could not be run: {error}"))),
        Err(error) => Err(failed(format!("could not be run: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_hook_gets_the_names_and_its_failure_is_reported() {
        let queues = QueueName::parse_all(&["b".to_owned(), "a".to_owned()]).unwrap();
        let test =
            "test \"$FETCHQ_MOVE_HOOK $FETCHQ_MOVE_QUEUES $FETCHQ_MOVE_PLACE\" = 'after a b there'";
        run(When::After, Some(test), &queues, "there")
            .await
            .unwrap();
        let failed = run(When::Undo, Some("exit 3"), &queues, "there").await;
        let message = failed.unwrap_err().to_string();
        assert!(
            message.contains("--undo") && message.contains('3'),
            "{message}"
        );
        run(When::Before, None, &queues, "there").await.unwrap();
    }

    /// The guide has the hooks of the test word for word, so what is tested is what it says.
    #[test]
    fn the_guide_has_the_hooks_of_the_test() {
        let script = include_str!("../../../tests/move/pooler.sh");
        let guide = include_str!("../../../docs/guides/moving-queues.md");
        let guide: String = guide
            .lines()
            .map(|line| format!("{}\n", line.strip_prefix("   ").unwrap_or(line)))
            .collect();
        assert!(guide.contains(&format!("```sh\n{script}```\n")));
    }
}
