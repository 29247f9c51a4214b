//! What happens to a request before and after its instance: its id, the gate, the route, and the
//! host's own answers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::channel::oneshot;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prometheus::{Encoder, TextEncoder};
use spinfer_protocol::{ApiError, ErrorKind};
use tokio::sync::Semaphore;
use wasmtime_wasi_http::Error as WasiHttpError;

use super::access::{self, Access};
use super::body::{AnswerBody, InstanceBody, KEEP_ALIVE, full};
use super::drain::Drained;
use super::in_flight::{InFlight, Log, Place};
use super::metrics::HttpMetrics;
use super::patience::Hurried;
use super::spin_headers;
use super::worker::Served;
use crate::app::App;

/// Where a client finds the id of its request, and may give its own.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Where the host shows what it counts.
const METRICS: &str = "/metrics";

/// Where the host says that it is ready, as Spin does.
const HEALTH: &str = "/.well-known/spin/health";

/// The methods that `/metrics` takes.
const METRICS_METHODS: &str = "GET, HEAD";

/// The longest id that is taken from a client, in characters.
const LONGEST_REQUEST_ID: usize = 128;

/// Answers requests.
pub struct Service {
    app: Arc<App>,
    access: Access,
    /// The application's components by id; none while models load.
    components: RwLock<Option<Components>>,
    /// Requests at a time.
    gate: Arc<Semaphore>,
    most_in_flight: u32,
    /// With clients that take too long.
    patience: Duration,
    /// Whether clients come by TLS.
    tls: bool,
    registry: prometheus::Registry,
    metrics: HttpMetrics,
}

type Answer = http::Response<AnswerBody>;

/// Components by their ids.
type Components = Arc<BTreeMap<String, Arc<Served>>>;

impl Service {
    /// A service that is not ready yet.
    ///
    /// # Errors
    ///
    /// When the registry has its metrics already.
    pub fn new(
        app: Arc<App>,
        access: Access,
        most_in_flight: u32,
        patience: Duration,
        tls: bool,
        registry: prometheus::Registry,
    ) -> Result<Self, prometheus::Error> {
        let metrics = HttpMetrics::register(&registry)?;
        Ok(Self {
            app,
            access,
            components: RwLock::default(),
            gate: Arc::new(Semaphore::new(most_in_flight as usize)),
            most_in_flight,
            patience,
            tls,
            registry,
            metrics,
        })
    }

    /// From now on, these components answer. Requests in flight end with those that they began with.
    pub fn serve(&self, components: BTreeMap<String, Arc<Served>>) {
        let mut current = self.components.write().unwrap_or_else(PoisonError::into_inner);
        *current = Some(Arc::new(components));
    }

    fn components(&self) -> Option<Components> {
        self.components.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Answers one request. What goes wrong becomes an answer.
    pub async fn handle(
        self: Arc<Self>,
        request: http::Request<Incoming>,
        client: SocketAddr,
    ) -> Result<Answer, Infallible> {
        let id = request_id(request.headers());
        let log = Log::new(&request, id.clone(), client, self.metrics.clone());
        let origin = access::origin(request.headers());
        let found = self.app.route(request.uri().path());
        let component = found.as_ref().map(|found| found.route.component.as_str());
        let headers = found.map(|found| spin_headers::of(&request, &found, client, self.tls));
        let mut request = request.map(Drained::new);
        spin_headers::put(request.headers_mut(), headers.unwrap_or_default());
        let mut answer = match self.dispatch(request, component, log.clone()).await {
            Ok(answer) => answer,
            Err(error) => {
                log.line(error.status, 0, None);
                let mut answer = error_answer(&error);
                answer.headers_mut().extend(self.access.headers(component, origin.as_deref()));
                answer
            }
        };
        if let Ok(value) = HeaderValue::from_str(&id) {
            answer.headers_mut().insert(REQUEST_ID, value);
        }
        Ok(answer)
    }

    async fn dispatch(
        &self,
        request: http::Request<Drained<Incoming>>,
        component: Option<&str>,
        log: Log,
    ) -> Result<Answer, ApiError> {
        self.access.check_host(&request)?;
        let path = request.uri().path();
        if path != HEALTH {
            // The metrics are no component's.
            self.access.check_key(component.filter(|_| path != METRICS), &request)?;
        }
        if path == METRICS {
            if ![Method::GET, Method::HEAD].contains(request.method()) {
                let method = request.method().as_str();
                return Err(ApiError::method_not_allowed(method, path, METRICS_METHODS));
            }
            let answer = self.show_metrics()?;
            log.line(200, 0, None);
            return Ok(answer);
        }
        let components = self.components().ok_or_else(|| ApiError {
            retry_after: Some(1),
            ..ApiError::new(
                503,
                ErrorKind::ServerError,
                "The models and components are still being prepared.",
            )
        })?;
        if path == HEALTH {
            log.line(200, 0, None);
            return Ok(http::Response::new(full("OK")));
        }
        let component = component
            .and_then(|id| components.get(id))
            .ok_or_else(|| ApiError::unknown_path(request.method().as_str(), path))?
            .clone();
        let permit = self.admit(request.method())?;
        run(component, request, log, permit, self.patience).await
    }

    /// Only what may cost a computation passes the gate: probes and preflights always get through.
    fn admit(&self, method: &Method) -> Result<Place, ApiError> {
        if method != Method::POST {
            return Ok(None);
        }
        self.gate.clone().try_acquire_owned().map(Some).map_err(|_| {
            let most = self.most_in_flight;
            ApiError::rate_limited(format!("The server is full: {most} requests are in flight."), 1)
        })
    }

    fn show_metrics(&self) -> Result<Answer, ApiError> {
        let free = self.gate.available_permits() as i64;
        self.metrics.in_flight.set(i64::from(self.most_in_flight) - free);
        let mut text = Vec::new();
        let encoder = TextEncoder::new();
        encoder.encode(&self.registry.gather(), &mut text).map_err(|error| {
            ApiError::internal(format!("The metrics can't be written: {error}."))
        })?;
        let mut answer = http::Response::new(full(text));
        if let Ok(value) = HeaderValue::from_str(encoder.format_type()) {
            answer.headers_mut().insert(CONTENT_TYPE, value);
        }
        Ok(answer)
    }
}

/// Lets a fresh instance answer.
async fn run(
    component: Arc<Served>,
    request: http::Request<Drained<Incoming>>,
    log: Log,
    permit: Place,
    patience: Duration,
) -> Result<Answer, ApiError> {
    let id = log.id.clone();
    let mut in_flight = InFlight::new(log.clone(), permit);
    let request = request
        .map(|body| Hurried::new(body.map_err(WasiHttpError::Hyper), patience).boxed_unsync());
    let (sender, mut answer) = oneshot::channel();
    let mut life = component.answer(request, log.id, log.timings, sender);
    let answer = tokio::select! {
        biased;
        answer = &mut answer => answer.ok(),
        // It may have answered in the same breath.
        _ = &mut life => answer.try_recv().ok().flatten(),
    };
    match answer {
        Some(Ok(answer)) => {
            in_flight.note_head(&answer);
            let keep_alive = is_event_stream(answer.headers()).then_some(KEEP_ALIVE);
            let wrap = |body| {
                InstanceBody::new(body, life, in_flight, keep_alive, patience).boxed_unsync()
            };
            Ok(answer.map(wrap))
        }
        Some(Err(error)) => {
            tracing::error!(request = %id, "the component failed: {error:#}");
            in_flight.forget();
            Err(ApiError::internal("The component failed."))
        }
        None => {
            in_flight.forget();
            Err(ApiError::internal("The component ended without an answer."))
        }
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("text/event-stream"))
}

/// The client's id if it is short and printable, or a new one.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    match given {
        Some(id)
            if (1..=LONGEST_REQUEST_ID).contains(&id.len())
                && id.bytes().all(|byte| byte.is_ascii_graphic()) =>
        {
            id.into()
        }
        _ => format!("req-{:032x}", rand::random::<u128>()).into(),
    }
}

/// The answer of an error that the host itself makes.
fn error_answer(error: &ApiError) -> Answer {
    let mut answer = http::Response::new(full(error.to_json()));
    *answer.status_mut() =
        StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = error.retry_after {
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    if error.status == 401 {
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if error.status == 405 {
        // The host has one path of its own that refuses methods.
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(METRICS_METHODS));
    }
    answer
}
