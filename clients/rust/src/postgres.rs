//! The driver for tokio-postgres with the pool of deadpool.

use std::any::TypeId;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, Runtime};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, poll_fn};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::Host;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, NoTls, Socket, Transaction};

use crate::driver::{Driver, Executor, Query, Row, Session};
use crate::error::{Error, chain, told};

/// The driver for [`tokio_postgres`] with the pool of [`deadpool_postgres`].
///
/// The pool serves puts and transactional handlers. A worker opens four connections of its own beside it, with the
/// same parameters: one that waits, one for the heartbeat, and two for calls.
#[derive(Clone)]
pub struct TokioPostgres {
    pool: Pool,
    connector: Arc<dyn Connector>,
}

impl fmt::Debug for TokioPostgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioPostgres")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl TokioPostgres {
    /// A driver on a pool of the application, which stays yours, with the parameters that the pool connects with.
    pub fn new<T>(pool: Pool, config: Config, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + Sync,
        T::TlsConnect: Send + Sync,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        Self {
            pool,
            connector: Arc::new(WithTls {
                config: with_defaults(config),
                tls,
            }),
        }
    }

    /// A driver with a pool of its own, without TLS. Nothing connects before it is needed.
    pub fn connect(url: &str, size: usize) -> Result<Self, Error> {
        let config: Config = url
            .parse()
            .map_err(|e| Error::Config(format!("the connection string is wrong: {e}")))?;
        let config = with_defaults(config);
        let pool = Pool::builder(Manager::from_config(
            config.clone(),
            NoTls,
            ManagerConfig::default(),
        ))
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(Duration::from_secs(30)))
        .build()
        .map_err(|e| Error::Config(e.to_string()))?;
        Ok(Self::new(pool, config, NoTls))
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

/// Without these, a server that vanishes is noticed after hours. What the application sets counts more.
fn with_defaults(mut config: Config) -> Config {
    let plain = Config::new();
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(Duration::from_secs(10));
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(Duration::from_secs(20));
    }
    if config.get_keepalives_idle() == plain.get_keepalives_idle() {
        config.keepalives_idle(Duration::from_secs(10));
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(Duration::from_secs(5));
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(3);
    }
    if config.get_application_name().is_none() {
        config.application_name("fetchq");
    }
    config
}

trait Connector: Send + Sync {
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Session>, Error>>;
}

#[derive(Clone)]
struct WithTls<T> {
    config: Config,
    tls: T,
}

type Notices = Arc<Mutex<Vec<(String, String)>>>;

struct Own<T> {
    client: Client,
    config: Config,
    tls: T,
    notices: Notices,
    task: tokio::task::AbortHandle,
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        // Also where an answer is outstanding.
        self.task.abort();
    }
}

impl<T> Connector for WithTls<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Session>, Error>> {
        async move {
            // The limit of tokio-postgres covers the socket only, not the answers of the server.
            let connecting = tokio::time::timeout(
                Duration::from_secs(20),
                self.config.connect(self.tls.clone()),
            );
            let (client, mut connection) = match connecting.await {
                Ok(connected) => connected.map_err(read)?,
                Err(_) => {
                    return Err(Error::Connection(
                        "the server does not answer to a new connection".into(),
                    ));
                }
            };
            let notices = Notices::default();
            let collected = Arc::clone(&notices);
            let task = tokio::spawn(async move {
                while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                    if let AsyncMessage::Notice(notice) = message {
                        let one = (notice.code().code().to_owned(), notice.message().to_owned());
                        collected
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(one);
                    }
                }
            });
            let own = Own {
                client,
                config: self.config.clone(),
                tls: self.tls.clone(),
                notices,
                task: task.abort_handle(),
            };
            Ok(Box::new(own) as Box<dyn Session>)
        }
        .boxed()
    }
}

impl<T: Send + Sync> Executor for Own<T> {
    fn run<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<Row>, Error>> {
        self.client.run(query)
    }
}

impl<T> Session for Own<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn notices(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    fn cancel(&self) -> BoxFuture<'_, ()> {
        async move {
            let token = self.client.cancel_token();
            // A task goes on when nobody waits for it any more: see `Patient`.
            let request = if TypeId::of::<T>() == TypeId::of::<NoTls>() {
                tokio::spawn(cancel(token, self.config.clone()))
            } else {
                let tls = Patient(self.tls.clone());
                tokio::spawn(async move { token.cancel_query(tls).await.is_ok() })
            };
            let requested = tokio::time::timeout(Duration::from_secs(5), request).await;
            if !matches!(requested, Ok(Ok(true))) {
                // Such as behind a pooler that has no connection left for a request to cancel.
                self.task.abort();
            }
        }
        .boxed()
    }
}

/// Sends a request to cancel without TLS, to each host: those that do not know the session ignore it.
async fn cancel(token: CancelToken, config: Config) -> bool {
    let (hosts, addresses, ports) = (
        config.get_hosts(),
        config.get_hostaddrs(),
        config.get_ports(),
    );
    let mut was_sent = false;
    for at in 0..hosts.len().max(addresses.len()) {
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let name = match (addresses.get(at), hosts.get(at)) {
            (Some(address), _) => address.to_string(),
            (None, Some(Host::Tcp(name))) => name.clone(),
            #[cfg(unix)]
            (None, Some(Host::Unix(folder))) => {
                let path = folder.join(format!(".s.PGSQL.{port}"));
                if let Ok(stream) = tokio::net::UnixStream::connect(path).await {
                    let sent = token.cancel_query_raw(Patient(stream), NoTls).await;
                    was_sent |= sent.is_ok();
                }
                continue;
            }
            (None, None) => continue,
        };
        if let Ok(stream) = tokio::net::TcpStream::connect((name, port)).await {
            let sent = token.cancel_query_raw(Patient(stream), NoTls).await;
            was_sent |= sent.is_ok();
        }
    }
    was_sent
}

/// A connection for a request to cancel, which is open until the other side closes it. PgBouncer 1.18 ends
/// with "bad client state" where a program hangs up before its request has been passed on, as `cancel_query` does.
struct Patient<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut rest = [0; 64];
        loop {
            let mut rest = ReadBuf::new(&mut rest);
            let read = ready!(Pin::new(&mut self.0).poll_read(cx, &mut rest));
            if read.is_err() || rest.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: TlsStream + Unpin> TlsStream for Patient<S> {
    fn channel_binding(&self) -> ChannelBinding {
        self.0.channel_binding()
    }
}

impl<T> MakeTlsConnect<Socket> for Patient<T>
where
    T: MakeTlsConnect<Socket>,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send + 'static,
    T::Stream: 'static,
    <T::TlsConnect as TlsConnect<Socket>>::Error: 'static,
{
    type Stream = Patient<T::Stream>;
    type TlsConnect = Patient<T::TlsConnect>;
    type Error = T::Error;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Self::TlsConnect, Self::Error> {
        self.0.make_tls_connect(domain).map(Patient)
    }
}

impl<C> TlsConnect<Socket> for Patient<C>
where
    C: TlsConnect<Socket>,
    C::Future: Send + 'static,
    C::Stream: 'static,
    C::Error: 'static,
{
    type Stream = Patient<C::Stream>;
    type Error = C::Error;
    type Future = BoxFuture<'static, Result<Self::Stream, Self::Error>>;

    fn connect(self, stream: Socket) -> Self::Future {
        let connecting = self.0.connect(stream);
        async move { connecting.await.map(Patient) }.boxed()
    }
}

/// Reads a result by the types of its columns.
fn row(row: &tokio_postgres::Row) -> Result<Row, Error> {
    let read = |index: usize, kind: &Type| {
        Ok::<Value, tokio_postgres::Error>(match *kind {
            Type::BOOL => row.try_get::<_, Option<bool>>(index)?.into(),
            Type::INT2 => row.try_get::<_, Option<i16>>(index)?.into(),
            Type::INT4 => row.try_get::<_, Option<i32>>(index)?.into(),
            Type::INT8 => row.try_get::<_, Option<i64>>(index)?.into(),
            Type::FLOAT8 => row.try_get::<_, Option<f64>>(index)?.into(),
            Type::JSONB | Type::JSON => row.try_get::<_, Option<Value>>(index)?.into(),
            Type::INT8_ARRAY => row.try_get::<_, Option<Vec<i64>>>(index)?.into(),
            Type::TEXT_ARRAY => row.try_get::<_, Option<Vec<String>>>(index)?.into(),
            _ => row.try_get::<_, Option<String>>(index)?.into(),
        })
    };
    let columns = row.columns().iter().enumerate();
    columns
        .map(|(index, column)| read(index, column.type_()).map_err(read_error))
        .collect()
}

fn read_error(error: tokio_postgres::Error) -> Error {
    Error::Invalid(format!(
        "the server has answered what this client does not read: {error}"
    ))
}

/// What an error of the driver is.
fn read(error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(db) => Error::Server {
            code: db.code().code().to_owned(),
            message: db.message().to_owned(),
            routine: db.routine().map(str::to_owned),
        },
        None => Error::Connection(told(&error)),
    }
}

macro_rules! executor {
    ($($kind:ty => $target:ty),+ $(,)?) => {$(
        impl Executor for $kind {
            fn run<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<Row>, Error>> {
                async move {
                    let on: &$target = self;
                    let values = query.values.iter().map(|value| (value as &(dyn ToSql + Sync), Type::TEXT));
                    let values: Vec<_> = values.collect();
                    let rows = on.query_typed(query.text, &values).await.map_err(read)?;
                    rows.iter().map(row).collect()
                }
                .boxed()
            }
        }
    )+};
}

executor! {
    Client => Client,
    Transaction<'_> => Transaction<'_>,
    deadpool_postgres::Transaction<'_> => Transaction<'_>,
    Object => Client,
}

/// A connection that the pool has lent. It is a [`tokio_postgres::Client`].
#[derive(Debug)]
pub struct Lent(Object);

impl Deref for Lent {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl Driver for TokioPostgres {
    type Conn = Client;
    type Lent = Lent;

    fn lend(&self) -> BoxFuture<'_, Result<Lent, Error>> {
        async move {
            match self.pool.get().await {
                Ok(object) => Ok(Lent(object)),
                Err(PoolError::Backend(error)) => Err(read(error)),
                Err(error) => Err(Error::Connection(error.to_string())),
            }
        }
        .boxed()
    }

    fn control<'a>(
        &'a self,
        lent: &'a Lent,
        statement: &'static str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        async move { lent.batch_execute(statement).await.map_err(read) }.boxed()
    }

    fn discard(&self, lent: Lent) {
        drop(Object::take(lent.0));
    }

    fn is_closed(&self, lent: &Lent) -> bool {
        lent.0.is_closed()
    }

    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Session>, Error>> {
        self.connector.connect()
    }

    fn largest(&self) -> usize {
        self.pool.status().max_size
    }

    fn error(&self, error: &(dyn std::error::Error + 'static)) -> Option<Error> {
        chain(error).find_map(|one| {
            if let Some(own) = one.downcast_ref::<Error>() {
                return matches!(own, Error::Server { .. } | Error::Connection(_))
                    .then(|| own.clone());
            }
            if one.is::<PoolError>() {
                return Some(Error::Connection(one.to_string()));
            }
            let own = one.downcast_ref::<tokio_postgres::Error>()?;
            Some(match own.as_db_error() {
                Some(db) => Error::Server {
                    code: db.code().code().to_owned(),
                    message: db.message().to_owned(),
                    routine: db.routine().map(str::to_owned),
                },
                // Only a connection that has gone: a wrong type of a parameter is a fault of the handler.
                None if own.is_closed() => Error::Connection(own.to_string()),
                None => {
                    let io = chain(own).any(|cause| cause.is::<std::io::Error>());
                    if io {
                        Error::Connection(own.to_string())
                    } else {
                        Error::Invalid(own.to_string())
                    }
                }
            })
        })
    }
}
