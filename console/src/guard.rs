//! What each request has to pass before its page, and what each answer has.
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::security::{Ends, FLASH, Refusal, SESSION, Session};
use crate::state::App;
use crate::web::plain::{plain, too_many};

/// What browsers may load: what this process serves, and no script or style inside a page.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The largest form in bytes.
const MAX_FORM: usize = 2 << 20;

/// A form has to arrive within this time.
const FORM_TIMEOUT: Duration = Duration::from_secs(20);

/// Checks each request, and adds the headers to each answer.
pub async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    protect(match admit(&app, request).await {
        Ok((request, session, is_new)) => {
            let mut response = next.run(request).await;
            set_cookies(&mut response, &session, is_new);
            response
        }
        Err(refused) => *refused,
    })
}

/// The request of a session, and whether the session is new; or the answer that refuses it.
async fn admit(app: &App, request: Request) -> Result<(Request, Session, bool), Box<Response>> {
    let security = &app.security;
    let headers = request.headers();
    let Some(ends) = request.extensions().get::<Ends>().copied() else {
        let text = "The ends of this connection are not known.";
        return refuse(StatusCode::INTERNAL_SERVER_ERROR, "No connection", text);
    };
    if !security.is_host(headers, ends) {
        let text = "This name of the console is not known. Start it with --origin and the address that browsers use.";
        return refuse(StatusCode::MISDIRECTED_REQUEST, "Unknown host", text);
    }
    let user = security.user(headers, ends).await.map_err(not_logged_in)?;
    let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_reading && !security.is_same_origin(headers) {
        let text = "This request does not come from a page of the console. Behind a proxy it needs --origin and the \
                    address that browsers use, with http or https as they do.";
        return refuse(StatusCode::FORBIDDEN, "Another site", text);
    }
    let Some((session, is_new)) = security.session(headers, user, ends) else {
        let text = "The system gives no random numbers.";
        return refuse(StatusCode::INTERNAL_SERVER_ERROR, "No session", text);
    };
    let mut request = if is_reading {
        request
    } else {
        receive(request).await?
    };
    request.extensions_mut().insert(session.clone());
    Ok((request, session, is_new))
}

fn refuse<T>(status: StatusCode, title: &str, text: &str) -> Result<T, Box<Response>> {
    Err(Box::new(plain(status, title, text)))
}

fn not_logged_in(refusal: Refusal) -> Box<Response> {
    const TITLE: &str = "Not logged in";
    Box::new(match refusal {
        Refusal::NoHeader => {
            let text = "The proxy in front of the console has to say who you are, and this request does not.";
            plain(StatusCode::FORBIDDEN, TITLE, text)
        }
        Refusal::NoPassword => {
            let text = "A name and a password are needed.";
            let mut response = plain(StatusCode::UNAUTHORIZED, TITLE, text);
            let challenge = HeaderValue::from_static("Basic realm=\"fetchq\", charset=\"UTF-8\"");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, challenge);
            response
        }
        Refusal::TooMany(pause) => {
            let text = "Too many wrong passwords came from your address.";
            too_many("Too many attempts", text, pause)
        }
    })
}

/// Reads the form of a request. A client that sends it slowly, or never, keeps no connection.
async fn receive(request: Request) -> Result<Request, Box<Response>> {
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(FORM_TIMEOUT, to_bytes(body, MAX_FORM)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Ok(Err(_)) => {
            let text = "The form is larger than 2 MB, or was cut off.";
            refuse(StatusCode::PAYLOAD_TOO_LARGE, "Not a form", text)
        }
        Err(_) => {
            let text = "The form did not arrive in time.";
            refuse(StatusCode::REQUEST_TIMEOUT, "Too slow", text)
        }
    }
}

/// Adds the cookies to the answer that is a page.
fn set_cookies(response: &mut Response, session: &Session, is_new: bool) {
    let kind = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if !kind.starts_with("text/html") {
        return;
    }
    if is_new {
        let id = &session.id;
        set_cookie(
            response,
            &format!("{SESSION}={id}; Path=/; HttpOnly; SameSite=Strict"),
        );
    }
    if session.flash.is_some() {
        set_cookie(
            response,
            &format!("{FLASH}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"),
        );
    }
}

fn set_cookie(response: &mut Response, cookie: &str) {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

/// Adds the headers that every answer has.
fn protect(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::X_FRAME_OPTIONS, "DENY");
    set(header::REFERRER_POLICY, "same-origin");
    set(
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    );
    set(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    set(
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=()",
    );
    // Files that never change say so themselves. Pages show documents, which no cache should keep.
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}
