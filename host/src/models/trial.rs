//! Trying weights in a child process before this one loads them.
//!
//! llama.cpp aborts on some kinds of damage that no check of the header finds. A child that loads the
//! file, tokenizes and decodes one token turns that into a sentence. Files that passed are remembered
//! by their digest.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use spinfer_llama::{Batch, Context as LlamaContext, ContextParams, KvType, Model, ModelParams};

use crate::cache::Cache;

/// The hidden subcommand that the child runs.
pub const SUBCOMMAND: &str = "try-weights";

/// Its flag for [`ModelParams::ignore_pre_tokenizer`].
const IGNORE_PRE_TOKENIZER: &str = "--ignore-pre-tokenizer";

/// Goes into what is remembered: another llama.cpp may abort on what this one can load.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-b11434");

/// Makes sure that weights of that digest have been tried.
pub fn ensure_tried(
    cache: &Cache,
    weights: &Path,
    sha256: &str,
    ignore_pre_tokenizer: bool,
) -> anyhow::Result<()> {
    let mark = cache.entry("models", &format!("{sha256}-{VERSION}.tried"))?;
    if mark.is_file() {
        return Ok(());
    }
    tracing::info!(weights = %weights.display(), "trying weights that are new here");
    run_child(weights, ignore_pre_tokenizer).with_context(|| weights.display().to_string())?;
    cache.write(&mark, b"")
}

fn run_child(weights: &Path, ignore_pre_tokenizer: bool) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("can't find this program's own file")?;
    let mut child = Command::new(program)
        // Under the name by which Spin calls it, the program takes no subcommands.
        .arg0("spinfer")
        .arg(SUBCOMMAND)
        .arg(weights)
        .args(ignore_pre_tokenizer.then_some(IGNORE_PRE_TOKENIZER))
        // Else ggml starts a debugger when it aborts.
        .env("GGML_NO_BACKTRACE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("can't start the child process that tries weights")?;
    let mut words = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes)?;
        words = String::from_utf8_lossy(&bytes).into_owned();
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    bail!(verdict(status, &words))
}

/// A sentence from how the child ended.
fn verdict(status: ExitStatus, words: &str) -> String {
    let last = words.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("");
    match status.signal() {
        None => last.to_owned(),
        Some(9) => "loading it was killed, most likely for want of memory".to_owned(),
        Some(_) => {
            format!("llama.cpp gave up on it, so it is damaged or of an unknown kind: {last}")
        }
    }
}

/// What the child does; its last line on stderr is the reason of a failure.
pub fn child(weights: &Path, ignore_pre_tokenizer: bool) -> ExitCode {
    match try_weights(weights, ignore_pre_tokenizer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn try_weights(weights: &Path, ignore_pre_tokenizer: bool) -> anyhow::Result<()> {
    let params = ModelParams { ignore_pre_tokenizer, ..ModelParams::default() };
    let model = Arc::new(Model::load(weights, &params)?);
    ensure!(model.is_causal_decoder(), "it is no causal language model, so it can't complete text");
    let tokens = model.tokenize("Once upon a time, 1 + 1 = 2 \u{1F600}\n", true, true)?;
    let token = tokens.first().copied().unwrap_or(0);
    let params = ContextParams {
        cells: 256,
        sequences: 1,
        batch: 32,
        micro_batch: 32,
        outputs: 1,
        unified: false,
        threads: 1,
        kv_type: KvType::F16,
    };
    let mut context = LlamaContext::new(model, &params)?;
    let mut batch = Batch::new();
    batch.push(token, 0, 0, true);
    context.decode(&batch)?;
    let logits = context.logits(0).context("it gives no logits")?;
    ensure!(
        logits.iter().any(|logit| logit.is_finite()),
        "its weights are damaged: all logits are NaN or infinite"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_a_sentence() {
        let exited = ExitStatus::from_raw(1 << 8);
        assert_eq!(verdict(exited, "noise\nno tensors\n\n"), "no tensors");
        let aborted = verdict(ExitStatus::from_raw(6), "ggml.c:1: GGML_ASSERT(x) failed\n");
        assert!(aborted.contains("damaged") && aborted.contains("GGML_ASSERT(x)"), "{aborted}");
        assert!(verdict(ExitStatus::from_raw(9), "").contains("memory"));
    }
}
