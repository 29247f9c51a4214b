//! llama.cpp's own tokenizer: the reference that the derived one is tested against.

use llama_cpp_sys_2 as sys;

use crate::{Model, Token};

/// Why a text could not be tokenized.
#[derive(Debug, thiserror::Error)]
pub enum TokenizeError {
    /// More than 2^31 bytes or tokens.
    #[error("the text is too long")]
    TooLong,
}

fn known(token: Token) -> Option<Token> {
    (token >= 0).then_some(token)
}

impl Model {
    fn vocab(&self) -> *const sys::llama_vocab {
        self.vocab.as_ptr()
    }

    /// Tokens in the vocabulary.
    pub fn vocab_size(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_vocab_n_tokens(self.vocab()) }.max(0) as u32
    }

    /// The ids of `text`. `add_special`: with BOS and EOS as the metadata says; `parse_special`:
    /// the text of special tokens stands for them.
    pub fn tokenize(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<Token>, TokenizeError> {
        let length = i32::try_from(text.len()).map_err(|_| TokenizeError::TooLong)?;
        let mut tokens = vec![0; text.len() + 2];
        loop {
            let room = i32::try_from(tokens.len()).map_err(|_| TokenizeError::TooLong)?;
            // SAFETY: text and tokens are valid for the given lengths.
            let count = unsafe {
                sys::llama_tokenize(
                    self.vocab(),
                    text.as_ptr().cast(),
                    length,
                    tokens.as_mut_ptr(),
                    room,
                    add_special,
                    parse_special,
                )
            };
            if count == i32::MIN {
                return Err(TokenizeError::TooLong);
            }
            if count >= 0 {
                tokens.truncate(count as usize);
                return Ok(tokens);
            }
            tokens.resize(count.unsigned_abs() as usize, 0);
        }
    }

    /// The text of `tokens`, as bytes, since it may end inside a character.
    ///
    /// # Panics
    /// When a token is outside the vocabulary.
    pub fn detokenize(
        &self,
        tokens: &[Token],
        remove_special: bool,
        unparse_special: bool,
    ) -> Vec<u8> {
        assert!(tokens.iter().all(|&token| self.has(token)), "a token outside the vocabulary");
        let mut text = vec![0u8; tokens.len() * 8 + 16];
        loop {
            // SAFETY: tokens and text are valid for the given lengths, and the ids are in range.
            let count = unsafe {
                sys::llama_detokenize(
                    self.vocab(),
                    tokens.as_ptr(),
                    tokens.len() as i32,
                    text.as_mut_ptr().cast(),
                    text.len() as i32,
                    remove_special,
                    unparse_special,
                )
            };
            if count >= 0 {
                text.truncate(count as usize);
                return text;
            }
            text.resize(count.unsigned_abs() as usize, 0);
        }
    }

    pub(crate) fn has(&self, token: Token) -> bool {
        u32::try_from(token).is_ok_and(|token| token < self.vocab_size())
    }

    /// Every token that ends a generation, ascending.
    pub fn end_of_generation(&self) -> Vec<Token> {
        (0..self.vocab_size() as Token)
            // SAFETY: the ids are in range.
            .filter(|&token| unsafe { sys::llama_vocab_is_eog(self.vocab(), token) })
            .collect()
    }

    /// Beginning of sequence.
    pub fn bos(&self) -> Option<Token> {
        // SAFETY: reads a field.
        known(unsafe { sys::llama_vocab_bos(self.vocab()) })
    }

    /// End of sequence.
    pub fn eos(&self) -> Option<Token> {
        // SAFETY: reads a field.
        known(unsafe { sys::llama_vocab_eos(self.vocab()) })
    }

    /// Padding.
    pub fn pad(&self) -> Option<Token> {
        // SAFETY: reads a field.
        known(unsafe { sys::llama_vocab_pad(self.vocab()) })
    }

    /// Whether tokenizing with specials puts BOS first.
    pub fn add_bos(&self) -> bool {
        // SAFETY: reads a field.
        unsafe { sys::llama_vocab_get_add_bos(self.vocab()) }
    }

    /// Whether tokenizing with specials puts EOS last.
    pub fn add_eos(&self) -> bool {
        // SAFETY: reads a field.
        unsafe { sys::llama_vocab_get_add_eos(self.vocab()) }
    }

    /// Fill-in-the-middle: before the text that precedes the gap.
    pub fn fim_prefix(&self) -> Option<Token> {
        // SAFETY: reads a field.
        known(unsafe { sys::llama_vocab_fim_pre(self.vocab()) })
    }

    /// Fill-in-the-middle: before the text that follows the gap.
    pub fn fim_suffix(&self) -> Option<Token> {
        // SAFETY: reads a field.
        known(unsafe { sys::llama_vocab_fim_suf(self.vocab()) })
    }

    /// Fill-in-the-middle: where the model fills the gap.
    pub fn fim_middle(&self) -> Option<Token> {
        // SAFETY: reads a field.
        known(unsafe { sys::llama_vocab_fim_mid(self.vocab()) })
    }
}
