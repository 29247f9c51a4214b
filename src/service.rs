//! What each endpoint does, whatever the platform.

use spinfer_protocol::{ApiError, ModelCard};

use crate::answer::{self, ByteSink, Collector, Events, Head};
use crate::generation::{self, BackendError, ClientGone, ExecutionContext, GenerationError, Plan};
use crate::http::Endpoint;
use crate::models::{Library, Model};
use crate::openapi;
use crate::request::{CompletionRequest, DetokenizeRequest, StreamOptions, TokenizeRequest};
use crate::settings::Settings;

/// The most tokens of a request about tokens, in contexts of its model.
const MOST_CONTEXTS: usize = 64;

/// What the service takes from where it runs.
pub trait Platform {
    /// How models compute here.
    type Context: ExecutionContext;

    /// The models.
    fn library(&self) -> &'static Library;
    /// A new context for that model.
    fn open(&self, model: &ModelCard) -> Result<Self::Context, BackendError>;
    /// A random number, which nobody can guess.
    fn random(&self) -> u64;
    /// Unix seconds.
    fn now(&self) -> u64;
    /// What tells callers apart, and nothing else about them: equal for equal callers.
    fn caller(&self) -> Vec<u8>;
    /// Writes a line to the request's log.
    fn log(&self, line: &str);
}

/// A successful answer.
#[derive(Debug)]
pub enum Reply<C> {
    /// A JSON body.
    Json(String),
    /// Events, to be written while they are made.
    Stream(Box<Stream<C>>),
    /// What a path takes: the methods, for the headers.
    Options(&'static str),
}

/// Answers a request to an endpoint.
pub async fn respond<P: Platform>(
    endpoint: Endpoint,
    body: &[u8],
    settings: &Settings,
    platform: &P,
) -> Result<Reply<P::Context>, ApiError> {
    let library = platform.library();
    let default = settings.default_model.as_deref();
    let json = match endpoint {
        Endpoint::Completions => return completions(body, settings, platform).await,
        Endpoint::Options(allow) => return Ok(Reply::Options(allow)),
        Endpoint::Models => answer::models(library),
        Endpoint::Model(id) => answer::model(library.find(&id)?),
        Endpoint::Health => answer::health(),
        Endpoint::Version => answer::version(),
        Endpoint::Providers => answer::providers(library),
        Endpoint::OpenApi => openapi::DOCUMENT.to_owned(),
        Endpoint::Tokenize => {
            let request = TokenizeRequest::parse(body)?;
            let model = library.find_or_default(request.model.as_deref(), default)?;
            answer::tokenized(&tokenize(&request, model)?, model)
        }
        Endpoint::Detokenize => {
            let request = DetokenizeRequest::parse(body)?;
            let model = library.find_or_default(request.model.as_deref(), default)?;
            limit_tokens("tokens", request.tokens.len(), model)?;
            for (at, token) in request.tokens.iter().enumerate() {
                generation::known(*token, &format!("tokens[{at}]"), &model.card)?;
            }
            answer::detokenized(&request.tokens, model)
        }
        Endpoint::TokenizerInfo(model) => {
            answer::tokenizer_info(library.find_or_default(model.as_deref(), default)?)
        }
    };
    Ok(Reply::Json(json))
}

/// The tokens of a text as a completion's prompt has them and, if they are wanted, with the end that
/// the vocabulary puts after texts.
fn tokenize(request: &TokenizeRequest, model: &Model) -> Result<Vec<u32>, ApiError> {
    limit_tokens("prompt", model.tokenizer.fewest_tokens(&request.text), model)?;
    let mut tokens = generation::encode(&request.text, model)?;
    if request.add_special_tokens {
        generation::with_bos(&mut tokens, &model.card);
        tokens.extend(model.card.eos.filter(|_| model.card.add_eos));
    }
    Ok(tokens)
}

/// Refuses texts that are much longer than any that the model can take.
fn limit_tokens(param: &str, tokens: usize, model: &Model) -> Result<(), ApiError> {
    let limit = MOST_CONTEXTS * model.card.context as usize;
    if tokens <= limit {
        return Ok(());
    }
    let message = format!("`{param}` has at least {tokens} tokens; the limit here is {limit}.");
    Err(ApiError::invalid(param, message))
}

/// Everything that can be refused is refused before the first byte of the answer, the lack of room
/// included.
async fn completions<P: Platform>(
    body: &[u8],
    settings: &Settings,
    platform: &P,
) -> Result<Reply<P::Context>, ApiError> {
    let request = CompletionRequest::parse(body)?;
    if let Some(user) = &request.user {
        platform.log(&format!("user: {user:?}"));
    }
    let model = platform.library().find(&request.model)?;
    let plan = Plan::new(&request, model, settings, platform.random(), platform.caller())?;
    let context = reserve(&plan, model, platform).map_err(|error| error.to_api(&request.model))?;
    let head = Head {
        id: format!("cmpl-{:016x}{:016x}", platform.random(), platform.random()),
        created: platform.now(),
        name: request.model,
        model,
        logprobs: request.logprobs.is_some(),
        token_ids: request.return_token_ids,
    };
    let mut job = Job { plan, context, head };
    match request.stream {
        Some(options) => {
            let random = platform.random();
            Ok(Reply::Stream(Box::new(Stream { job, options, random })))
        }
        None => job.complete().await.map(Reply::Json),
    }
}

fn reserve<P: Platform>(
    plan: &Plan,
    model: &Model,
    platform: &P,
) -> Result<P::Context, BackendError> {
    let mut context = platform.open(&model.card)?;
    context.reserve(&plan.lengths())?;
    Ok(context)
}

/// A request that has been let in.
#[derive(Debug)]
struct Job<C> {
    plan: Plan,
    context: C,
    head: Head,
}

impl<C: ExecutionContext> Job<C> {
    async fn complete(&mut self) -> Result<String, ApiError> {
        let mut collector = Collector::new(&self.plan);
        let usage = generation::run(&self.plan, self.head.model, &mut self.context, &mut collector)
            .await
            .map_err(|error| error.to_api(&self.head.name))?;
        Ok(collector.into_body(&self.head, usage))
    }
}

/// An answer that is still to be generated, event by event.
#[derive(Debug)]
pub struct Stream<C> {
    job: Job<C>,
    options: StreamOptions,
    random: u64,
}

impl<C: ExecutionContext> Stream<C> {
    /// Generates the answer into a body. An error is the last event, and is returned so that it can
    /// be logged; a client that has gone is no error.
    pub async fn write(self, body: impl ByteSink) -> Result<(), ApiError> {
        let Self { job: Job { plan, mut context, head }, options, random } = self;
        let (model, name) = (head.model, head.name.clone());
        let mut events = Events::new(head, options, random, body);
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
