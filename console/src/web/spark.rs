//! Small lines of numbers, drawn by the server.
use std::fmt::Write;

use maud::{Markup, html};

use crate::ring::Sample;

const WIDTH: f32 = 96.0;
const HEIGHT: f32 = 22.0;

/// Draws as many of the newest samples.
const POINTS: usize = 60;

/// The width is that of as many samples at least.
const LEAST: usize = 10;

/// The documents that were ready lately. The number beside it says what there is now, so the line is
/// hidden from screen readers.
pub fn sparkline(samples: &[Sample]) -> Markup {
    let newest = &samples[samples.len().saturating_sub(POINTS)..];
    let known: Vec<(usize, f32)> = newest
        .iter()
        .enumerate()
        .map(|(index, s)| (index, s.ready))
        .filter(|(_, v)| v.is_finite())
        .collect();
    let top = known
        .iter()
        .map(|(_, value)| *value)
        .fold(1.0_f32, f32::max);
    // A console that has just started has few samples: they take the whole width all the same.
    let step = WIDTH / (newest.len().max(LEAST) - 1) as f32;
    let mut points = String::new();
    for (index, value) in &known {
        let x = *index as f32 * step;
        let y = HEIGHT - 1.5 - value / top * (HEIGHT - 3.0);
        let _ = write!(points, "{x:.1},{y:.1} ");
    }
    html! {
        svg class="spark" width=(WIDTH) height=(HEIGHT) viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) aria-hidden="true" {
            polyline points=(points.trim_end()) {}
        }
    }
}
