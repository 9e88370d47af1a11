//! `fetchq top`: the queues in a terminal, live.
//!
//! One task reads the numbers, as often as `--delay` says; a thread reads the keys. The loop below
//! draws when one of both has news.
mod detail;
mod feed;
mod list;
mod screen;
mod theme;
mod view;

use std::io::{IsTerminal, stdout};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use fetchq_connect::ConfigError;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Frame};
use tokio::sync::mpsc;

use crate::db::{ConnectArgs, Databases};
use feed::Feed;
use screen::{Next, Screen};

/// How often the numbers are read, at most and at least: seconds.
const DELAYS: std::ops::RangeInclusive<f64> = 0.2..=3600.0;

#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,

    /// The pause between two reads in seconds, between 0.2 and 3600.
    #[arg(long, short, value_name = "SECONDS", default_value_t = 2.0)]
    pub delay: f64,

    /// The order of the queues: name, ready, oldest, active, waiting, picked, failing or killed.
    #[arg(long, short, value_name = "COLUMN", default_value = "oldest")]
    pub sort: list::Column,
}

/// Why the screen cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("standard output is not a terminal: call fetchq.queue_stats() with psql instead")]
    NoTerminal,
    #[error("--delay must be between 0.2 and 3600 seconds")]
    Delay,
    #[error("the terminal cannot be used: {0}")]
    Terminal(#[from] std::io::Error),
}

/// Shows the screen until the person leaves it.
///
/// # Errors
/// An argument is wrong, or there is no terminal.
pub async fn run(args: TopArgs) -> Result<(), TopError> {
    if !DELAYS.contains(&args.delay) {
        return Err(TopError::Delay);
    }
    let databases = Arc::new(Databases::new(&args.connect.urls)?);
    if !stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    let delay = Duration::from_secs_f64(args.delay);
    let mut screen = Screen::new(databases, delay, args.sort);
    // It also restores the terminal after a panic.
    let mut terminal = ratatui::try_init()?;
    let done = show(&mut terminal, &mut screen).await;
    ratatui::restore();
    done
}

async fn show(terminal: &mut DefaultTerminal, screen: &mut Screen) -> Result<(), TopError> {
    let mut keys = read_keys();
    let mut feed = Feed::start(screen.database(), screen.delay, screen.opened());
    loop {
        terminal.draw(|frame: &mut Frame| view::draw(frame, screen))?;
        tokio::select! {
            news = feed.next() => match news {
                Some(news) => screen.receive(news),
                None => return Ok(()),
            },
            event = keys.recv() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    let is_interrupt =
                        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                    match if is_interrupt { Next::Quit } else { screen.press(key.code) } {
                        Next::Draw => (),
                        Next::Read => feed.open(screen.opened()),
                        Next::Database => {
                            feed = Feed::start(screen.database(), screen.delay, screen.opened());
                        }
                        Next::Quit => return Ok(()),
                    }
                }
                // The terminal was resized, for example.
                Some(Ok(_)) => (),
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(()),
            },
        }
    }
}

/// Reads the events of the terminal, in a thread that ends with the process.
fn read_keys() -> mpsc::Receiver<std::io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let is_last = event.is_err();
            if sender.blocking_send(event).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}
