//! The edge: WASI and the SDK on one side, [`crate::service`] on the other. Nothing here decides
//! anything about completions.

mod body;
mod init;
mod nn;
mod response;

use std::path::Path;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};
use spin_sdk::http::{HeaderMap, Request};
use spin_sdk::http_service;
use spin_sdk::variables;
use spin_sdk::wasip3::clocks::system_clock;
use spin_sdk::wasip3::http::types::Response;
use spin_sdk::wasip3::random::random;
use spinfer_protocol::{ApiError, ModelCard};

use crate::generation::BackendError;
use crate::http::{self, RouteError};
use crate::models::Library;
use crate::service::{self, Platform, Reply};
use crate::settings::Settings;

/// Where the host mounts what the component may know of its models.
const MODELS: &str = "/models";

#[http_service]
async fn handle(request: Request) -> Response {
    let origin = header(request.headers(), "origin");
    let settings = match settings().await {
        Ok(settings) => settings,
        Err(error) => return refuse(&error.into(), Vec::new()),
    };
    let origins = settings.origins();
    let asked = header(request.headers(), "access-control-request-headers");
    let headers = origins.answer_headers(origin.as_deref());
    match answer(request, &settings).await {
        Ok(Reply::Json(json)) => response::json(200, headers, json),
        Ok(Reply::Stream(stream)) => {
            response::events(headers, async |body| match stream.write(body).await {
                Ok(()) => {}
                Err(error) => log(&error),
            })
        }
        Ok(Reply::Options(allow)) => response::empty(
            204,
            origins.preflight_headers(origin.as_deref(), allow, asked.as_deref()),
        ),
        Err(refused) => refuse(&refused, headers),
    }
}

async fn answer(request: Request, settings: &Settings) -> Result<Reply<nn::Context>, RouteError> {
    let (head, body) = request.into_parts();
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    let key = header(&head.headers, "authorization");
    settings.api_keys.admit(head.method.as_str(), head.uri.path(), key.as_deref())?;
    let endpoint = http::route(head.method.as_str(), target)?;
    let body = match endpoint.takes_body() {
        true => body::read(&head.headers, body, settings.max_body_bytes).await?,
        false => Vec::new(),
    };
    Ok(service::respond(endpoint, &body, settings, &Wasi { key }).await?)
}

fn refuse(refused: &RouteError, mut headers: response::Headers) -> Response {
    let error = &refused.error;
    log(error);
    headers.extend(refused.allow.map(|allow| ("allow", allow.to_owned())));
    headers.extend((error.status == 401).then(|| ("www-authenticate", "Bearer".to_owned())));
    headers.extend(error.retry_after.map(|seconds| ("retry-after", seconds.to_string())));
    response::json(error.status, headers, error.to_json())
}

/// A header's value, if there is one, and one alone, that is text.
fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    Some(value.to_str().ok()?.to_owned())
}

/// The settings, from the application's variables. One that the application doesn't define has its
/// default.
async fn settings() -> Result<Settings, ApiError> {
    let mut settings = Settings::default();
    for name in Settings::NAMES {
        match variables::get(name).await {
            Ok(value) => settings.set(name, &value).map_err(ApiError::internal)?,
            Err(variables::Error::Undefined(_)) => {}
            Err(error) => {
                let message = format!("The variable {name} can't be read: {error}.");
                return Err(ApiError::internal(message));
            }
        }
    }
    Ok(settings)
}

/// One line on standard error for what is the server's fault; clients hear of their own.
fn log(error: &ApiError) {
    if error.status >= 500 {
        eprintln!("error: {}", error.message.replace('\n', " "));
    }
}

/// The platform that a host with WASI and wasi-nn is, for one request.
struct Wasi {
    /// The request's `authorization`.
    key: Option<String>,
}

impl Platform for Wasi {
    type Context = nn::Context;

    fn library(&self) -> &'static Library {
        library()
    }

    fn open(&self, model: &ModelCard) -> Result<nn::Context, BackendError> {
        nn::Context::open(model)
    }

    fn random(&self) -> u64 {
        random::get_random_u64()
    }

    fn now(&self) -> u64 {
        u64::try_from(system_clock::now().seconds).unwrap_or(0)
    }

    fn caller(&self) -> Vec<u8> {
        // The host need not know the key to tell it from others.
        self.key.as_ref().map_or_else(Vec::new, |key| Sha256::digest(key).to_vec())
    }

    fn log(&self, line: &str) {
        eprintln!("{line}");
    }
}

/// The models: from the snapshot that this instance was made of or, where there was none, read now.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::load(Path::new(MODELS)))
}
