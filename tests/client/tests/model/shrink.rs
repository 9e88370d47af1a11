//! Finds a shorter list of steps that still fails.

use std::time::{Duration, Instant};

use super::step::Step;
use super::world::{World, Wrong};

/// The maximum time for shrinking one failure.
const PATIENCE: Duration = Duration::from_secs(90);

/// Removes steps as long as the rest still fails; returns the remaining steps and their failure.
/// A failure may depend on timing: steps that do not fail again are returned unchanged.
pub async fn shrink(world: &mut World, steps: &[Step], what: &str) -> (Vec<Step>, String) {
    let deadline = Instant::now() + PATIENCE;
    let Some(mut what) = again(world, steps).await else {
        return (
            steps.to_vec(),
            format!("{what}\n(not seen again when these steps were repeated)"),
        );
    };
    let mut steps = steps.to_vec();
    let mut size = steps.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < steps.len() && Instant::now() < deadline {
            let mut fewer = steps[..at].to_vec();
            fewer.extend_from_slice(&steps[(at + size).min(steps.len())..]);
            match again(world, &fewer).await {
                Some(other) => {
                    steps = fewer;
                    what = other;
                }
                None => at += size,
            }
        }
        size /= 2;
    }
    (steps, what)
}

/// Runs the steps on a new queue, and returns the failure.
async fn again(world: &mut World, steps: &[Step]) -> Option<String> {
    world.reset().await;
    for step in steps {
        if let Err(Wrong(what)) = world.run(step).await {
            return Some(what);
        }
    }
    world
        .engine_is_content()
        .await
        .err()
        .map(|Wrong(what)| what)
}
