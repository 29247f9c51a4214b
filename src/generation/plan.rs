//! A request, in terms of a model's tokens.

use spinfer_protocol::{ApiError, ModelCard};

use crate::models::Model;
use crate::request::{CompletionRequest, DEFAULT_MAX_TOKENS, Prompt};
use crate::sampling::SamplingParams;
use crate::tokenizer::{TokenId, Tokenizer};

/// A prompt, ready for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedPrompt {
    /// Its tokens, at least one.
    pub tokens: Vec<TokenId>,
    /// The most tokens to generate after them; they fit in the model's context.
    pub max_tokens: usize,
}

/// All that generation needs to know of a request. Choice `j` of prompt `i` has the index
/// `i * choices + j`.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The prompts, in the request's order.
    pub prompts: Vec<PlannedPrompt>,
    /// Choices for each prompt.
    pub choices: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Whence all random numbers come.
    pub seed: u64,
    /// Texts that end a choice.
    pub stop: Vec<String>,
}

impl Plan {
    /// Tokenizes the prompts and checks them against the model. `random_seed` is for requests
    /// without a seed.
    pub fn new(
        request: &CompletionRequest,
        model: &Model,
        random_seed: u64,
    ) -> Result<Self, ApiError> {
        let prompts = request
            .prompts
            .iter()
            .map(|prompt| {
                let tokens = tokenize(prompt, model)?;
                let max_tokens =
                    max_tokens(tokens.len(), request.max_tokens, model.card.context as usize)?;
                Ok(PlannedPrompt { tokens, max_tokens })
            })
            .collect::<Result<_, ApiError>>()?;
        Ok(Self {
            prompts,
            choices: 1,
            sampling: request.sampling,
            seed: request.seed.map_or(random_seed, i64::cast_unsigned),
            stop: request.stop.clone(),
        })
    }

    /// The tokens of all prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.tokens.len()).sum()
    }

    /// Whether there is nothing to generate.
    pub fn is_empty(&self) -> bool {
        self.prompts.iter().all(|prompt| prompt.max_tokens == 0)
    }

    /// The length of each row in the end. The last token of a choice is never put in.
    pub fn lengths(&self) -> Vec<usize> {
        self.prompts
            .iter()
            .flat_map(|prompt| {
                let length = prompt.tokens.len() + prompt.max_tokens.saturating_sub(1);
                std::iter::repeat_n(length, self.choices)
            })
            .collect()
    }
}

/// The tokens of a prompt. One without any starts from the beginning of a text.
fn tokenize(prompt: &Prompt, model: &Model) -> Result<Vec<TokenId>, ApiError> {
    match prompt {
        Prompt::Text(text) => {
            let mut tokens = encode(text, &model.tokenizer, &model.card)?;
            if let Some(bos) = model.card.bos
                && model.card.add_bos
                && tokens.first() != Some(&bos)
            {
                tokens.insert(0, bos);
            }
            if tokens.is_empty() {
                let start = model.card.bos.or(model.card.eos).ok_or_else(|| {
                    ApiError::invalid(
                        "prompt",
                        "`prompt` is empty, and this model has no token to start from.",
                    )
                })?;
                tokens.push(start);
            }
            Ok(tokens)
        }
        Prompt::Tokens(tokens) => Ok(tokens.clone()),
    }
}

/// Encodes a text, unless its length already shows that it can't fit: the time for a hopeless
/// prompt is bounded by the context, not by the prompt.
fn encode(text: &str, tokenizer: &Tokenizer, card: &ModelCard) -> Result<Vec<TokenId>, ApiError> {
    let fewest = tokenizer.fewest_tokens(text);
    if fewest > card.context as usize {
        return Err(ApiError::context_length_exceeded(
            "prompt",
            format!(
                "This model's context is {} tokens; the prompt, of {} bytes, has at least {fewest}.",
                card.context,
                text.len()
            ),
        ));
    }
    tokenizer
        .encode(text)
        .map_err(|error| ApiError::internal(format!("The tokenizer failed: {error}.")))
}

/// The tokens that may follow a prompt of `prompt` tokens.
fn max_tokens(prompt: usize, asked: Option<u64>, context: usize) -> Result<usize, ApiError> {
    let room = context.saturating_sub(prompt);
    let exceeded = |param, rest: String| {
        let message =
            format!("This model's context is {context} tokens; the prompt has {prompt}{rest}.");
        Err(ApiError::context_length_exceeded(param, message))
    };
    match asked {
        _ if prompt > context => exceeded("prompt", String::new()),
        None if room == 0 => exceeded("prompt", ", which leaves no room for a completion".into()),
        None => Ok(room.min(DEFAULT_MAX_TOKENS as usize)),
        Some(asked) if asked > room as u64 => {
            let all = asked.saturating_add(prompt as u64);
            exceeded(
                "max_tokens",
                format!(", and `max_tokens` asks for {asked} more, {all} in all"),
            )
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
        Plan::new(&request, model, 9)
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
