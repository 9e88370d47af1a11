//! Accepts connections, within limits. `axum::serve` has none: a client that sends half a header would
//! keep its connection for ever.
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use crate::limits::{Place, Places, network};
use crate::security::Ends;

/// How many connections there can be, and how long they may be silent.
#[derive(Debug)]
pub struct Limits {
    /// At a time.
    pub all: usize,
    /// At a time, of one address.
    pub each: usize,
    pub header_timeout: Duration,
}

/// The most memory for the header of a request in bytes.
const MAX_HEADER: usize = 64 << 10;

/// The pause after the system has refused to accept a connection, such as for lack of descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// Refused connections are reported once in this time at most.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// What a client gets for which there is no place.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\n\
    Content-Type: text/plain\r\nContent-Length: 26\r\n\r\nToo many connections open.";

/// The places of a connection. They are free again when it is closed.
struct Taken {
    _all: Place<()>,
    _each: Place<IpAddr>,
}

/// Serves all connections until `stop`. Returns those that are open then.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: &Limits,
    stop: impl Future<Output = ()>,
) -> GracefulShutdown {
    let (all, each) = (Places::new(limits.all), Places::new(limits.each));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(MAX_HEADER);
    let open = GracefulShutdown::new();
    let mut reported: Option<Instant> = None;
    let mut stop = std::pin::pin!(stop);
    loop {
        let (stream, remote) = tokio::select! {
            () = &mut stop => return open,
            accepted = accept(&listener) => accepted,
        };
        let places = take(&all, &each, remote);
        let (Some(places), Ok(local)) = (places, stream.local_addr()) else {
            if reported.is_none_or(|at| at.elapsed() > REPORT_EVERY) {
                warn!("too many connections: one of {} is refused", remote.ip());
                reported = Some(Instant::now());
            }
            // It need not arrive.
            let _ = stream.try_write(BUSY);
            continue;
        };
        let ends = Ends {
            remote: remote.ip(),
            local,
        };
        let router = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(ends);
            router.call(request)
        });
        // Events are small, and are sent one by one.
        let _ = stream.set_nodelay(true);
        let served = open.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            let _places = places;
            if let Err(error) = served.await {
                debug!("a connection of {}: {error}", ends.remote);
            }
        });
    }
}

fn take(all: &Arc<Places<()>>, each: &Arc<Places<IpAddr>>, remote: SocketAddr) -> Option<Taken> {
    Some(Taken {
        _all: all.take(())?,
        _each: each.take(network(remote.ip()))?,
    })
}

/// The next connection.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // The client has gone away again.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused
                        | ErrorKind::ConnectionAborted
                        | ErrorKind::ConnectionReset
                ) => {}
            Err(error) => {
                warn!("no connection can be accepted: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// No test takes longer.
    const DEADLINE: Duration = Duration::from_secs(60);

    async fn start(all: usize, each: usize, timeout: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let router = Router::new()
            .route("/", get(|| async { "ok" }))
            .route("/events", get(events));
        let limits = Limits {
            all,
            each,
            header_timeout: timeout,
        };
        tokio::spawn(async move {
            serve(listener, router, &limits, std::future::pending()).await;
        });
        address
    }

    /// An answer that takes a second and a half.
    async fn events() -> axum::body::Body {
        axum::body::Body::from_stream(futures_util::stream::unfold(0, |n| async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            (n < 3).then_some((Ok::<_, std::io::Error>(format!("event {n}\n")), n + 1))
        }))
    }

    /// What the server sends until it closes the connection.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut bytes));
        // A connection that is refused can be reset.
        let _ = read.await.expect("the server closes the connection");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A connection that has its place: it was answered once.
    async fn connect(address: SocketAddr) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let _ = stream.write_all(request).await;
        let mut first = [0; 12];
        let read = tokio::time::timeout(DEADLINE, stream.read_exact(&mut first));
        match read.await.expect("an answer") {
            Ok(_) if first.ends_with(b"200") => Some(stream),
            _ => None,
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn half_a_header_and_silence_keep_no_connection() {
        let address = start(10, 10, Duration::from_millis(300)).await;
        for text in [
            "GET / HTTP/1.1\r\nHost: local",
            "",
            "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ] {
            let mut stream = TcpStream::connect(address).await.expect("a connection");
            stream.write_all(text.as_bytes()).await.expect("a request");
            let said = rest(&mut stream).await;
            assert_eq!(
                said.contains("200 OK"),
                text.ends_with("\r\n\r\n"),
                "{said}"
            );
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_page_that_listens_to_events_is_not_cut_off() {
        let address = start(10, 10, Duration::from_millis(300)).await;
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let request = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).await.expect("a request");
        let said = rest(&mut stream).await;
        assert!(said.contains("event 2"), "{said}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_address_has_its_connections_and_gets_another_one_when_one_is_closed() {
        let address = start(10, 3, DEADLINE).await;
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(connect(address).await.expect("a place"));
        }
        assert!(connect(address).await.is_none(), "a fourth connection");
        held.pop();
        let began = Instant::now();
        while connect(address).await.is_none() {
            assert!(began.elapsed() < DEADLINE, "the place stays taken");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn all_connections_together_have_a_limit() {
        let address = start(2, 10, DEADLINE).await;
        let held = (connect(address).await, connect(address).await);
        assert!(held.0.is_some() && held.1.is_some());
        let mut refused = TcpStream::connect(address).await.expect("a connection");
        let said = rest(&mut refused).await;
        assert!(
            said.starts_with("HTTP/1.1 503 ") && said.contains("Retry-After: 5"),
            "{said}"
        );
    }

    #[test]
    fn the_answer_to_a_connection_without_a_place_has_the_length_that_it_says() {
        let text = String::from_utf8_lossy(BUSY);
        let (head, body) = text.split_once("\r\n\r\n").expect("a body");
        assert!(
            head.ends_with(&format!("Content-Length: {}", body.len())),
            "{text}"
        );
    }
}
