//! Fewer steps that still fail.

use std::time::{Duration, Instant};

use super::step::Step;
use super::world::{World, Wrong};

/// How long a failure is worth looking at.
const PATIENCE: Duration = Duration::from_secs(90);

/// Leaves out steps as long as something fails; gives what is left, and what it fails
/// with. Timing may be part of it: steps that do not fail again are given back whole.
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

/// Runs the steps on a new queue; what fails.
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
