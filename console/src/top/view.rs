//! Draws the screen: the list of the queues. It needs 80 columns, and uses more.
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table, Wrap};

use crate::calls::Component;
use crate::top::detail;
use crate::top::list::{Column, Row};
use crate::top::screen::Screen;
use crate::top::theme::Theme;
use crate::web::format::{count, duration, rate};

/// Parts of fetchq with a problem that are shown above the list; the others are counted.
const MAX_PROBLEMS: usize = 3;

/// Draws all.
pub fn draw(frame: &mut Frame, screen: &mut Screen) {
    draw_with(frame, screen, Theme::of_environment());
}

fn draw_with(frame: &mut Frame, screen: &mut Screen, theme: Theme) {
    let problems = problem_lines(screen, frame.area().width, theme);
    let [title, state, body, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(u16::try_from(problems.len()).unwrap_or(1)),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(title_line(screen, theme)), title);
    frame.render_widget(Paragraph::new(problems), state);
    if screen.opened().is_some() {
        detail::draw(frame, body, screen, theme);
    } else {
        draw_list(frame, body, screen, theme);
    }
    frame.render_widget(Paragraph::new(footer_line(screen, theme)), footer);
    if screen.shows_help {
        draw_help(frame, theme);
    }
}

fn title_line(screen: &Screen, theme: Theme) -> Line<'static> {
    let (name, label) = screen.position.label();
    let mut spans = vec![Span::styled(format!("fetchq {name}"), theme.head())];
    if let Some(numbers) = &screen.numbers {
        if numbers.info.is_standby {
            spans.push(Span::styled("  standby", theme.warn()));
        }
        let shown = screen.rows.len();
        let all = numbers.queues.len();
        spans.push(Span::raw(match shown == all {
            true => format!("  {all} queues"),
            false => format!("  {shown} of {all} queues"),
        }));
    }
    let delay = screen.delay.as_secs_f64();
    spans.push(Span::styled(
        format!("  every {delay} s  {label}"),
        theme.dim(),
    ));
    Line::from(spans)
}

/// What needs somebody, with what to do; or that all is well.
fn problem_lines(screen: &Screen, width: u16, theme: Theme) -> Vec<Line<'static>> {
    if let Some(error) = &screen.error {
        let hint = error.hint.as_deref().unwrap_or_default();
        let mut lines = wrapped(&format!("error: {error}"), hint, width, theme);
        let age = match screen.numbers {
            Some(_) => "The numbers below are older.",
            None => "There are no numbers yet.",
        };
        lines.push(Line::styled(age, theme.warn()));
        return lines;
    }
    if screen.numbers.is_none() {
        return vec![Line::styled("connecting …", theme.dim())];
    }
    let problems = screen.problems();
    let mut lines: Vec<Line> = problems
        .iter()
        .take(MAX_PROBLEMS)
        .flat_map(|part| problem_lines_of(part, width, theme))
        .collect();
    if problems.len() > MAX_PROBLEMS {
        let more = problems.len() - MAX_PROBLEMS;
        lines.push(Line::styled(
            format!("and {more} more: see fetchq.status()"),
            theme.warn(),
        ));
    }
    if lines.is_empty() {
        lines.push(Line::styled(
            "No part of fetchq reports a problem.",
            theme.good(),
        ));
    }
    lines
}

fn problem_lines_of(part: &Component, width: u16, theme: Theme) -> Vec<Line<'static>> {
    let state = part.state.as_deref().unwrap_or_default();
    let hint = part.hint.as_deref().unwrap_or_default();
    wrapped(&format!("{}: {state}.", part.component), hint, width, theme)
}

/// Lines of this width with what is wrong, and what to do about it. All but the first are indented.
fn wrapped(wrong: &str, hint: &str, width: u16, theme: Theme) -> Vec<Line<'static>> {
    const INDENT: &str = "  ";
    let mut lines: Vec<Line> = Vec::new();
    let mut used = 0;
    let words = wrong
        .split_whitespace()
        .map(|word| (word, theme.bad()))
        .chain(hint.split_whitespace().map(|word| (word, Style::new())));
    for (word, style) in words {
        let length = Span::raw(word).width();
        match lines
            .last_mut()
            .filter(|_| used + 1 + length <= usize::from(width))
        {
            Some(line) => {
                line.push_span(Span::styled(format!(" {word}"), style));
                used += 1 + length;
            }
            None => {
                let indent = if lines.is_empty() { "" } else { INDENT };
                let spans = vec![Span::raw(indent), Span::styled(word.to_owned(), style)];
                lines.push(Line::from(spans));
                used = indent.len() + length;
            }
        }
    }
    lines
}

fn draw_list(frame: &mut Frame, area: Rect, screen: &mut Screen, theme: Theme) {
    if screen.numbers.is_some() && screen.rows.is_empty() {
        let text = match screen.filter.is_empty() {
            true => "There is no queue on which this role has a right.",
            false => "No queue has a name that contains this text.",
        };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    // The head is one line.
    screen.scroll(usize::from(area.height).saturating_sub(1));
    let cursor = screen.cursor_at();
    let shown = screen.rows.iter().enumerate();
    let shown = shown.skip(screen.first).take(screen.height);
    let rows = shown.map(|(at, row)| {
        let style = match Some(at) == cursor {
            true => theme.cursor(),
            false => Style::new(),
        };
        table_row(row, theme).style(style)
    });
    let heads = Column::ALL.map(|column| head(screen, column, theme));
    let widths = Column::ALL.map(|column| match column {
        Column::Name => Constraint::Min(16),
        Column::Oldest => Constraint::Length(12),
        Column::Picked | Column::Failing => Constraint::Length(8),
        _ => Constraint::Length(7),
    });
    let table = Table::new(rows, widths)
        .header(TableRow::new(heads))
        .column_spacing(1);
    frame.render_widget(table, area);
}

fn head(screen: &Screen, column: Column, theme: Theme) -> Cell<'static> {
    let is_sorted = screen.column == column;
    let is_ascending = (column == Column::Name) != screen.is_reversed;
    let arrow = match (is_sorted, is_ascending) {
        (false, _) => "",
        (true, true) => "▲",
        (true, false) => "▼",
    };
    let text = format!("{}{arrow}", column.head());
    let style = match is_sorted {
        true => theme.head().add_modifier(Modifier::UNDERLINED),
        false => theme.head(),
    };
    cell(column, text, style)
}

fn cell(column: Column, text: String, style: Style) -> Cell<'static> {
    let alignment = match column {
        Column::Name => Alignment::Left,
        _ => Alignment::Right,
    };
    Cell::new(Line::styled(text, style).alignment(alignment))
}

/// A number that fits into a column of seven: beyond a million as 12.3M.
fn short(number: Option<i64>) -> String {
    match number {
        Some(n) if n.abs() >= 1_000_000_000 => format!("{:.1}G", n as f64 / 1e9),
        Some(n) if n.abs() >= 1_000_000 => format!("{:.1}M", n as f64 / 1e6),
        other => count(other),
    }
}

fn table_row(row: &Row, theme: Theme) -> TableRow<'static> {
    let stat = &row.stat;
    let is_paused = stat.is_paused == Some(true);
    let plain = Style::new();
    let name = match (is_paused, stat.has_dead_letters()) {
        (true, _) => format!("{} (paused)", stat.queue),
        (false, true) => format!("{} (dead)", stat.queue),
        (false, false) => stat.queue.clone(),
    };
    let failing = match row.rates.failed >= 0.005 {
        true => theme.bad(),
        false => plain,
    };
    let killed = match stat.killed.is_some_and(|n| n > 0) {
        true => theme.bad(),
        false => plain,
    };
    let cells = [
        (
            Column::Name,
            name,
            if is_paused { theme.warn() } else { plain },
        ),
        (Column::Ready, short(stat.ready), plain),
        (
            Column::Oldest,
            duration(stat.oldest_ready),
            if stat.has_dead_letters() {
                theme.dim()
            } else {
                plain
            },
        ),
        (Column::Active, short(stat.active), plain),
        (Column::Waiting, short(row.waiting()), plain),
        (Column::Picked, rate(row.rates.picked), plain),
        (Column::Failing, rate(row.rates.failed), failing),
        (Column::Killed, short(stat.killed), killed),
    ];
    TableRow::new(cells.map(|(column, text, style)| cell(column, text, style)))
}

fn footer_line(screen: &Screen, theme: Theme) -> Line<'static> {
    if screen.is_typing {
        return Line::from(vec![
            Span::styled("name contains: ", theme.head()),
            Span::raw(format!("{}_", screen.filter)),
            Span::styled("  Enter keeps it, Esc clears it", theme.dim()),
        ]);
    }
    let text = if screen.opened().is_some() {
        "Esc back  Space read now  q quit"
    } else {
        "Enter open  / filter  n r o a w p f k sort  Space read now  ? help  q quit"
    };
    Line::styled(text, theme.dim())
}

const HELP: &str = "\
Up, Down, PgUp, PgDn, Home, End   move
Enter                             open the queue
Esc                               back; in the list: no filter
/                                 show queues whose names contain …
n r o a w p f k                   sort by name, ready, oldest, active,
                                  waiting, picked, failing, killed;
                                  again: the other direction
Tab                               the next database
Space                             read the numbers now
q, Ctrl-C                         quit

WAIT is planned, retrying and blocked documents together.
PICK/S and FAIL/S are means of the last ten reads.
The numbers are those of fetchq.queue_stats().";

fn draw_help(frame: &mut Frame, theme: Theme) {
    let area = frame.area();
    let height = u16::try_from(HELP.lines().count()).unwrap_or(0) + 2;
    let [middle] = Layout::vertical([Constraint::Length(height)])
        .flex(ratatui::layout::Flex::Center)
        .areas(area);
    let [middle] = Layout::horizontal([Constraint::Length(72)])
        .flex(ratatui::layout::Flex::Center)
        .areas(middle);
    let block = Block::bordered().title(" Keys ").title_style(theme.head());
    frame.render_widget(Clear, middle);
    frame.render_widget(
        Paragraph::new(HELP).wrap(Wrap { trim: false }).block(block),
        middle,
    );
}

#[cfg(test)]
mod tests;
