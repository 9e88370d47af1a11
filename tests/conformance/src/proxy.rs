//! A TCP proxy between a client and its server, which cuts, stops and reads what goes through it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Through,
    /// Nothing passes in either direction, and nothing is lost: a network that is down.
    Frozen,
    /// What the client sends arrives, and no answer comes back.
    Mute,
    /// Both ends are closed.
    Cut,
    /// The client sees the end of the stream, and its own half stays open.
    HalfClosed,
}

/// A statement that a client has sent.
#[derive(Clone, Debug)]
pub struct Statement {
    pub text: String,
    /// It was prepared under a name.
    pub is_named: bool,
}

pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
    listener: tokio::task::JoinHandle<()>,
}

struct Shared {
    server: SocketAddr,
    connections: Mutex<BTreeMap<u64, watch::Sender<Way>>>,
    /// For new connections: `Cut` refuses them.
    first: Mutex<Way>,
    opened: AtomicUsize,
    /// Each part of an answer waits for this many milliseconds.
    delay: AtomicU64,
    /// A connection on which the client sends this becomes mute, before it is passed on.
    needle: Mutex<Option<Needle>>,
    statements: Mutex<Vec<Statement>>,
    /// How many statements clients have run, also those that they had prepared.
    calls: AtomicUsize,
}

struct Needle {
    bytes: Vec<u8>,
    hits: usize,
}

impl Proxy {
    /// Starts it, in front of a port of this machine.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let port = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Shared {
            server: SocketAddr::from(([127, 0, 0, 1], server)),
            connections: Mutex::default(),
            first: Mutex::new(Way::Through),
            opened: AtomicUsize::new(0),
            delay: AtomicU64::new(0),
            needle: Mutex::new(None),
            statements: Mutex::default(),
            calls: AtomicUsize::new(0),
        });
        let listener = tokio::spawn(accept(listener, shared.clone()));
        Self {
            port,
            shared,
            listener,
        }
    }

    /// How many connections clients have tried to open.
    pub fn opened(&self) -> usize {
        self.shared.opened.load(Ordering::Relaxed)
    }

    /// What happens to all connections from now on, those of now and later ones.
    pub fn all(&self, way: Way) {
        self.later(way);
        self.now(way);
    }

    /// What happens to the connections that there are.
    pub fn now(&self, way: Way) {
        for connection in self.shared.connections.lock().unwrap().values() {
            // One that has ended receives nothing.
            let _ = connection.send(way);
        }
    }

    /// What happens to connections that will be opened.
    pub fn later(&self, way: Way) {
        *self.shared.first.lock().unwrap() = way;
    }

    /// Cuts the n-th of the connections that there are, counted round.
    pub fn cut_one(&self, n: usize) {
        let connections = self.shared.connections.lock().unwrap();
        if let Some(one) = connections.values().nth(n % connections.len().max(1)) {
            let _ = one.send(Way::Cut);
        }
    }

    pub fn delay(&self, answers: Duration) {
        let millis = u64::try_from(answers.as_millis()).unwrap_or(u64::MAX);
        self.shared.delay.store(millis, Ordering::Relaxed);
    }

    /// From now on, the connection on which a client sends these bytes gets no answer to them. Letters of
    /// both cases are alike.
    pub fn drop_answer_to(&self, bytes: &str) {
        *self.shared.needle.lock().unwrap() = Some(Needle {
            bytes: bytes.to_lowercase().into_bytes(),
            hits: 0,
        });
    }

    /// Whether that has happened.
    pub fn has_dropped(&self) -> bool {
        let needle = self.shared.needle.lock().unwrap();
        needle.as_ref().is_some_and(|needle| needle.hits > 0)
    }

    /// Ends it, and closes the connections that are mute.
    pub fn answer_again(&self) {
        *self.shared.needle.lock().unwrap() = None;
        for connection in self.shared.connections.lock().unwrap().values() {
            if *connection.borrow() == Way::Mute {
                let _ = connection.send(Way::Cut);
            }
        }
    }

    /// How many statements clients have run.
    pub fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::Relaxed)
    }

    /// The statements that clients have sent.
    pub fn statements(&self) -> Vec<Statement> {
        self.shared.statements.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
        self.now(Way::Cut);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            return;
        };
        let number = shared.opened.fetch_add(1, Ordering::Relaxed) as u64;
        let first = *shared.first.lock().unwrap();
        if first == Way::Cut {
            continue;
        }
        let (sender, way) = watch::channel(first);
        shared.connections.lock().unwrap().insert(number, sender);
        let shared = shared.clone();
        tokio::spawn(async move {
            serve(client, number, way, &shared).await;
            shared.connections.lock().unwrap().remove(&number);
        });
    }
}

async fn serve(
    client: TcpStream,
    number: u64,
    mut way: watch::Receiver<Way>,
    shared: &Arc<Shared>,
) {
    if !passes(&mut way, false).await {
        return;
    }
    let Ok(server) = TcpStream::connect(shared.server).await else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let up = up(from_client, to_server, number, way.clone(), shared);
    let down = down(from_server, to_client, way.clone(), shared);
    tokio::pin!(up, down);
    tokio::select! {
        () = &mut up => {}
        // The server may still read what the client has sent before it ended.
        () = &mut down => {}
        () = cut(&mut way) => {}
    }
}

async fn cut(way: &mut watch::Receiver<Way>) {
    // The sender is gone when the proxy is.
    let _ = way.wait_for(|way| *way == Way::Cut).await;
}

/// Waits until a connection is half closed; false when the proxy has ended.
async fn is_half_closed(way: &mut watch::Receiver<Way>) -> bool {
    way.wait_for(|way| *way == Way::HalfClosed).await.is_ok()
}

/// Waits while a connection is frozen, and also while it is mute if `waits_mute`; false when it is cut.
async fn passes(way: &mut watch::Receiver<Way>, waits_mute: bool) -> bool {
    let stands = |way: &Way| *way == Way::Frozen || (waits_mute && *way == Way::Mute);
    match way.wait_for(|way| !stands(way)).await {
        Ok(way) => *way != Way::Cut,
        Err(_) => false,
    }
}

async fn up(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: u64,
    mut way: watch::Receiver<Way>,
    shared: &Arc<Shared>,
) {
    let mut buffer = vec![0; 65_536];
    let mut reader = Reader::default();
    let mut tail = Vec::new();
    loop {
        let Ok(n) = from.read(&mut buffer).await else {
            return;
        };
        if n == 0 || !passes(&mut way, false).await {
            return;
        }
        if *way.borrow() == Way::HalfClosed {
            continue;
        }
        let part = &buffer[..n];
        let calls = reader.read(part, &mut |statement| {
            shared.statements.lock().unwrap().push(statement);
        });
        shared.calls.fetch_add(calls, Ordering::Relaxed);
        tail.extend(part.iter().map(u8::to_ascii_lowercase));
        if let Some(needle) = &mut *shared.needle.lock().unwrap()
            && tail
                .windows(needle.bytes.len())
                .any(|at| at == needle.bytes)
        {
            needle.hits += 1;
            tail.clear();
            if let Some(connection) = shared.connections.lock().unwrap().get(&number) {
                let _ = connection.send(Way::Mute);
            }
        }
        let kept = tail.len().saturating_sub(256);
        tail.drain(..kept);
        if to.write_all(part).await.is_err() {
            return;
        }
    }
}

async fn down(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut way: watch::Receiver<Way>,
    shared: &Arc<Shared>,
) {
    let mut buffer = vec![0; 65_536];
    loop {
        let n = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            is_half = is_half_closed(&mut way) => {
                if is_half {
                    let _ = to.shutdown().await;
                    std::future::pending::<()>().await;
                }
                return;
            }
        };
        if n == 0 {
            // An end of the stream would be an answer.
            passes(&mut way, true).await;
            return;
        }
        if !passes(&mut way, false).await {
            return;
        }
        let delay = shared.delay.load(Ordering::Relaxed);
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        if *way.borrow() == Way::Mute {
            continue;
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

/// Reads the messages of a client: https://www.postgresql.org/docs/current/protocol-message-formats.html
#[derive(Default)]
struct Reader {
    bytes: Vec<u8>,
    has_started: bool,
}

impl Reader {
    /// Returns how many statements are run.
    fn read(&mut self, part: &[u8], found: &mut dyn FnMut(Statement)) -> usize {
        self.bytes.extend_from_slice(part);
        let mut calls = 0;
        loop {
            // Startup messages have no type.
            let skip = usize::from(self.has_started);
            let Some(length) = self.bytes.get(skip..skip + 4) else {
                return calls;
            };
            let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            if length < 4 || self.bytes.len() < skip + length {
                return calls;
            }
            let message: Vec<u8> = self.bytes.drain(..skip + length).collect();
            let body = &message[skip + 4..];
            if !self.has_started {
                // SSLRequest, GSSENCRequest and CancelRequest have codes of 1234 in the upper half.
                self.has_started = !body.starts_with(&1234_u16.to_be_bytes());
                continue;
            }
            let mut texts = body.split(|byte| *byte == 0);
            let mut text =
                || String::from_utf8_lossy(texts.next().unwrap_or_default()).into_owned();
            calls += usize::from(matches!(message[0], b'Q' | b'E'));
            match message[0] {
                b'Q' => found(Statement {
                    text: text(),
                    is_named: false,
                }),
                b'P' => {
                    let is_named = !text().is_empty();
                    found(Statement {
                        text: text(),
                        is_named,
                    });
                }
                _ => {}
            }
        }
    }
}
