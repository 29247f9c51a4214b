//! Writing responses on the host's own streams.
//!
//! A call to `compute` blocks the whole instance, the SDK's copying of bodies included. So a chunk
//! is written on the stream itself, and waited for until the host has it.

use spin_sdk::wasip3::http::types::{Fields, Response};
use spin_sdk::wasip3::{spawn, wit_future, wit_stream};
use spin_sdk::wit_bindgen::StreamWriter;
use spinfer_protocol::ApiError;

use crate::answer::ByteSink;
use crate::generation::ClientGone;

/// The writing end of a body.
pub struct Writer(StreamWriter<u8>);

impl ByteSink for Writer {
    async fn write(&mut self, bytes: Vec<u8>) -> Result<(), ClientGone> {
        match self.0.write_all(bytes).await.is_empty() {
            true => Ok(()),
            false => Err(ClientGone),
        }
    }
}

/// A response with a JSON body.
pub fn json(status: u16, headers: &[(&str, &str)], body: String) -> Response {
    let length = body.len().to_string();
    let mut all = vec![("content-type", "application/json"), ("content-length", &length)];
    all.extend_from_slice(headers);
    let (response, mut writer) = open(status, &all);
    spawn(async move {
        // A client that has gone doesn't need it.
        let _ = writer.write(body.into_bytes()).await;
    });
    response
}

/// A response with an error envelope.
pub fn error(error: &ApiError, allow: Option<&str>) -> Response {
    let retry_after = error.retry_after.map(|seconds| seconds.to_string());
    let headers = [("allow", allow), ("retry-after", retry_after.as_deref())];
    let headers =
        headers.into_iter().filter_map(|(name, value)| Some((name, value?))).collect::<Vec<_>>();
    json(error.status, &headers, error.to_json())
}

/// A response of server-sent events, which `write` makes after the head has gone.
pub fn events(write: impl AsyncFnOnce(Writer) + 'static) -> Response {
    let headers = [("content-type", "text/event-stream"), ("cache-control", "no-cache")];
    let (response, mut writer) = open(200, &headers);
    spawn(async move {
        // Writing nothing ends when somebody reads: the host has the head by then.
        let _ = writer.write(Vec::new()).await;
        write(writer).await;
    });
    response
}

fn open(status: u16, headers: &[(&str, &str)]) -> (Response, Writer) {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
        .collect::<Vec<_>>();
    let headers = Fields::from_list(&headers).expect("headers of this file's own are valid");
    let (writer, reader) = wit_stream::new();
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (response, _sent) = Response::new(headers, Some(reader), trailers);
    response.set_status_code(status).expect("statuses of this component are valid");
    (response, Writer(writer))
}
