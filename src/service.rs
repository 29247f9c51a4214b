//! What each endpoint does, whatever the platform.

use spinfer_protocol::ApiError;

use crate::answer::{self, ByteSink, Collector, Events, Head};
use crate::generation::{self, BackendError, ClientGone, ExecutionContext, GenerationError, Plan};
use crate::http::Endpoint;
use crate::models::{Library, Model};
use crate::request::{CompletionRequest, StreamOptions};

/// What the service takes from where it runs.
pub trait Platform {
    /// How models compute here.
    type Context: ExecutionContext;

    /// The models.
    fn library(&self) -> &'static Library;
    /// A new context for the model of that id.
    fn open(&self, model: &str) -> Result<Self::Context, BackendError>;
    /// A random number, which nobody can guess.
    fn random(&self) -> u64;
    /// Unix seconds.
    fn now(&self) -> u64;
}

/// A successful answer.
#[derive(Debug)]
pub enum Reply<C> {
    /// A JSON body.
    Json(String),
    /// Events, to be written while they are made.
    Stream(Stream<C>),
}

/// Answers a request to an endpoint.
pub async fn respond<P: Platform>(
    endpoint: Endpoint,
    body: &[u8],
    platform: &P,
) -> Result<Reply<P::Context>, ApiError> {
    match endpoint {
        Endpoint::Completions => completions(body, platform).await,
        Endpoint::Models => Ok(Reply::Json(answer::models(platform.library()))),
        Endpoint::Model(id) => Ok(Reply::Json(answer::model(platform.library().find(&id)?))),
        Endpoint::Health => Ok(Reply::Json(answer::health())),
        Endpoint::Version => Ok(Reply::Json(answer::version())),
    }
}

/// Everything that can be refused is refused before the first byte of the answer, the lack of room
/// included.
async fn completions<P: Platform>(
    body: &[u8],
    platform: &P,
) -> Result<Reply<P::Context>, ApiError> {
    let request = CompletionRequest::parse(body)?;
    let model = platform.library().find(&request.model)?;
    let plan = Plan::new(&request, model, platform.random())?;
    let context = reserve(&plan, model, platform).map_err(|error| error.to_api(&request.model))?;
    let head = Head {
        id: format!("cmpl-{:016x}{:016x}", platform.random(), platform.random()),
        created: platform.now(),
        model: request.model,
        backend: model.card.backend,
    };
    let mut job = Job { plan, model, context, head };
    match request.stream {
        Some(options) => Ok(Reply::Stream(Stream { job, options })),
        None => job.complete().await.map(Reply::Json),
    }
}

fn reserve<P: Platform>(
    plan: &Plan,
    model: &Model,
    platform: &P,
) -> Result<P::Context, BackendError> {
    let mut context = platform.open(&model.card.id)?;
    context.reserve(&plan.lengths())?;
    Ok(context)
}

/// A request that has been let in.
#[derive(Debug)]
struct Job<C> {
    plan: Plan,
    model: &'static Model,
    context: C,
    head: Head,
}

impl<C: ExecutionContext> Job<C> {
    async fn complete(&mut self) -> Result<String, ApiError> {
        let mut collector = Collector::default();
        let usage = generation::run(&self.plan, self.model, &mut self.context, &mut collector)
            .await
            .map_err(|error| error.to_api(&self.head.model))?;
        Ok(collector.into_body(&self.head, usage))
    }
}

/// An answer that is still to be generated, event by event.
#[derive(Debug)]
pub struct Stream<C> {
    job: Job<C>,
    options: StreamOptions,
}

impl<C: ExecutionContext> Stream<C> {
    /// Generates the answer into a body. An error is the last event, and is returned so that it can
    /// be logged; a client that has gone is no error.
    pub async fn write(self, body: impl ByteSink) -> Result<(), ApiError> {
        let Self { job: Job { plan, model, mut context, head }, options } = self;
        let name = head.model.clone();
        let mut events = Events::new(head, options, body);
        match generation::run(&plan, model, &mut context, &mut events).await {
            Ok(usage) => gone_is_fine(events.finish(usage).await),
            Err(GenerationError::ClientGone(gone)) => gone_is_fine(Err(gone)),
            Err(error) => {
                let error = error.to_api(&name);
                gone_is_fine(events.fail(&error).await)?;
                Err(error)
            }
        }
    }
}

fn gone_is_fine(outcome: Result<(), ClientGone>) -> Result<(), ApiError> {
    let (Ok(()) | Err(ClientGone)) = outcome;
    Ok(())
}

#[cfg(test)]
mod tests;
