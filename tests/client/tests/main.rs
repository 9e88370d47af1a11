//! Tests of fetchq through a real driver, on a real server; one file for each subject.
//! Run by scripts/suites/client.sh, one test at a time.

mod bad_values;
mod chaos;
mod concurrency;
mod crash;
mod create_race;
mod dead_letters;
mod documents;
mod drivers;
mod dump;
mod examples;
mod floor_race;
mod flow;
mod hostile_owners;
mod load_crash;
mod mistrust;
mod model;
mod names;
mod notifications;
mod nulls;
mod operators;
mod plans;
mod put;
mod readme;
mod schedules;
mod search_path;
mod sessions;
mod sql_worker;
mod standby;
mod status;
mod waiting;
mod worker;
mod worker_crash;
mod worker_ddl;
mod worker_pool;
mod worker_settings;
