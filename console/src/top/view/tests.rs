use std::sync::Arc;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::Color;

use super::*;
use crate::calls::{Info, QueueStat};
use crate::db::Databases;
use crate::top::feed::Numbers;
use crate::top::screen::Next;

fn stat(queue: &str, ready: i64, oldest: Option<f64>, picked: i64) -> QueueStat {
    QueueStat {
        ready: Some(ready),
        retrying: Some(1),
        blocked: Some(0),
        planned: Some(2),
        active: Some(3),
        completed: Some(4),
        killed: Some(0),
        oldest_ready: oldest,
        pushed: Some(picked),
        picked: Some(picked),
        succeeded: Some(picked),
        failed: Some(0),
        lost: Some(0),
        is_paused: Some(queue == "slow"),
        ..QueueStat::named(queue)
    }
}

fn numbers(at: f64, hint: Option<&str>) -> Numbers {
    Numbers {
        at,
        info: Info {
            extension_version: None,
            library_version: None,
            is_preloaded: None,
            has_background_worker: None,
            has_shared_memory: None,
            is_standby: false,
            role: "monitor".to_owned(),
        },
        queues: vec![
            stat("mail", 12_345_678, Some(5.0), at as i64 * 20),
            stat("slow", 7, Some(90_000.0), 0),
            stat("empty", 0, None, 0),
        ],
        status: vec![Component {
            component: "planned".to_owned(),
            state: Some("late".to_owned()),
            detail: None,
            hint: hint.map(str::to_owned),
        }],
        leases: Vec::new(),
    }
}

fn screen() -> Screen {
    let url = "postgres://monitor@localhost:1/app".to_owned();
    let databases = Arc::new(Databases::new(&[url]).unwrap());
    let mut screen = Screen::new(databases, Duration::from_secs(2), Column::Oldest);
    screen.receive(Ok(numbers(1.0, None)));
    screen.receive(Ok(numbers(2.0, None)));
    screen
}

/// The lines of a screen of 80 columns.
fn lines(screen: &mut Screen, theme: Theme) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal
        .draw(|frame| draw_with(frame, screen, theme))
        .unwrap();
    let buffer = terminal.backend().buffer().clone();
    let has_color = buffer
        .content()
        .iter()
        .any(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset));
    assert_eq!(has_color, theme.has_colors);
    let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
    cells
        .chunks(80)
        .map(|line| line.concat().trim_end().to_owned())
        .collect()
}

const PLAIN: Theme = Theme { has_colors: false };

fn names(screen: &mut Screen) -> Vec<String> {
    let all = lines(screen, PLAIN);
    let rows = all.iter().skip(3).take(3);
    rows.map(|row| row.split_whitespace().next().unwrap_or("").to_owned())
        .collect()
}

#[test]
fn the_list_fits_into_80_columns() {
    let mut screen = screen();
    let shown = lines(&mut screen, PLAIN);
    assert!(shown[0].starts_with("fetchq app"), "{shown:?}");
    assert_eq!(shown[1], "No part of fetchq reports a problem.");
    assert!(shown[2].contains("OLDEST▼"), "{shown:?}");
    assert!(shown[3].starts_with("slow (paused)"), "{shown:?}");
    let mail: Vec<&str> = shown[4].split_whitespace().collect();
    assert_eq!(
        mail,
        ["mail", "12.3M", "5.0", "s", "3", "3", "20.0/s", "0/s", "0"]
    );
    assert!(shown[23].ends_with("q quit"), "{shown:?}");
    lines(&mut screen, Theme { has_colors: true });
}

#[test]
fn dead_letters_are_no_backlog() {
    let mut screen = screen();
    let mut now = numbers(3.0, None);
    let mut dead = stat("dead", 9, Some(900_000.0), 0);
    dead.is_dead_letter_queue = Some(true);
    now.queues.push(dead);
    screen.receive(Ok(now));
    for (key, at) in [('r', 6), ('o', 5)] {
        screen.press(KeyCode::Char(key));
        let shown = lines(&mut screen, PLAIN);
        // Those with documents that wait for a worker come first, and then all others by their names.
        assert!(shown[at].starts_with("dead (dead) "), "{shown:?}");
    }
}

#[test]
fn keys_sort_filter_and_open() {
    let mut screen = screen();
    assert_eq!(names(&mut screen), ["slow", "mail", "empty"]);
    screen.press(KeyCode::Char('o'));
    assert_eq!(names(&mut screen), ["empty", "mail", "slow"]);
    screen.press(KeyCode::Char('n'));
    assert_eq!(names(&mut screen), ["empty", "mail", "slow"]);
    screen.press(KeyCode::Char('r'));
    assert_eq!(names(&mut screen), ["mail", "slow", "empty"]);
    // The cursor stays on its queue when the order changes.
    screen.press(KeyCode::Down);
    assert_eq!(screen.cursor.as_deref(), Some("slow"));
    screen.receive(Ok(numbers(3.0, None)));
    assert_eq!(screen.cursor.as_deref(), Some("slow"));
    assert_eq!(screen.press(KeyCode::Enter), Next::Read);
    let shown = lines(&mut screen, PLAIN);
    assert_eq!(shown[2], "slow  paused");
    assert!(
        shown
            .iter()
            .any(|line| line.contains("oldest ready 1 d 1 h")),
        "{shown:?}"
    );
    assert_eq!(screen.press(KeyCode::Esc), Next::Read);
    for key in "/ai".chars() {
        screen.press(KeyCode::Char(key));
    }
    assert_eq!(names(&mut screen)[0], "mail");
    assert_eq!(screen.rows.len(), 1);
    screen.press(KeyCode::Esc);
    assert_eq!(screen.rows.len(), 3);
    assert_eq!(screen.press(KeyCode::Char('q')), Next::Quit);
}

#[test]
fn a_problem_and_an_error_are_at_the_top() {
    let mut screen = screen();
    screen.receive(Ok(numbers(3.0, Some("Start it."))));
    assert_eq!(lines(&mut screen, PLAIN)[1], "planned: late. Start it.");
    screen.receive(Ok(numbers(4.0, Some(&"Look here. ".repeat(9)))));
    let shown = lines(&mut screen, PLAIN);
    assert!(shown[1].starts_with("planned: late. Look"), "{shown:?}");
    assert_eq!(shown[2], "  Look here. Look here. Look here.");
    screen.receive(Err(fetchq_connect::DbError::unreachable("gone".to_owned())));
    let shown = lines(&mut screen, PLAIN);
    assert_eq!(shown[1], "error: gone");
    assert_eq!(shown[2], "The numbers below are older.");
    assert!(shown[4].starts_with("slow"), "{shown:?}");
}

#[test]
fn tab_shows_the_next_database() {
    let urls = ["app", "shop"].map(|name| format!("postgres://monitor@localhost:1/{name}"));
    let databases = Arc::new(Databases::new(&urls).unwrap());
    let mut screen = Screen::new(databases, Duration::from_secs(2), Column::Ready);
    screen.receive(Ok(numbers(1.0, None)));
    for name in ["shop", "app"] {
        assert_eq!(screen.press(KeyCode::Tab), Next::Database);
        let shown = lines(&mut screen, PLAIN);
        assert!(shown[0].starts_with(&format!("fetchq {name}")), "{shown:?}");
        // Numbers of the other one are not shown.
        assert_eq!(shown[1], "connecting …");
        assert_eq!(screen.column, Column::Ready);
    }
}

#[test]
fn a_long_list_scrolls_with_the_cursor_and_a_small_terminal_is_no_error() {
    let mut screen = screen();
    let mut many = numbers(3.0, None);
    many.queues = (0..100)
        .map(|n| stat(&format!("q{n:03}"), 1, None, 0))
        .collect();
    screen.receive(Ok(many));
    screen.press(KeyCode::End);
    let shown = lines(&mut screen, PLAIN);
    assert!(shown[22].starts_with("q099"), "{shown:?}");
    screen.press(KeyCode::PageUp);
    screen.press(KeyCode::Home);
    assert!(lines(&mut screen, PLAIN)[3].starts_with("q000"));
    for (width, height) in [(1, 1), (20, 4), (40, 2)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| draw_with(frame, &mut screen, PLAIN))
            .unwrap();
    }
}
