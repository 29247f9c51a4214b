//! Writing responses on the host's own streams.
//!
//! A call to `compute` blocks the whole instance, the SDK's copying of bodies included. So a chunk
//! is written on the stream itself, and waited for until the host has it.

use spin_sdk::wasip3::http::types::{Fields, Response};
use spin_sdk::wasip3::{spawn, wit_future, wit_stream};
use spin_sdk::wit_bindgen::StreamWriter;

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

/// Names and values.
pub type Headers = Vec<(&'static str, String)>;

/// A response with a JSON body.
pub fn json(status: u16, mut headers: Headers, body: String) -> Response {
    headers.push(("content-type", "application/json".to_owned()));
    headers.push(("content-length", body.len().to_string()));
    let (response, mut writer) = open(status, &headers);
    spawn(async move {
        // A client that has gone doesn't need it.
        let _ = writer.write(body.into_bytes()).await;
    });
    response
}

/// A response without a body.
pub fn empty(status: u16, headers: Headers) -> Response {
    open(status, &headers).0
}

/// A response of server-sent events, which `write` makes after the head has gone.
pub fn events(mut headers: Headers, write: impl AsyncFnOnce(Writer) + 'static) -> Response {
    headers.push(("content-type", "text/event-stream".to_owned()));
    headers.push(("cache-control", "no-cache".to_owned()));
    let (response, mut writer) = open(200, &headers);
    spawn(async move {
        // Writing nothing ends when somebody reads: the host has the head by then.
        let _ = writer.write(Vec::new()).await;
        write(writer).await;
    });
    response
}

fn open(status: u16, headers: &Headers) -> (Response, Writer) {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
        .collect::<Vec<_>>();
    let headers = Fields::from_list(&headers).expect("names and values were checked");
    let (writer, reader) = wit_stream::new();
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (response, _sent) = Response::new(headers, Some(reader), trailers);
    response.set_status_code(status).expect("statuses of this component are valid");
    (response, Writer(writer))
}
