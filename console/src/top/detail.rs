//! Draws one queue: its documents, rates, times and leases.
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row as TableRow, Sparkline, Table};

use crate::calls::Lease;
use crate::poller::now;
use crate::top::list::Row;
use crate::top::screen::Screen;
use crate::top::theme::Theme;
use crate::web::format::{count, duration, rate};

/// Draws the queue that is open.
pub fn draw(frame: &mut Frame, area: Rect, screen: &Screen, theme: Theme) {
    let name = screen.opened().unwrap_or_default();
    let Some(row) = screen.opened_row() else {
        let text = match screen.numbers {
            Some(_) => {
                format!("There is no queue {name} any more, or this role lost its right on it.")
            }
            None => format!("{name}: no numbers yet"),
        };
        frame.render_widget(Paragraph::new(text), area);
        return;
    };
    let [facts, lines, leases] = Layout::vertical([
        Constraint::Length(6),
        Constraint::Length(4),
        Constraint::Min(0),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(fact_lines(&row, theme)), facts);
    draw_lines(frame, lines, screen, &name, theme);
    draw_leases(frame, leases, screen.leases(), theme);
}

/// A line of names and values.
fn facts(head: &str, pairs: &[(&str, String)], theme: Theme) -> Line<'static> {
    let mut spans = vec![Span::styled(format!("{head:<10}"), theme.head())];
    for (name, value) in pairs {
        spans.push(Span::styled(format!(" {name} "), theme.dim()));
        spans.push(Span::raw(format!("{value} ")));
    }
    Line::from(spans)
}

fn fact_lines(row: &Row, theme: Theme) -> Vec<Line<'static>> {
    let stat = &row.stat;
    let mut title = vec![Span::styled(stat.queue.clone(), theme.head())];
    if stat.is_paused == Some(true) {
        title.push(Span::styled("  paused", theme.warn()));
    }
    if stat.has_dead_letters() {
        title.push(Span::styled("  dead letters", theme.dim()));
    }
    vec![
        Line::from(title),
        facts(
            "documents",
            &[
                ("ready", count(stat.ready)),
                ("retrying", count(stat.retrying)),
                ("blocked", count(stat.blocked)),
                ("planned", count(stat.planned)),
                ("active", count(stat.active)),
            ],
            theme,
        ),
        facts(
            "",
            &[
                ("completed", count(stat.completed)),
                ("killed", count(stat.killed)),
                ("oldest ready", duration(stat.oldest_ready)),
                (
                    "next due in",
                    duration(stat.next_due.map(|due| (due - now()).max(0.0))),
                ),
            ],
            theme,
        ),
        facts(
            "totals",
            &[
                ("pushed", count(stat.pushed)),
                ("picked", count(stat.picked)),
                ("succeeded", count(stat.succeeded)),
                ("failed", count(stat.failed)),
                ("lost", count(stat.lost)),
            ],
            theme,
        ),
        facts(
            "rates",
            &[
                ("pushed", rate(row.rates.pushed)),
                ("picked", rate(row.rates.picked)),
                ("succeeded", rate(row.rates.succeeded)),
                ("failed", rate(row.rates.failed)),
            ],
            theme,
        ),
        facts(
            "times",
            &[
                ("wait p50", duration(stat.wait_p50)),
                ("p95", duration(stat.wait_p95)),
                ("run p50", duration(stat.run_p50)),
                ("p95", duration(stat.run_p95)),
            ],
            theme,
        ),
    ]
}

/// Draws how the ready documents and the picks changed.
fn draw_lines(frame: &mut Frame, area: Rect, screen: &Screen, queue: &str, theme: Theme) {
    let samples = screen.ring.samples(queue);
    let rows = Layout::vertical([Constraint::Length(2); 2]).split(area);
    let values: [(&str, Vec<f32>); 2] = [
        ("ready", samples.iter().map(|sample| sample.ready).collect()),
        (
            "picked/s",
            samples.iter().map(|sample| sample.picked).collect(),
        ),
    ];
    for ((name, values), area) in values.into_iter().zip(rows.iter()) {
        let [head, line] =
            Layout::horizontal([Constraint::Length(11), Constraint::Min(1)]).areas(*area);
        frame.render_widget(Paragraph::new(Line::styled(name, theme.head())), head);
        // The newest is at the right.
        let width = usize::from(line.width);
        let shown = &values[values.len().saturating_sub(width)..];
        // Rates have fractions.
        let data: Vec<u64> = shown.iter().map(|value| (value * 100.0) as u64).collect();
        frame.render_widget(Sparkline::default().data(data), line);
    }
}

fn draw_leases(frame: &mut Frame, area: Rect, leases: &[Lease], theme: Theme) {
    let heads = ["LEASED", "WORKER", "ATTEMPT", "FOR", "UNTIL IN"];
    let rows = leases.iter().map(|lease| {
        let left = lease.lease_ends.map(|end| end - now());
        TableRow::new([
            lease.subject.clone(),
            lease.worker.clone().unwrap_or_default(),
            lease.attempts.map_or_else(String::new, |n| n.to_string()),
            duration(lease.picked_at.map(|since| (now() - since).max(0.0))),
            match left {
                Some(left) if left < 0.0 => "expired".to_owned(),
                left => duration(left),
            },
        ])
    });
    let widths = [
        Constraint::Min(20),
        Constraint::Min(16),
        Constraint::Length(7),
        Constraint::Length(12),
        Constraint::Length(12),
    ];
    if leases.is_empty() {
        let text = Line::styled("No document is leased.", theme.dim());
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let head = TableRow::new(heads).style(theme.head());
    frame.render_widget(
        Table::new(rows, widths).header(head).column_spacing(1),
        area,
    );
}
