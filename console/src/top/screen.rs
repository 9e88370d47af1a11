//! What the screen shows, and what the keys do.
use std::sync::Arc;
use std::time::Duration;

use fetchq_connect::DbError;
use ratatui::crossterm::event::KeyCode;

use crate::calls::{Component, Lease};
use crate::db::Databases;
use crate::ring::Ring;
use crate::top::feed::{News, Numbers, Position};
use crate::top::list::{self, Column, Row};

/// What follows from a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// The screen is drawn.
    Draw,
    /// The numbers are read at once.
    Read,
    /// Another database is shown.
    Database,
    /// The program ends.
    Quit,
}

/// All that is shown.
pub struct Screen {
    pub position: Position,
    pub delay: Duration,
    pub column: Column,
    pub is_reversed: bool,
    /// The text that names must contain.
    pub filter: String,
    /// The filter is being typed.
    pub is_typing: bool,
    /// The numbers that were read last.
    pub numbers: Option<Numbers>,
    /// Why they could not be read again.
    pub error: Option<DbError>,
    pub ring: Ring,
    /// The rows of the list.
    pub rows: Vec<Row>,
    /// The name of the queue with the cursor.
    pub cursor: Option<String>,
    /// The first row that is shown, and how many are.
    pub first: usize,
    pub height: usize,
    /// The queue that is open.
    opened: Option<String>,
    pub shows_help: bool,
}

impl Screen {
    /// A screen without numbers.
    pub fn new(databases: Arc<Databases>, delay: Duration, column: Column) -> Self {
        Self {
            position: Position { databases, at: 0 },
            delay,
            column,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            numbers: None,
            error: None,
            ring: Ring::default(),
            rows: Vec::new(),
            cursor: None,
            first: 0,
            height: 0,
            opened: None,
            shows_help: false,
        }
    }

    /// The database that is shown.
    pub fn database(&self) -> Position {
        Position {
            databases: self.position.databases.clone(),
            at: self.position.at,
        }
    }

    /// The queue that is open.
    pub fn opened(&self) -> Option<String> {
        self.opened.clone()
    }

    /// The row of the queue that is open. None when it was dropped.
    pub fn opened_row(&self) -> Option<Row> {
        let name = self.opened.as_ref()?;
        let numbers = self.numbers.as_ref()?;
        let stat = numbers.queues.iter().find(|stat| stat.queue == *name)?;
        Some(Row {
            stat: stat.clone(),
            rates: self.ring.rates(name),
        })
    }

    /// The leases of the queue that is open.
    pub fn leases(&self) -> &[Lease] {
        let leases = self
            .numbers
            .as_ref()
            .map(|numbers| numbers.leases.as_slice());
        match (leases, &self.opened) {
            // Those that were read before belong to another queue.
            (Some(leases), Some(queue)) if leases.iter().all(|lease| lease.queue == *queue) => {
                leases
            }
            _ => &[],
        }
    }

    /// The parts of fetchq that need somebody.
    pub fn problems(&self) -> Vec<&Component> {
        let status = self.numbers.iter().flat_map(|numbers| &numbers.status);
        status.filter(|part| part.hint.is_some()).collect()
    }

    /// Takes over what was read.
    pub fn receive(&mut self, news: News) {
        match news {
            Ok(numbers) => {
                self.ring.record(numbers.at, &numbers.queues);
                self.numbers = Some(numbers);
                self.error = None;
                self.arrange();
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// Filters and sorts the rows. The cursor stays on its queue.
    fn arrange(&mut self) {
        let queues = self.numbers.as_ref().map_or(&[][..], |n| &n.queues);
        self.rows = list::rows(
            queues,
            &self.ring,
            &self.filter,
            self.column,
            self.is_reversed,
        );
        if self.cursor_at().is_none() {
            self.cursor = self.rows.first().map(|row| row.stat.queue.clone());
        }
    }

    /// The row with the cursor.
    pub fn cursor_at(&self) -> Option<usize> {
        let name = self.cursor.as_ref()?;
        self.rows.iter().position(|row| row.stat.queue == *name)
    }

    fn move_to(&mut self, at: usize) {
        let last = self.rows.len().saturating_sub(1);
        self.cursor = self
            .rows
            .get(at.min(last))
            .map(|row| row.stat.queue.clone());
    }

    /// Shows this number of rows, among them the one with the cursor.
    pub fn scroll(&mut self, height: usize) {
        self.height = height;
        let at = self.cursor_at().unwrap_or(0);
        self.first = self.first.min(at).max((at + 1).saturating_sub(height));
        self.first = self.first.min(self.rows.len().saturating_sub(height));
    }

    /// Does what a key stands for.
    pub fn press(&mut self, key: KeyCode) -> Next {
        if self.shows_help {
            self.shows_help = false;
            return Next::Draw;
        }
        if self.is_typing {
            self.type_filter(key);
            return Next::Draw;
        }
        match key {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Char(' ') => return Next::Read,
            KeyCode::Tab if self.position.databases.all().len() > 1 => {
                let position = self.position.following();
                *self = Self::new(position.databases.clone(), self.delay, self.column);
                self.position = position;
                return Next::Database;
            }
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left if self.opened.is_some() => {
                self.opened = None;
                return Next::Read;
            }
            _ if self.opened.is_some() => (),
            KeyCode::Esc => {
                self.filter.clear();
                self.arrange();
            }
            KeyCode::Enter | KeyCode::Right => {
                if self.cursor_at().is_some() {
                    self.opened.clone_from(&self.cursor);
                    return Next::Read;
                }
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char(key) => {
                if let Some(column) = Column::of(key) {
                    self.sort(column);
                }
            }
            other => self.move_cursor(other),
        }
        Next::Draw
    }

    fn move_cursor(&mut self, key: KeyCode) {
        let at = self.cursor_at().unwrap_or(0);
        let page = self.height.max(1);
        match key {
            KeyCode::Up => self.move_to(at.saturating_sub(1)),
            KeyCode::Down => self.move_to(at + 1),
            KeyCode::PageUp => self.move_to(at.saturating_sub(page)),
            KeyCode::PageDown => self.move_to(at + page),
            KeyCode::Home => self.move_to(0),
            KeyCode::End => self.move_to(usize::MAX),
            _ => (),
        }
    }

    /// Sorts by a column; by the same one again in the other direction.
    fn sort(&mut self, column: Column) {
        self.is_reversed = self.column == column && !self.is_reversed;
        self.column = column;
        self.arrange();
        self.move_to(0);
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => (),
        }
        self.arrange();
    }
}
