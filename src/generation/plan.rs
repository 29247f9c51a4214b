//! A request, in terms of a model's tokens.

use spinfer_protocol::{ApiError, FimTokens, ModelCard, tensor};

use super::stop::StopPattern;
use super::wave::Wave;
use crate::models::Model;
use crate::request::{Choices, CompletionRequest, DEFAULT_MAX_TOKENS, Prompt};
use crate::sampling::{Rng, SamplingParams};
use crate::settings::Settings;
use crate::tokenizer::{TokenId, Tokenizer, Utf8Stream};

/// A prompt, ready for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedPrompt {
    /// Its tokens, at least one.
    pub tokens: Vec<TokenId>,
    /// How many of the first tokens are not the prompt's own.
    pub added: usize,
    /// What the prompt says, where the answer shows it.
    pub text: Vec<u8>,
    /// The whole characters of what the prompt says, where the answer counts from its start.
    pub characters: usize,
    /// The most tokens to generate after them; they fit in the model's context.
    pub max_tokens: usize,
}

/// What ends a choice, in terms of the model's tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stops {
    /// Texts.
    pub texts: Vec<StopPattern>,
    /// Tokens, ascending.
    pub tokens: Vec<TokenId>,
    /// Nothing stops a choice before it has so many tokens.
    pub min_tokens: usize,
}

/// What the answer is to have besides generated text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shown {
    /// The prompt before it.
    pub echo: bool,
    /// What comes after it, where a gap is filled and the prompt is shown.
    pub suffix: String,
    /// So many alternatives beside each token's log-probability.
    pub logprobs: Option<usize>,
    /// Token ids.
    pub token_ids: bool,
}

/// All that generation needs to know of a request. Candidate `j` of prompt `i` has the index
/// `i * candidates + j`.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The prompts, in the request's order.
    pub prompts: Vec<PlannedPrompt>,
    /// Candidates of each prompt, and how many of them, the best, will be in the answer.
    pub choices: Choices,
    /// Which are generated together.
    pub waves: Vec<Wave>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Whence all random numbers come.
    pub seed: u64,
    /// Whether the request has a seed: then a prompt's choices are what they are alone.
    pub is_seeded: bool,
    /// What ends a choice.
    pub stops: Stops,
    /// What the answer shows.
    pub shown: Shown,
    /// How many of the likeliest tokens are read at each step; `None`: all of them.
    pub read: Read,
    /// Which caller's prompts may begin with each other's.
    pub cache_salt: Vec<u8>,
}

impl Plan {
    /// Tokenizes the prompts and checks them against the model. `random_seed` is for requests
    /// without a seed; `cache_salt` stands for the caller.
    pub fn new(
        request: &CompletionRequest,
        model: &Model,
        settings: &Settings,
        random_seed: u64,
        cache_salt: Vec<u8>,
    ) -> Result<Self, ApiError> {
        check_count(request, settings)?;
        let shown = Shown {
            echo: request.echo,
            suffix: request.suffix.clone().filter(|_| request.echo).unwrap_or_default(),
            logprobs: request.logprobs,
            token_ids: request.return_token_ids,
        };
        let card = &model.card;
        let gap = gap(request, model)?;
        let mut echoed = 0_usize;
        let prompts = request
            .prompts
            .list
            .iter()
            .enumerate()
            .map(|(place, prompt)| {
                let param = request.prompts.param(place);
                let (tokens, added) = tokenize(prompt, &param, gap.as_ref(), model)?;
                let max_tokens = max_tokens(tokens.len(), request, card.context as usize, &param)?;
                let mut planned =
                    PlannedPrompt { tokens, added, text: Vec::new(), characters: 0, max_tokens };
                if shown.echo {
                    let length = text_length(prompt, &model.tokenizer);
                    echoed =
                        length.saturating_mul(request.choices.candidates).saturating_add(echoed);
                    check_echo(echoed, settings)?;
                    planned.text = text(prompt, &model.tokenizer);
                }
                if shown.logprobs.is_some() {
                    planned.characters = characters(prompt, &model.tokenizer);
                }
                Ok(planned)
            })
            .collect::<Result<Vec<_>, ApiError>>()?;
        check_vocabulary(request, card)?;
        let (candidates, max_rows) = (request.choices.candidates, card.max_rows as usize);
        let plan = Self {
            waves: Wave::all(prompts.len(), candidates, max_rows),
            prompts,
            choices: request.choices,
            sampling: sampling(request, card),
            seed: request.seed.map_or(random_seed, i64::cast_unsigned),
            is_seeded: request.seed.is_some(),
            stops: stops(request, card),
            read: read(request, card),
            shown,
            cache_salt,
        };
        plan.check_answer(settings, card)?;
        Ok(plan)
    }

    /// The random numbers of a candidate. With a seed, they are the same for every prompt, so that a
    /// prompt's choices don't depend on what else is in the request; without one, equal prompts have
    /// different choices.
    pub fn rng(&self, prompt: usize, candidate: usize) -> Rng {
        let stream =
            if self.is_seeded { candidate } else { prompt * self.choices.candidates + candidate };
        Rng::new(self.seed, stream as u64)
    }

    /// The tokens of all prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.tokens.len()).sum()
    }

    /// Whether the prompts' tokens get log-probabilities.
    pub fn scores_prompts(&self) -> bool {
        self.shown.echo && self.shown.logprobs.is_some()
    }

    /// Whether generated tokens get log-probabilities.
    pub fn scores_tokens(&self) -> bool {
        self.shown.logprobs.is_some() || self.choices.are_ranked()
    }

    /// The length that each row of the context will have at most, over all waves. The last token of
    /// a choice is never put in.
    pub fn lengths(&self) -> Vec<usize> {
        let mut longest = Vec::new();
        for wave in &self.waves {
            let prompts = self.prompts[wave.prompts.clone()].iter();
            let mut lengths = prompts
                .flat_map(|prompt| {
                    let length = prompt.tokens.len() + prompt.max_tokens.saturating_sub(1);
                    std::iter::repeat_n(length, wave.candidates.len())
                })
                .collect::<Vec<_>>();
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            longest.resize(lengths.len().max(longest.len()), 0);
            for (longest, length) in longest.iter_mut().zip(lengths) {
                *longest = length.max(*longest);
            }
        }
        longest
    }

    /// Refuses what the answer would be too large for, or what can't be scored.
    fn check_answer(&self, settings: &Settings, card: &ModelCard) -> Result<(), ApiError> {
        let can_score = card.takes(tensor::TOP_K) && card.takes(tensor::GATHER_IDS);
        if self.scores_prompts() && !can_score {
            let message = "`echo` with `logprobs` needs a backend that gives log-probabilities; \
                this model's doesn't.";
            return Err(ApiError::invalid("logprobs", message));
        }
        if self.shown.token_ids {
            let ids = self.prompt_tokens().saturating_mul(self.choices.candidates);
            if ids > settings.max_echo_bytes / size_of::<TokenId>() {
                let message = format!(
                    "`return_token_ids` would repeat {ids} ids of prompts, over all choices; the limit is {}.",
                    settings.max_echo_bytes / size_of::<TokenId>()
                );
                return Err(ApiError::invalid("return_token_ids", message));
            }
        }
        if let Some(alternatives) = self.shown.logprobs {
            let positions = self.prompts.iter().map(|prompt| {
                let own = if self.shown.echo { prompt.tokens.len() } else { 0 };
                own + prompt.max_tokens
            });
            let logprobs = positions
                .sum::<usize>()
                .saturating_mul(self.choices.candidates)
                .saturating_mul(alternatives + 1);
            if logprobs > settings.max_logprobs {
                let message = format!(
                    "`logprobs` would make {logprobs} log-probabilities, over all positions, choices \
                     and alternatives; the limit is {}.",
                    settings.max_logprobs
                );
                return Err(ApiError::invalid("logprobs", message));
            }
        }
        Ok(())
    }
}

/// Refuses an answer that would repeat so many bytes of prompts.
fn check_echo(bytes: usize, settings: &Settings) -> Result<(), ApiError> {
    if bytes <= settings.max_echo_bytes {
        return Ok(());
    }
    let message = format!(
        "`echo` would repeat more than {} bytes of prompts, over all choices.",
        settings.max_echo_bytes
    );
    Err(ApiError::invalid("echo", message))
}

/// How tokens are chosen; asking for as many as there are is asking for all.
fn sampling(request: &CompletionRequest, card: &ModelCard) -> SamplingParams {
    let sampling = request.sampling.clone();
    let top_k = sampling.top_k.filter(|top_k| *top_k < card.vocab_size as usize);
    SamplingParams { top_k, ..sampling }
}

fn check_count(request: &CompletionRequest, settings: &Settings) -> Result<(), ApiError> {
    let prompts = request.prompts.list.len();
    if prompts > settings.max_prompts {
        let message =
            format!("`prompt` holds {prompts} prompts; the limit is {}.", settings.max_prompts);
        return Err(ApiError::invalid("prompt", message));
    }
    let choices = prompts * request.choices.candidates;
    if choices > settings.max_choices {
        let param = match () {
            () if request.choices.are_ranked() => "best_of",
            () if request.choices.n > 1 => "n",
            () => "prompt",
        };
        let message = format!(
            "The request asks for {choices} completions, over all prompts; the limit is {}.",
            settings.max_choices
        );
        return Err(ApiError::invalid(param, message));
    }
    Ok(())
}

/// Refuses ids that the vocabulary doesn't have, in fields other than `prompt`.
fn check_vocabulary(request: &CompletionRequest, card: &ModelCard) -> Result<(), ApiError> {
    for (token, _) in &request.sampling.adjustments.bias {
        known(*token, &format!("logit_bias.{token}"), card)?;
    }
    for (at, token) in request.stopping.tokens.iter().enumerate() {
        known(*token, &format!("stop_token_ids[{at}]"), card)?;
    }
    Ok(())
}

/// Refuses an id outside the vocabulary.
pub fn known(token: TokenId, param: &str, card: &ModelCard) -> Result<(), ApiError> {
    if token < card.vocab_size {
        return Ok(());
    }
    let message = format!(
        "`{param}`: {token} is outside the model's vocabulary, whose ids go up to {}.",
        card.vocab_size - 1
    );
    Err(ApiError::invalid(param, message))
}

fn stops(request: &CompletionRequest, card: &ModelCard) -> Stops {
    let mut tokens = request.stopping.tokens.clone();
    if !request.stopping.ignore_eos {
        tokens.extend_from_slice(&card.end_of_generation);
    }
    tokens.sort_unstable();
    tokens.dedup();
    let texts = request.stopping.texts.iter().map(|text| StopPattern::new(text)).collect();
    Stops { texts, tokens, min_tokens: request.stopping.min_tokens as usize }
}

/// What of the logits of a step generation reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Read {
    /// All of them.
    Whole,
    /// So many of the likeliest tokens, which are enough.
    Top(usize),
    /// Mostly the likeliest tokens, so many of them; all where these hold too little of the
    /// probability. What is drawn is drawn from the logits times `scale`.
    Nucleus { top_k: usize, scale: f32 },
}

impl Read {
    /// How many of the likeliest tokens are enough in any case.
    pub fn top(self) -> Option<usize> {
        match self {
            Self::Top(top_k) => Some(top_k),
            Self::Whole | Self::Nucleus { .. } => None,
        }
    }
}

/// As many tokens as mostly hold what `top_p` asks for: more cost more to find than they save.
const NUCLEUS: usize = 256;

/// What a step must bring for this request.
fn read(request: &CompletionRequest, card: &ModelCard) -> Read {
    let sampling = sampling(request, card);
    // Tokens that end a choice are banned at first, which changes what is likeliest.
    if request.stopping.min_tokens > 0 || !card.takes(tensor::TOP_K) {
        return Read::Whole;
    }
    let alternatives = request.logprobs.unwrap_or(0);
    let within = |count: usize| count.max(alternatives).min(card.vocab_size as usize);
    match sampling.decisive() {
        Some(decisive) if within(decisive) <= tensor::MOST_TOP_K as usize => {
            Read::Top(within(decisive))
        }
        None if sampling.draws_from_nucleus() && card.takes(tensor::SCALE) => {
            Read::Nucleus { top_k: within(NUCLEUS), scale: sampling.scale() }
        }
        _ => Read::Whole,
    }
}

/// What frames the prompt when a gap is to be filled.
struct Gap {
    fim: FimTokens,
    suffix: Vec<TokenId>,
}

fn gap(request: &CompletionRequest, model: &Model) -> Result<Option<Gap>, ApiError> {
    let Some(suffix) = &request.suffix else {
        return Ok(None);
    };
    let fim = model.card.fim.clone().ok_or_else(|| {
        let message = format!(
            "The model {:?} can't fill gaps: its vocabulary has no tokens for fill-in-the-middle.",
            model.card.id
        );
        ApiError::invalid("suffix", message)
    })?;
    let suffix = encode_if_it_fits(suffix, "suffix", model)?;
    Ok(Some(Gap { fim, suffix }))
}

/// The tokens of a prompt, and how many of the first are not its own. One without any starts from the
/// beginning of a text.
fn tokenize(
    prompt: &Prompt,
    param: &str,
    gap: Option<&Gap>,
    model: &Model,
) -> Result<(Vec<TokenId>, usize), ApiError> {
    let card = &model.card;
    let (mut tokens, is_text) = match prompt {
        Prompt::Text(text) => (encode_if_it_fits(text, param, model)?, true),
        Prompt::Tokens(tokens) => {
            for (at, token) in tokens.iter().enumerate() {
                known(*token, &format!("{param}[{at}]"), card)?;
            }
            (tokens.clone(), false)
        }
    };
    let mut added = 0;
    if let Some(Gap { fim, suffix }) = gap {
        // Prefix, suffix, middle: the order that models with these tokens are trained on.
        tokens.insert(0, fim.prefix);
        tokens.push(fim.suffix);
        tokens.extend_from_slice(suffix);
        tokens.push(fim.middle);
        added += 1;
    }
    if is_text && with_bos(&mut tokens, card) {
        added += 1;
    }
    if tokens.is_empty() {
        let start = card.bos.or(card.eos).ok_or_else(|| {
            let message = "`prompt` is empty, and this model has no token to start from.";
            ApiError::invalid(param, message)
        })?;
        tokens.push(start);
        added += 1;
    }
    Ok((tokens, added))
}

/// Puts the beginning of sequence before a text's tokens if the vocabulary wants it there and it isn't
/// there yet.
pub fn with_bos(tokens: &mut Vec<TokenId>, card: &ModelCard) -> bool {
    match card.bos.filter(|bos| card.add_bos && tokens.first() != Some(bos)) {
        Some(bos) => {
            tokens.insert(0, bos);
            true
        }
        None => false,
    }
}

/// What a prompt says: its text or, for ids, the text that they stand for.
fn text(prompt: &Prompt, tokenizer: &Tokenizer) -> Vec<u8> {
    match prompt {
        Prompt::Text(text) => text.as_bytes().to_vec(),
        Prompt::Tokens(tokens) => tokenizer.decode(tokens),
    }
}

/// The bytes of [`text`].
fn text_length(prompt: &Prompt, tokenizer: &Tokenizer) -> usize {
    match prompt {
        Prompt::Text(text) => text.len(),
        Prompt::Tokens(tokens) => {
            tokens.iter().map(|token| tokenizer.pieces().bytes(*token).len()).sum()
        }
    }
}

/// The whole characters of [`text`], which may end within one.
fn characters(prompt: &Prompt, tokenizer: &Tokenizer) -> usize {
    match prompt {
        Prompt::Text(text) => text.chars().count(),
        Prompt::Tokens(tokens) => {
            let mut stream = Utf8Stream::default();
            let mut whole = String::new();
            let mut count = 0;
            for token in tokens {
                stream.push(tokenizer.pieces().bytes(*token), &mut whole);
                count += whole.chars().count();
                whole.clear();
            }
            count
        }
    }
}

/// Encodes a text, unless its length already shows that it can't fit: the time for a hopeless
/// prompt is bounded by the context, not by the prompt.
fn encode_if_it_fits(text: &str, param: &str, model: &Model) -> Result<Vec<TokenId>, ApiError> {
    let context = model.card.context;
    let fewest = model.tokenizer.fewest_tokens(text);
    if fewest > context as usize {
        return Err(ApiError::context_length_exceeded(
            param,
            format!(
                "This model's maximum context length is {context} tokens; `{param}`, of {} bytes, has at least {fewest}.",
                text.len()
            ),
        ));
    }
    self::encode(text, model)
}

/// The tokens of a text.
pub fn encode(text: &str, model: &Model) -> Result<Vec<TokenId>, ApiError> {
    let encoded = model.tokenizer.encode(text);
    encoded.map_err(|error| ApiError::internal(format!("The tokenizer failed: {error}.")))
}

/// The tokens that may follow a prompt of `prompt` tokens.
fn max_tokens(
    prompt: usize,
    request: &CompletionRequest,
    context: usize,
    param: &str,
) -> Result<usize, ApiError> {
    let (asked, field) = (request.max_tokens, request.max_tokens_field);
    let room = context.saturating_sub(prompt);
    let exceeded = |param, rest: String| {
        let message = format!(
            "This model's maximum context length is {context} tokens; the prompt has {prompt}{rest}."
        );
        Err(ApiError::context_length_exceeded(param, message))
    };
    match asked {
        _ if prompt > context => exceeded(param, String::new()),
        None if room == 0 => exceeded(param, ", which leaves no room for a completion".into()),
        None => Ok(room.min(DEFAULT_MAX_TOKENS as usize)),
        Some(asked) if asked > room as u64 => {
            let all = asked.saturating_add(prompt as u64);
            exceeded(field, format!(", and `{field}` asks for {asked} more, {all} in all"))
        }
        Some(asked) => Ok(asked as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn plan(model: &Model, prompt: &str, max_tokens: Option<u64>) -> Result<Plan, ApiError> {
        let mut body = serde_json::json!({"model": "m", "prompt": prompt});
        if let Some(max_tokens) = max_tokens {
            body["max_tokens"] = max_tokens.into();
        }
        let request = CompletionRequest::parse(body.to_string().as_bytes()).unwrap();
        Plan::new(&request, model, &Settings::default(), 9, vec![])
    }

    fn tokens(model: &Model, prompt: &str) -> Vec<TokenId> {
        plan(model, prompt, None).unwrap().prompts.remove(0).tokens
    }

    #[test]
    fn bos_comes_once_where_the_model_wants_it() {
        let mut model = testing::model();
        let (bos, eos) = (model.card.bos.unwrap(), model.card.eos.unwrap());
        let hello = tokens(&model, "hello");
        assert_eq!(hello.len(), 1);
        assert_eq!(tokens(&model, ""), [bos]);
        model.card.add_bos = true;
        assert_eq!(tokens(&model, "hello"), [bos, hello[0]]);
        assert_eq!(tokens(&model, "<|im_start|>hello"), [bos, hello[0]]);
        assert_eq!(tokens(&model, ""), [bos]);
        model.card.bos = None;
        assert_eq!(tokens(&model, "hello"), hello);
        assert_eq!(tokens(&model, ""), [eos]);
        model.card.eos = None;
        assert_eq!(plan(&model, "", None).unwrap_err().param.as_deref(), Some("prompt"));
    }

    #[test]
    fn prompt_and_completion_fill_the_context_exactly() {
        let mut model = testing::model();
        model.card.context = 20;
        let limit = |prompt: usize, asked| {
            plan(&model, &"x".repeat(prompt), asked).map(|plan| plan.prompts[0].max_tokens)
        };
        assert_eq!(limit(4, None), Ok(16));
        assert_eq!(limit(5, None), Ok(15));
        assert_eq!(limit(5, Some(15)), Ok(15));
        assert_eq!(limit(20, Some(0)), Ok(0));
        for (prompt, asked, param) in [
            (20, None, "prompt"),
            (21, Some(0), "prompt"),
            (21, None, "prompt"),
            (5, Some(16), "max_tokens"),
        ] {
            let error = limit(prompt, asked).unwrap_err();
            assert_eq!((error.status, error.code), (400, Some("context_length_exceeded")));
            assert_eq!(error.param.as_deref(), Some(param));
            assert!(error.message.contains("20 tokens"), "{}", error.message);
        }
        let error = limit(5, Some(i64::MAX as u64)).unwrap_err();
        assert!(error.message.contains("the prompt has 5"), "{}", error.message);
    }

    #[test]
    fn a_hopeless_prompt_is_refused_without_encoding_it() {
        let model = testing::model();
        let error = plan(&model, &"hello ".repeat(1_000_000), None).unwrap_err();
        assert_eq!(error.code, Some("context_length_exceeded"));
        assert!(error.message.contains("6000000 bytes"), "{}", error.message);
    }

    #[test]
    fn the_reservation_leaves_out_the_last_token() {
        let model = testing::model();
        assert_eq!(plan(&model, "xxx", Some(4)).unwrap().lengths(), [6]);
        assert_eq!(plan(&model, "xxx", Some(0)).unwrap().lengths(), [3]);
    }
}
