//! The component's settings: application variables, each with a default.

use spinfer_protocol::AllowedOrigins;

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
    /// Whose web pages may read answers.
    pub allowed_origins: AllowedOrigins,
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
            allowed_origins: AllowedOrigins::default(),
        }
    }
}

impl Settings {
    /// The variables.
    pub const NAMES: [&str; 7] = [
        "max_body_bytes",
        "max_prompts",
        "max_choices",
        "max_logprobs",
        "max_echo_bytes",
        "default_model",
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
            "allowed_origins" => {
                self.allowed_origins = AllowedOrigins::parse(value)
                    .map_err(|error| format!("The variable {name}: {error}."))?;
            }
            _ => return Err(format!("There is no variable {name}.")),
        }
        Ok(())
    }
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
                allowed_origins: AllowedOrigins::Any,
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
            ("allowed_origins", "example.org"),
            ("max_rows", "1"),
        ] {
            let error = settings.set(name, value).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
        assert_eq!(settings, Settings::default());
    }
}
