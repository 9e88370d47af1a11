//! What a transaction signals to other processes when it commits: which documents became
//! ready, which statuses documents have entered, and what the background worker has to look
//! at. The state is in shared memory, on the board.

pub mod activity;
pub mod announce;
pub mod announcements;
pub mod background_worker;
pub mod board;
pub mod commit;
pub mod databases;
pub mod due_changes;
pub mod foreign_writes;
pub mod jobs_processes;
pub mod process_slot;
pub mod progress;
pub mod waiters;
pub mod wakeups;
