//! The component's settings: application variables, each with a default.

use spinfer_protocol::{AllowedOrigins, ApiKeys};

use crate::request::MAX_PROMPTS;

/// What an operator can set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The most bytes of a request's body.
    pub max_body_bytes: usize,
    /// The most prompts of a request.
    pub max_prompts: usize,
    /// The most completions that a request may have generated: prompts × `best_of`.
    pub max_choices: usize,
    /// The most log-probabilities of an answer: positions × (alternatives + 1), over all choices.
    pub max_logprobs: usize,
    /// The most bytes of prompts that an answer may repeat, over all choices.
    pub max_echo_bytes: usize,
    /// The model of requests about tokens that name none. Not needed where there is only one.
    pub default_model: Option<String>,
    /// Who may ask.
    pub api_keys: ApiKeys,
    /// Whose web pages may read answers; none: those that [`AllowedOrigins::default_with`] the keys says.
    pub allowed_origins: Option<AllowedOrigins>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_body_bytes: 8 << 20,
            max_prompts: MAX_PROMPTS,
            max_choices: 2048,
            max_logprobs: 1 << 18,
            max_echo_bytes: 16 << 20,
            default_model: None,
            api_keys: ApiKeys::default(),
            allowed_origins: None,
        }
    }
}

impl Settings {
    /// The variables.
    pub const NAMES: [&str; 8] = [
        "max_body_bytes",
        "max_prompts",
        "max_choices",
        "max_logprobs",
        "max_echo_bytes",
        "default_model",
        "api_keys",
        "allowed_origins",
    ];

    /// Takes the value of a variable. An empty one stands for the default.
    ///
    /// # Errors
    ///
    /// A sentence that names the variable.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let value = value.trim();
        if value.is_empty() {
            return Ok(());
        }
        match name {
            "max_body_bytes" => self.max_body_bytes = number(name, value, usize::MAX)?,
            "max_prompts" => self.max_prompts = number(name, value, MAX_PROMPTS)?,
            "max_choices" => self.max_choices = number(name, value, usize::MAX)?,
            "max_logprobs" => self.max_logprobs = number(name, value, usize::MAX)?,
            "max_echo_bytes" => self.max_echo_bytes = number(name, value, usize::MAX)?,
            "default_model" => self.default_model = Some(value.to_owned()),
            "api_keys" => self.api_keys = ApiKeys::parse(value).map_err(in_variable(name))?,
            "allowed_origins" => {
                self.allowed_origins = AllowedOrigins::parse(value).map_err(in_variable(name))?;
            }
            _ => return Err(format!("There is no variable {name}.")),
        }
        Ok(())
    }

    /// Whose web pages may read answers.
    pub fn origins(&self) -> AllowedOrigins {
        self.allowed_origins.clone().unwrap_or_else(|| AllowedOrigins::default_with(&self.api_keys))
    }
}

fn in_variable(name: &str) -> impl Fn(String) -> String {
    move |error| format!("The variable {name}: {error}.")
}

fn number(name: &str, value: &str, most: usize) -> Result<usize, String> {
    match value.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(match most {
            usize::MAX => {
                format!("The variable {name} must be a number of at least 1, not {value:?}.")
            }
            _ => format!("The variable {name} must be a number from 1 to {most}, not {value:?}."),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_can_be_set() {
        let mut settings = Settings::default();
        for name in Settings::NAMES {
            settings.set(name, "").unwrap();
        }
        assert_eq!(settings, Settings::default());
        for name in Settings::NAMES {
            let value = if name == "allowed_origins" { " * " } else { " 7 " };
            settings.set(name, value).unwrap();
        }
        assert_eq!(
            settings,
            Settings {
                max_body_bytes: 7,
                max_prompts: 7,
                max_choices: 7,
                max_logprobs: 7,
                max_echo_bytes: 7,
                default_model: Some("7".into()),
                api_keys: ApiKeys::parse("7").unwrap(),
                allowed_origins: Some(AllowedOrigins::Any),
            }
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut settings = Settings::default();
        for (name, value) in [
            ("max_body_bytes", "8 MB"),
            ("max_body_bytes", "0"),
            ("max_prompts", "2049"),
            ("max_choices", "-1"),
            ("api_keys", "two words"),
            ("allowed_origins", "example.org"),
            ("max_rows", "1"),
        ] {
            let error = settings.set(name, value).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
        assert_eq!(settings, Settings::default());
    }
}
