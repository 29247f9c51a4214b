//! Which special tokens take spaces along. The files don't say; llama.cpp goes by the model's name,
//! and so must who wants the same ids.

use super::TokenizerError;
use super::vocabulary::Vocabulary;
use crate::header::Header;

/// Marks the tokens that take the spaces behind them along.
pub(super) fn strip_spaces(
    header: &Header,
    vocabulary: &mut Vocabulary<'_>,
) -> Result<(), TokenizerError> {
    let name = header.string("general.name")?.unwrap_or_default().to_ascii_lowercase();
    if !(name.contains("phi-3") || name.contains("phi3")) {
        return Ok(());
    }
    for attributes in &mut vocabulary.attributes {
        attributes.takes_spaces_after = attributes.cut_out();
    }
    for text in ["<unk>", "<s>", "<|endoftext|>"] {
        if let Some(id) = vocabulary.id(text) {
            vocabulary.attributes_mut(id).takes_spaces_after = false;
        }
    }
    Ok(())
}
