//! `spinfer models`: what there is, and what each can do, by the headers of the weights alone.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use spinfer_gguf::tokenizer;
use spinfer_gguf::{Header, ModelInfo, TensorInfo};
use spinfer_protocol::Backend;

use super::catalogue::{self, ModelFolder};
use super::exported;

/// The models in a folder, as text for people.
///
/// # Errors
///
/// When the folder can't be read. A model that can't be used is in the text, with the reason.
pub fn list(folder: &Path) -> anyhow::Result<String> {
    let found = catalogue::find(&[folder.to_owned()])?;
    let mut text = String::new();
    for model in found.values() {
        let _ = writeln!(text, "{}", model.id);
        for backend in &model.backends {
            let about = match backend {
                Backend::Ggml => describe(model),
                Backend::Openvino => describe_exported(model),
            };
            text += &about.unwrap_or_else(|error| format!("  can't be used: {error:#}\n"));
            text.push('\n');
        }
    }
    if found.is_empty() {
        let _ = writeln!(text, "there are no models in {}", folder.display());
    }
    Ok(text)
}

fn describe(model: &ModelFolder) -> anyhow::Result<String> {
    let header = Header::read(&model.weights())?;
    let info = ModelInfo::from_header(&header)?;
    let facts = tokenizer::facts(&header)?;
    let mut text = String::new();
    let mut line = |name: &str, about: String| {
        let _ = writeln!(text, "  {name:12} {about}");
    };
    if let Some(name) = &info.name {
        line("name", name.clone());
    }
    line("weights", weights(header.tensors(), &info.architecture));
    let kilobytes = info.kv_bytes_per_token() as f64 / 1024.0;
    line(
        "context",
        format!(
            "{} tokens in training, each of {kilobytes:.0} KiB of KV cache{}",
            info.context_length,
            model
                .settings
                .context
                .map_or(String::new(), |own| format!("; {own} here (model.toml)"))
        ),
    );
    line("vocabulary", format!("{} tokens", facts.vocab_size));
    let tokenizer = match (model.tokenizer(), tokenizer::derive(&header)) {
        (Some(_), _) => "its owner's tokenizer.json".to_owned(),
        (None, Ok(_)) => "derived from the weights".to_owned(),
        (None, Err(error)) => format!("none: {error}"),
    };
    line("tokenizer", tokenizer);
    let fim = model.settings.fim.clone().or_else(|| facts.fim()).is_some();
    line("fills gaps", if fim { "yes (`suffix`)" } else { "no" }.to_owned());
    if !model.settings.aliases.is_empty() {
        line("also named", model.settings.aliases.join(", "));
    }
    Ok(text)
}

/// A model for OpenVINO, by the files beside its weights.
fn describe_exported(model: &ModelFolder) -> anyhow::Result<String> {
    let exported = exported::read(&model.path)?;
    let weights = model.graph().with_extension("bin");
    let bytes =
        weights.metadata().with_context(|| format!("can't read {}", weights.display()))?.len();
    let mut text = String::new();
    let mut line = |name: &str, about: String| {
        let _ = writeln!(text, "  {name:12} {about}");
    };
    line("weights", format!("{:.0} MB, for OpenVINO", bytes as f64 / 1e6));
    line("context", format!("{} tokens in training", exported.context()?));
    Ok(text)
}

/// For example "98 MB, 135 M parameters, mostly Q4_1, llama".
fn weights(tensors: &[TensorInfo], architecture: &str) -> String {
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let (mut parameters, mut bytes) = (0, 0);
    for tensor in tensors {
        let size = tensor.bytes().unwrap_or(0);
        parameters += tensor.elements().unwrap_or(0);
        bytes += size;
        *kinds.entry(tensor.kind.to_string()).or_default() += size;
    }
    let most = kinds.iter().max_by_key(|(_, bytes)| **bytes).map_or("nothing", |(kind, _)| kind);
    format!(
        "{:.0} MB, {:.0} M parameters, mostly {most}, {architecture}",
        bytes as f64 / 1e6,
        parameters as f64 / 1e6
    )
}

#[cfg(test)]
mod tests {
    use spinfer_gguf::{TensorType, write::Writer};

    use super::*;

    #[test]
    fn weights_are_told_by_what_most_of_them_are() {
        let tensor = |kind, rows| TensorInfo {
            name: String::new(),
            dimensions: vec![1 << 10, rows],
            kind,
            offset: 0,
        };
        let tensors = [tensor(TensorType::F32, 1 << 10), tensor(TensorType::Q4_0, 1 << 14)];
        assert_eq!(weights(&tensors, "llama"), "14 MB, 18 M parameters, mostly Q4_0, llama");
    }

    #[test]
    fn what_can_t_be_used_is_listed_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        assert!(list(folder.path()).unwrap().contains("no models"));
        std::fs::create_dir(folder.path().join("bad")).unwrap();
        let weights = folder.path().join("bad/model.gguf");
        std::fs::write(&weights, "garbage").unwrap();
        assert!(list(folder.path()).unwrap().starts_with("bad\n  can't be used: "));
        std::fs::write(&weights, Writer::new().to_bytes()).unwrap();
        let text = list(folder.path()).unwrap();
        assert!(text.contains("can't be used") && text.contains("architecture"), "{text}");
    }
}
