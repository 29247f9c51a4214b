//! Reading a request's body.

use http_body_util::BodyExt;
use spin_sdk::http::{HeaderMap, Request};
use spinfer_protocol::ApiError;

use crate::http::Body;

/// The body as the SDK hands it over.
type Incoming = <Request as IntoBody>::Body;

/// Names the type of a request's body.
pub trait IntoBody {
    /// The body.
    type Body;
}

impl<B> IntoBody for spin_sdk::wasip3::http_compat::Request<B> {
    type Body = B;
}

/// Reads all of it, or up to where it can't be taken.
pub async fn read(
    headers: &HeaderMap,
    mut incoming: Incoming,
    limit: usize,
) -> Result<Vec<u8>, ApiError> {
    let header =
        |name: &str| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let length = header("content-length").and_then(|length| length.parse().ok());
    let mut body = Body::new(limit, header("content-type").as_deref(), length)?;
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|_| {
            // The host's word for it is for programs, and the host logs it.
            ApiError::bad_request(
                "The body could not be read: it didn't come whole in time, or breaks HTTP's rules.",
            )
        })?;
        if let Ok(data) = frame.into_data() {
            body.push(&data)?;
        }
    }
    Ok(body.into_bytes())
}
