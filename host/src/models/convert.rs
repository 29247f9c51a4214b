//! GGUF weights as a model for OpenVINO: its own tools convert the weights, and what the file's header says
//! becomes the files that Hugging Face's tools would have written beside them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use spinfer_gguf::tokenizer::{self, TokenizerFacts};
use spinfer_gguf::{Header, ModelInfo};

/// Converts the weights; with Python, whose packages OpenVINO's tools are.
const SCRIPT: &str = include_str!("convert.py");

/// With it the script refuses, in its last line.
const REFUSED: i32 = 3;

/// Makes a folder with a model for OpenVINO of GGUF weights. `python` has the packages `openvino`,
/// `openvino-genai` and `gguf`.
///
/// # Errors
///
/// When the weights can't be taken over exactly, or the tools fail.
pub fn to_openvino(weights: &Path, python: &Path, folder: &Path) -> anyhow::Result<()> {
    let header = Header::read(weights)?;
    let info = ModelInfo::from_header(&header)?;
    let derived = tokenizer::derive(&header)?;
    fs::create_dir_all(folder)?;
    let write = |name: &str, content: &str| {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("can't write {}", path.display()))
    };
    write("config.json", &format!("{:#}\n", config(&info, &derived.facts)))?;
    write("generation_config.json", &format!("{:#}\n", generation(&derived.facts)))?;
    write("tokenizer_config.json", &format!("{:#}\n", additions(&derived.facts)))?;
    write("tokenizer.json", &derived.tokenizer_json)?;
    if let Some(template) = &derived.facts.chat_template {
        write("chat_template.jinja", template)?;
    }
    convert(weights, python, folder)
}

fn convert(weights: &Path, python: &Path, folder: &Path) -> anyhow::Result<()> {
    tracing::info!(weights = %weights.display(), "converting for OpenVINO, which takes a while");
    let mut child = Command::new(python)
        .arg("-")
        .arg(weights)
        .arg(folder)
        // Else the packages report to their makers, from a thread that has been seen to hang.
        .env("CI", "true")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("can't run {}, which converts the weights", python.display()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that doesn't read has its own reasons, which it says.
        let _ = stdin.write_all(SCRIPT.as_bytes());
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stdout);
    match (output.status.code(), words.lines().rfind(|line| !line.trim().is_empty())) {
        (Some(REFUSED), Some(reason)) => bail!("{reason}"),
        _ => bail!(
            "{} could not convert the weights ({}); what it printed above says why",
            python.display(),
            output.status
        ),
    }
}

fn config(info: &ModelInfo, facts: &TokenizerFacts) -> Value {
    let first = |heads: &[u32]| heads.first().copied();
    json!({
        "model_type": info.architecture,
        "vocab_size": facts.vocab_size,
        "max_position_embeddings": info.context_length,
        "hidden_size": info.embedding_length,
        "num_hidden_layers": info.block_count,
        "num_attention_heads": first(&info.heads),
        "num_key_value_heads": first(&info.kv_heads),
        "head_dim": info.key_length,
        "bos_token_id": facts.bos,
        "eos_token_id": facts.eos,
        "pad_token_id": facts.pad,
    })
}

fn generation(facts: &TokenizerFacts) -> Value {
    // The first is the one that is added behind a text.
    let others = facts.end_of_generation.iter().filter(|id| Some(**id) != facts.eos);
    let ends: Vec<_> = facts.eos.iter().chain(others).collect();
    json!({ "bos_token_id": facts.bos, "eos_token_id": ends, "pad_token_id": facts.pad })
}

fn additions(facts: &TokenizerFacts) -> Value {
    json!({ "add_bos_token": facts.add_bos, "add_eos_token": facts.add_eos })
}

#[cfg(test)]
mod tests {
    use super::super::exported;
    use super::*;

    fn facts() -> TokenizerFacts {
        TokenizerFacts {
            vocab_size: 10,
            bos: Some(1),
            eos: Some(7),
            pad: None,
            end_of_generation: vec![2, 7],
            add_bos: true,
            add_eos: false,
            fim_prefix: None,
            fim_suffix: None,
            fim_middle: None,
            chat_template: Some("template".into()),
        }
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: String| {
            fs::write(folder.path().join(name), content).unwrap();
        };
        let facts = facts();
        write("config.json", json!({"max_position_embeddings": 8, "eos_token_id": 7}).to_string());
        write("generation_config.json", generation(&facts).to_string());
        write("tokenizer_config.json", additions(&facts).to_string());
        write("chat_template.jinja", "template".into());
        write("tokenizer.json", "{}".into());
        let read = exported::read(folder.path()).unwrap().facts(10).unwrap();
        assert_eq!(read, facts);
    }
}
