//! The colors of the screen.
use std::env;

use ratatui::style::{Color, Modifier, Style};

/// The colors, or none of them with NO_COLOR.
#[derive(Debug, Clone, Copy)]
pub struct Theme {
    pub has_colors: bool,
}

impl Theme {
    /// As the environment wants it.
    pub fn of_environment() -> Self {
        Self {
            has_colors: env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        }
    }

    fn color(self, color: Color) -> Style {
        match self.has_colors {
            true => Style::new().fg(color),
            false => Style::new(),
        }
    }

    /// What is wrong.
    pub fn bad(self) -> Style {
        self.color(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// What deserves a look.
    pub fn warn(self) -> Style {
        self.color(Color::Yellow)
    }

    /// What is well.
    pub fn good(self) -> Style {
        self.color(Color::Green)
    }

    /// What is less important.
    pub fn dim(self) -> Style {
        match self.has_colors {
            true => Style::new().fg(Color::DarkGray),
            false => Style::new().add_modifier(Modifier::DIM),
        }
    }

    /// A head.
    pub fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The row with the cursor.
    pub fn cursor(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
