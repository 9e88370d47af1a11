//! What was said in a scenario: kept in a file, and shown when it fails.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

pub struct Log {
    began: Instant,
    path: PathBuf,
    file: Mutex<File>,
    lines: Mutex<Vec<String>>,
}

impl Log {
    pub fn new(path: &Path) -> Self {
        Self {
            began: Instant::now(),
            path: path.to_owned(),
            file: Mutex::new(File::create(path).expect("create the log of a scenario")),
            lines: Mutex::default(),
        }
    }

    /// `>`: the driver has told it; `<`: the adapter has told it; `!`: a line of its messages.
    pub fn add(&self, who: &str, direction: char, text: &str) {
        let seconds = self.began.elapsed().as_secs_f64();
        let mut line = format!("{seconds:8.3} {who} {direction} {text}");
        let _ = writeln!(self.file.lock().unwrap(), "{line}");
        if line.len() > 400 {
            line.truncate(line.floor_char_boundary(400));
            line.push('…');
        }
        self.lines.lock().unwrap().push(line);
    }

    /// The last lines.
    pub fn end(&self, n: usize) -> String {
        let lines = self.lines.lock().unwrap();
        let from = lines.len().saturating_sub(n);
        format!(
            "{}\nall lines are in {}",
            lines[from..].join("\n"),
            self.path.display()
        )
    }
}
