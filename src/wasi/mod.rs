//! The edge: WASI and the SDK on one side, [`crate::service`] on the other. Nothing here decides
//! anything about completions.

mod body;
mod init;
mod nn;
mod response;

use std::path::Path;
use std::sync::OnceLock;

use spin_sdk::http::Request;
use spin_sdk::http_service;
use spin_sdk::variables;
use spin_sdk::wasip3::clocks::system_clock;
use spin_sdk::wasip3::http::types::Response;
use spin_sdk::wasip3::random::random;
use spinfer_protocol::ApiError;

use crate::generation::BackendError;
use crate::http::{self, RouteError};
use crate::models::Library;
use crate::service::{self, Platform, Reply};

/// Where the host mounts what the component may know of its models.
const MODELS: &str = "/models";
/// The application variable that limits a request's body, and its value where none is set.
const BODY_LIMIT: (&str, usize) = ("max_body_bytes", 8 << 20);

#[http_service]
async fn handle(request: Request) -> Response {
    match answer(request).await {
        Ok(Reply::Json(json)) => response::json(200, &[], json),
        Ok(Reply::Stream(stream)) => {
            response::events(async |body| match stream.write(body).await {
                Ok(()) => {}
                Err(error) => log(&error),
            })
        }
        Err(refused) => {
            log(&refused.error);
            response::error(&refused.error, refused.allow)
        }
    }
}

async fn answer(request: Request) -> Result<Reply<nn::Context>, RouteError> {
    let (head, body) = request.into_parts();
    let endpoint = http::route(head.method.as_str(), head.uri.path())?;
    let body = match endpoint.takes_body() {
        true => body::read(&head.headers, body, body_limit().await?).await?,
        false => Vec::new(),
    };
    Ok(service::respond(endpoint, &body, &Wasi).await?)
}

async fn body_limit() -> Result<usize, ApiError> {
    let (name, default) = BODY_LIMIT;
    match variables::get(name).await {
        Ok(value) => value.trim().parse().map_err(|_| {
            ApiError::internal(format!("The variable {name} must be a number of bytes."))
        }),
        Err(variables::Error::Undefined(_)) => Ok(default),
        Err(error) => {
            Err(ApiError::internal(format!("The variable {name} can't be read: {error}.")))
        }
    }
}

/// One line on standard error for what is the server's fault; clients hear of their own.
fn log(error: &ApiError) {
    if error.status >= 500 {
        eprintln!("error: {}", error.message.replace('\n', " "));
    }
}

/// The platform that a host with WASI and wasi-nn is.
struct Wasi;

impl Platform for Wasi {
    type Context = nn::Context;

    fn library(&self) -> &'static Library {
        library()
    }

    fn open(&self, model: &str) -> Result<nn::Context, BackendError> {
        nn::Context::open(model)
    }

    fn random(&self) -> u64 {
        random::get_random_u64()
    }

    fn now(&self) -> u64 {
        u64::try_from(system_clock::now().seconds).unwrap_or(0)
    }
}

/// The models: from the snapshot that this instance was made of or, where there was none, read now.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::load(Path::new(MODELS)))
}
