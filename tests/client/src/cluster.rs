//! Throwaway clusters, for tests that crash, copy or promote a server.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::Server;

/// A command for one of PostgreSQL's programs, run as the user that runs servers.
pub fn bin(program: &str) -> Command {
    as_server_user(&format!("{}/{program}", var("FETCHQ_PG_BINDIR")))
}

fn as_server_user(program: &str) -> Command {
    let mut command = match std::env::var("FETCHQ_RUNAS") {
        Ok(user) if !user.is_empty() => {
            let mut command = Command::new("runuser");
            command.args(["-u", &user, "--", program]);
            command
        }
        _ => Command::new(program),
    };
    // Settings that are meant for another server must not reach this one.
    for name in [
        "PGHOST",
        "PGPORT",
        "PGUSER",
        "PGDATABASE",
        "PGPASSWORD",
        "PGDATA",
        "PGOPTIONS",
    ] {
        command.env_remove(name);
    }
    // The current directory may be closed to that user.
    command.current_dir("/");
    command
}

fn var(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run this test with scripts/test.sh client"))
}

/// The path of the program of a package of this workspace. It is built, which takes no time in the suite.
pub fn program(package: &str) -> String {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    let build = ["build", "--profile=client", "--message-format=json", "-p"];
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let output = run(Command::new(cargo)
        .current_dir(root)
        .args(build)
        .arg(package));
    let messages = output
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut programs = messages.filter_map(|line| line["executable"].as_str().map(str::to_owned));
    programs.next().expect("an executable")
}

/// Runs a command that must succeed, and returns its output.
pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("run");
    succeeded(command, &output)
}

/// Like [`run`], with input for the command.
pub fn run_with_input(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run");
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("run");
    let text = succeeded(command, &output);
    writer.join().unwrap().expect("write its input");
    text
}

fn succeeded(command: &Command, output: &Output) -> String {
    assert!(
        output.status.success(),
        "{command:?} ended with {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A cluster that is removed when this value is dropped, unless its test has failed.
pub struct Cluster {
    dir: PathBuf,
    socket: PathBuf,
    /// The clock of the server can be set: the library that stands before that of the system.
    clock: Option<PathBuf>,
}

/// Has a server ask a file for the seconds by which its clock differs from that of the machine.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    static const char *page;
    if (!page) {
        int file = open(getenv("FETCHQ_TEST_CLOCK"), O_RDONLY);
        page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (page == MAP_FAILED) abort();
    }
    return atol(page);
}
int gettimeofday(struct timeval *now, void *zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = (int (*)(struct timeval *, void *)) dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(now, zone);
    now->tv_sec += offset();
    return result;
}
time_t time(time_t *now) {
    struct timeval exact;
    gettimeofday(&exact, NULL);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += offset();
    return result;
}
"#;

impl Cluster {
    /// A new cluster, not started. It preloads fetchq unless FETCHQ_NO_PRELOAD is 1.
    pub fn new(name: &str, settings: &str) -> Self {
        let cluster = Self::place(name);
        run(bin("initdb")
            .args([
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
                "-D",
            ])
            .arg(cluster.data()));
        cluster.configure(&format!(
            "wal_level = replica\nmax_wal_senders = 4\n{settings}"
        ));
        cluster
    }

    /// A new cluster whose clock can be set, not started. It needs a C compiler.
    pub fn with_clock(name: &str, settings: &str) -> Self {
        let mut cluster = Self::new(name, settings);
        let library = cluster.dir.join("clock.so");
        let mut compiler = as_server_user("cc");
        compiler.args(["-shared", "-fPIC", "-x", "c", "-", "-ldl", "-o"]);
        run_with_input(compiler.arg(&library), CLOCK);
        cluster.clock = Some(library);
        cluster.set_clock(0);
        cluster
    }

    /// Sets the clock of the server, by seconds from that of the machine.
    pub fn set_clock(&self, seconds: i64) {
        let mut file = std::ffi::OsString::from("of=");
        file.push(self.dir.join("clock"));
        // The server has mapped the file, so it must not become shorter.
        let mut write = as_server_user("dd");
        write.args(["conv=notrunc", "status=none"]).arg(file);
        run_with_input(&mut write, &format!("{seconds:<20}\n"));
    }

    /// A hot standby of this cluster, started.
    pub fn standby(&self, name: &str, settings: &str) -> Self {
        let standby = Self::place(name);
        run(bin("pg_basebackup")
            .args([
                "--write-recovery-conf",
                "--wal-method=stream",
                "--checkpoint=fast",
                "--no-sync",
                "-U",
                "postgres",
                "-h",
            ])
            .arg(&self.socket)
            .arg("-D")
            .arg(standby.data()));
        standby.configure(settings);
        standby.start();
        standby
    }

    fn place(name: &str) -> Self {
        let dir = Path::new(&var("FETCHQ_STATE_DIR")).join(format!("client-{name}"));
        // The path of a socket is limited to 107 bytes.
        let mut socket = dir.join("socket");
        if socket.as_os_str().len() > 85 {
            socket =
                std::env::temp_dir().join(format!("fetchq-client-{name}-{}", std::process::id()));
        }
        let clock = None;
        let cluster = Self { dir, socket, clock };
        // A run that was killed may have left its files.
        if cluster.pid().is_some() {
            cluster.stop("immediate");
        }
        cluster.remove();
        run(as_server_user("mkdir")
            .args(["-m", "700", "-p"])
            .arg(&cluster.dir)
            .arg(&cluster.socket));
        cluster
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Appends to the configuration; the last of several values for a setting counts.
    fn configure(&self, settings: &str) {
        let preload = match std::env::var("FETCHQ_NO_PRELOAD").as_deref() {
            Ok("1") => "",
            _ => "fetchq",
        };
        // So that every test can be run with late leases, which FETCHQ_LATE_LEASES writes after this time.
        let late = std::env::var("FETCHQ_LATE_LEASES").map_or(String::new(), |delay| {
            format!("fetchq.late_lease_slots = 8192\nfetchq.lease_write_delay = '{delay}'\n")
        });
        let settings = format!(
            "{late}listen_addresses = ''\nunix_socket_directories = '{}'\nshared_preload_libraries = '{preload}'\nmax_connections = 50\nfetchq.background_worker = off\nfetchq.queue_defaults = '{{}}'\n{settings}\n",
            self.socket.display()
        );
        run_with_input(
            as_server_user("tee")
                .arg("-a")
                .arg(self.data().join("postgresql.conf")),
            &settings,
        );
    }

    pub fn start(&self) {
        self.start_by(&mut bin("pg_ctl"));
    }

    /// Starts the server under `ulimit -v`, a bound on the memory of each of its processes.
    pub fn start_within(&self, kilobytes: u32) {
        let pg_ctl = format!("{}/pg_ctl", var("FETCHQ_PG_BINDIR"));
        let mut command = as_server_user("bash");
        command.args(["-c", "ulimit -v \"$1\"; shift; exec \"$@\"", "_"]);
        self.start_by(command.arg(kilobytes.to_string()).arg(pg_ctl));
    }

    fn start_by(&self, pg_ctl: &mut Command) {
        // The server would keep pipes open, and the test would wait for their end.
        // With RUST_BACKTRACE in its environment, as an operator may have it, no error that is sent
        // to a client has a backtrace.
        if let Some(library) = &self.clock {
            pg_ctl.env("LD_PRELOAD", library);
            pg_ctl.env("FETCHQ_TEST_CLOCK", self.dir.join("clock"));
        }
        let status = pg_ctl
            .env("RUST_BACKTRACE", "1")
            .args(["start", "-w", "-t", "60", "-s", "-D"])
            .arg(self.data())
            .arg("-l")
            .arg(self.log())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("pg_ctl");
        assert!(
            status.success(),
            "the server did not start:\n{}",
            self.log_text()
        );
    }

    pub fn stop(&self, mode: &str) {
        run(bin("pg_ctl")
            .args(["stop", "-w", "-t", "60", "-s", "-m", mode, "-D"])
            .arg(self.data()));
    }

    /// Stops the server; fails when a process of fetchq delays the shutdown.
    pub fn stops(&self, mode: &str) {
        let start = Instant::now();
        self.stop(mode);
        let took = start.elapsed();
        eprintln!("stop -m {mode}: {took:.1?}");
        assert!(took < Duration::from_secs(10), "stop -m {mode}: {took:.1?}");
    }

    pub fn promote(&self) {
        run(bin("pg_ctl")
            .args(["promote", "-w", "-t", "60", "-s", "-D"])
            .arg(self.data()));
    }

    /// The process ID of the postmaster, read from its pid file.
    pub fn pid(&self) -> Option<u32> {
        let file = self.read("postmaster.pid")?;
        file.lines().next()?.trim().parse().ok()
    }

    /// Reads a file of the cluster as its owner, because root may lack the right to read it.
    fn read(&self, file: &str) -> Option<String> {
        let output = as_server_user("cat")
            .arg(self.data().join(file))
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Kills a process of the cluster with SIGKILL.
    pub fn kill(&self, pid: u32) {
        self.signal(pid, "KILL");
    }

    /// Sends a signal to a process of the cluster, by its name without SIG.
    pub fn signal(&self, pid: u32, name: &str) {
        run(as_server_user("kill").args(["-s", name, &pid.to_string()]));
    }

    /// Sets how much memory a process of the cluster can have: a number of bytes, or `unlimited`.
    pub fn limit_memory(&self, pid: &str, bytes: &str) {
        run(as_server_user("prlimit").args(["--pid", pid, &format!("--as={bytes}:")]));
    }

    /// Lets a process have as much memory as it wants. It may have ended already.
    pub fn unlimit_memory_if_there(&self, pid: u32) {
        let _ = as_server_user("prlimit")
            .args(["--pid", &pid.to_string(), "--as=unlimited:"])
            .stderr(Stdio::null())
            .status();
    }

    /// Like [`Self::kill`], for a process that may have ended already.
    pub fn kill_if_there(&self, pid: u32) {
        let _ = as_server_user("kill")
            .args(["-9", &pid.to_string()])
            .stderr(Stdio::null())
            .status();
    }

    /// Removes the lock files of a server that was killed.
    /// A zombie or a new process may have its process ID, and would prevent the next start.
    pub fn clear_locks(&self) {
        run(as_server_user("bash")
            .args(["-c", "rm -f \"$1/postmaster.pid\" \"$2\"/.s.PGSQL.*", "_"])
            .arg(self.data())
            .arg(&self.socket));
    }

    /// Whether a process of this cluster is left. Its processes run in its data directory.
    pub fn is_running(&self) -> bool {
        let look = "for p in /proc/[0-9]*; do readlink $p/cwd; done 2>/dev/null";
        let output = as_server_user("bash")
            .args(["-c", look])
            .output()
            .expect("bash");
        let folders = String::from_utf8_lossy(&output.stdout).into_owned();
        folders
            .lines()
            .any(|folder| Path::new(folder) == self.data())
    }

    pub fn server(&self) -> Server {
        let mut config = tokio_postgres::Config::new();
        config.host_path(&self.socket).user("postgres");
        Server::new(config)
    }

    /// All lines of the server's log.
    pub fn log_lines(&self) -> Vec<String> {
        let text = self.read("../log").unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The end of the server's log, for messages.
    fn log_text(&self) -> String {
        let lines = self.log_lines();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    fn remove(&self) {
        run(as_server_user("rm")
            .arg("-rf")
            .arg(&self.dir)
            .arg(&self.socket));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- end of the log of {}:\n{}",
                self.dir.display(),
                self.log_text()
            );
        }
        if self.pid().is_some() {
            let _ = bin("pg_ctl")
                .args(["stop", "-w", "-s", "-m", "immediate", "-D"])
                .arg(self.data())
                .status();
        }
        let mut remove = as_server_user("rm");
        remove.arg("-rf").arg(&self.socket);
        // What a failed test has left may explain it. The next run removes it.
        if !std::thread::panicking() {
            remove.arg(&self.dir);
        }
        let _ = remove.status();
    }
}
