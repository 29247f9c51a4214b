//! A context: the memory of sequences (KV cache) and the buffers of one decode at a time.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llama_cpp_sys_2 as sys;

use crate::{Batch, LoadError, Model, SequenceId, log};

/// How to make a context. Every field is checked or bounded before llama.cpp sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextParams {
    /// Cells of the KV cache, one a token, over all sequences.
    pub cells: u32,
    /// The most sequences at a time, 1 to 256.
    pub sequences: u32,
    /// The most tokens of one decode.
    pub batch: u32,
    /// The most tokens that go through the graph at once.
    pub micro_batch: u32,
    /// The most entries of one decode whose logits are asked for; llama.cpp sizes buffers by it. At
    /// least one for each sequence.
    pub outputs: u32,
    /// One pool of cells for all sequences, instead of an equal share for each.
    pub unified: bool,
    /// Threads of a decode.
    pub threads: u32,
    /// In what keys and values are kept.
    pub kv_type: KvType,
}

/// In what keys and values of the KV cache are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Half precision, llama.cpp's default.
    F16,
    /// As they are computed, for references.
    F32,
}

impl KvType {
    fn raw(self) -> sys::ggml_type {
        match self {
            Self::F16 => sys::GGML_TYPE_F16,
            Self::F32 => sys::GGML_TYPE_F32,
        }
    }
}

/// Why a decode failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The KV cache has no room; nothing has changed.
    #[error("no room in the KV cache")]
    NoRoom,
    /// The abort flag was set; the micro-batch that was running is lost.
    #[error("aborted")]
    Aborted,
    /// The batch breaks a rule that this wrapper or llama.cpp checks; nothing has changed.
    #[error("invalid batch: {0}")]
    Invalid(String),
    /// Anything else; the context must not be used again.
    #[error("llama_decode failed with {0}")]
    Fatal(i32),
}

/// A context over a model. Not shared: one thread owns it.
pub struct Context {
    raw: NonNull<sys::llama_context>,
    /// Freed after the context (see `Drop`).
    threadpools: Vec<NonNull<sys::ggml_threadpool>>,
    abort: Arc<AtomicBool>,
    model: Arc<Model>,
    vocab_size: usize,
    sequences: u32,
    batch: u32,
    most_outputs: u32,
    context_per_sequence: u32,
    /// Scratch for the pointers that a raw batch wants.
    sequence_counts: Vec<i32>,
    sequence_pointers: Vec<*mut SequenceId>,
    /// Whether the entry of that index in the last batch has logits.
    outputs: Vec<i8>,
}

// SAFETY: the library ties a context to no thread; moving it is fine while only one thread uses it,
// and `Context` is not `Sync`. The raw pointers in the scratch are only valid within `decode`.
unsafe impl Send for Context {}

unsafe extern "C" fn abort_requested(flag: *mut c_void) -> bool {
    // SAFETY: the pointer is to the `AtomicBool` that the context keeps alive.
    unsafe { &*flag.cast::<AtomicBool>() }.load(Ordering::Relaxed)
}

impl Context {
    /// Makes a context. Its memory is taken here: about `cells` times the KV bytes of a token.
    pub fn new(model: Arc<Model>, params: &ContextParams) -> Result<Self, LoadError> {
        Self::with_abort_flag(model, params, Arc::new(AtomicBool::new(false)))
    }

    /// Makes a fresh context instead of this one, whose memory is freed first. The abort flag stays the
    /// same.
    pub fn recreate(self, params: &ContextParams) -> Result<Self, LoadError> {
        let (model, abort) = (self.model.clone(), self.abort.clone());
        drop(self);
        Self::with_abort_flag(model, params, abort)
    }

    fn with_abort_flag(
        model: Arc<Model>,
        params: &ContextParams,
        abort: Arc<AtomicBool>,
    ) -> Result<Self, LoadError> {
        if model.is_vocab_only() {
            return Err(LoadError::Refused("only its vocabulary was loaded".into()));
        }
        let most = u32::try_from(max_sequences()).unwrap_or(u32::MAX);
        if params.sequences == 0 || params.sequences > most {
            return Err(LoadError::Refused(format!(
                "{} sequences are not in 1 to {most}",
                params.sequences
            )));
        }
        if params.batch < params.sequences {
            // llama.cpp aborts when it can't give each sequence an output.
            return Err(LoadError::Refused(format!(
                "a batch of {} tokens is too small for {} sequences",
                params.batch, params.sequences
            )));
        }
        let outputs = params.outputs.clamp(params.sequences, params.batch);
        // SAFETY: a plain value.
        let mut raw_params = unsafe { sys::llama_context_default_params() };
        raw_params.n_ctx = params.cells;
        raw_params.n_seq_max = params.sequences;
        raw_params.n_batch = params.batch;
        raw_params.n_ubatch = params.micro_batch.min(params.batch);
        raw_params.n_outputs_max = outputs;
        raw_params.kv_unified = params.unified;
        raw_params.n_threads = params.threads as i32;
        raw_params.n_threads_batch = params.threads as i32;
        raw_params.type_k = params.kv_type.raw();
        raw_params.type_v = params.kv_type.raw();
        raw_params.no_perf = true;
        // SAFETY: the model is alive, and the `Arc` kept below makes it outlive the context.
        let (raw, errors) =
            log::capture(|| unsafe { sys::llama_init_from_model(model.as_ptr(), raw_params) });
        let raw = NonNull::new(raw).ok_or_else(|| {
            LoadError::Refused(match errors.first() {
                Some(line) => format!("no context: {line}"),
                None => "no context (not enough memory?)".into(),
            })
        })?;
        // SAFETY: `abort` is kept by the context and outlives it.
        unsafe {
            sys::llama_set_abort_callback(
                raw.as_ptr(),
                Some(abort_requested),
                Arc::as_ptr(&abort).cast_mut().cast(),
            );
        }
        let threadpools = attach_threadpools(raw, params.threads);
        // SAFETY: all read fields of the context just made.
        let (sequences, batch, context_per_sequence) = unsafe {
            (
                sys::llama_n_seq_max(raw.as_ptr()),
                sys::llama_n_batch(raw.as_ptr()),
                sys::llama_n_ctx_seq(raw.as_ptr()),
            )
        };
        Ok(Self {
            raw,
            threadpools,
            abort,
            vocab_size: model.vocab_size() as usize,
            model,
            sequences,
            batch,
            most_outputs: outputs,
            context_per_sequence,
            sequence_counts: Vec::new(),
            sequence_pointers: Vec::new(),
            outputs: Vec::new(),
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The longest sequence in tokens, as llama.cpp made it (it pads what was asked for).
    pub fn context_per_sequence(&self) -> u32 {
        self.context_per_sequence
    }

    /// Sequences at a time.
    pub fn sequences(&self) -> u32 {
        self.sequences
    }

    /// The most tokens of one decode.
    pub fn batch(&self) -> u32 {
        self.batch
    }

    /// The most entries of one decode whose logits may be asked for.
    pub fn most_outputs(&self) -> u32 {
        self.most_outputs
    }

    /// Set it to make a running decode stop within milliseconds. What it computed for everybody is
    /// lost, so this is for shutting down.
    pub fn abort_flag(&self) -> Arc<AtomicBool> {
        self.abort.clone()
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: reads a field.
        unsafe { sys::llama_get_memory(self.raw.as_ptr()) }
    }

    fn has_sequence(&self, sequence: SequenceId) -> bool {
        u32::try_from(sequence).is_ok_and(|sequence| sequence < self.sequences)
    }

    /// Computes the batch. Its tokens are appended to their sequences; [`Self::logits`] has the
    /// logits that were asked for until the next decode.
    pub fn decode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        self.check(batch)?;
        self.outputs.clear();
        self.sequence_counts.resize(batch.len().max(self.sequence_counts.len()), 1);
        self.sequence_pointers.clear();
        self.sequence_pointers
            .extend(batch.sequences.iter().map(|sequence| std::ptr::from_ref(sequence).cast_mut()));
        let raw_batch = sys::llama_batch {
            n_tokens: batch.len() as i32,
            token: batch.tokens.as_ptr().cast_mut(),
            embd: std::ptr::null_mut(),
            pos: batch.positions.as_ptr().cast_mut(),
            n_seq_id: self.sequence_counts.as_mut_ptr(),
            seq_id: self.sequence_pointers.as_mut_ptr(),
            logits: batch.outputs.as_ptr().cast_mut(),
        };
        // SAFETY: all arrays have `n_tokens` entries and outlive the call, which only reads them;
        // ids of tokens and sequences and the number of tokens were checked.
        match unsafe { sys::llama_decode(self.raw.as_ptr(), raw_batch) } {
            0 => {
                self.outputs.extend_from_slice(&batch.outputs);
                Ok(())
            }
            1 => Err(DecodeError::NoRoom),
            2 => Err(DecodeError::Aborted),
            -1 => Err(DecodeError::Invalid("refused by llama.cpp".into())),
            code => Err(DecodeError::Fatal(code)),
        }
    }

    fn check(&self, batch: &Batch) -> Result<(), DecodeError> {
        let invalid = |message: String| Err(DecodeError::Invalid(message));
        if batch.is_empty() {
            return invalid("empty".into());
        }
        if batch.len() > self.batch as usize {
            return invalid(format!("{} tokens, over {}", batch.len(), self.batch));
        }
        let outputs = batch.outputs.iter().filter(|&&output| output != 0).count();
        if outputs > self.most_outputs as usize {
            return invalid(format!("{outputs} outputs, over {}", self.most_outputs));
        }
        for index in 0..batch.len() {
            let (token, sequence) = (batch.tokens[index], batch.sequences[index]);
            if token < 0 || token as usize >= self.vocab_size {
                return invalid(format!("token {token} is outside the vocabulary"));
            }
            if !self.has_sequence(sequence) {
                return invalid(format!("sequence {sequence} is not in 0..{}", self.sequences));
            }
            if batch.positions[index] as u32 >= self.context_per_sequence {
                return invalid(format!("position {} is past the context", batch.positions[index]));
            }
        }
        Ok(())
    }

    /// The logits, `vocab_size` of them, of entry `index` of the last batch; `None` if they were not
    /// asked for.
    pub fn logits(&self, index: usize) -> Option<&[f32]> {
        if *self.outputs.get(index)? == 0 {
            return None;
        }
        // SAFETY: the last decode succeeded and computed this entry's logits.
        let logits = unsafe { sys::llama_get_logits_ith(self.raw.as_ptr(), index as i32) };
        // SAFETY: a row has `vocab_size` floats, and stays until the next decode, which needs
        // `&mut self`.
        (!logits.is_null()).then(|| unsafe { std::slice::from_raw_parts(logits, self.vocab_size) })
    }

    /// Forgets a sequence's tokens at positions `from` and later. False when the model's memory
    /// can't be cut there (nothing has changed then).
    #[must_use]
    pub fn truncate(&mut self, sequence: SequenceId, from: u32) -> bool {
        let Ok(from) = i32::try_from(from) else { return true };
        // SAFETY: the sequence is one of the context's.
        self.has_sequence(sequence)
            && unsafe { sys::llama_memory_seq_rm(self.memory(), sequence, from, -1) }
    }

    /// Forgets a sequence.
    pub fn remove(&mut self, sequence: SequenceId) {
        if self.has_sequence(sequence) {
            // SAFETY: the sequence is one of the context's; removing a whole one can't fail.
            unsafe { sys::llama_memory_seq_rm(self.memory(), sequence, -1, -1) };
        }
    }

    /// Makes sequence `to` an equal of `from`, whole: a partial copy aborts when the cache is not
    /// unified.
    ///
    /// # Panics
    /// When either is not in `0..sequences`, or they are the same.
    pub fn copy(&mut self, from: SequenceId, to: SequenceId) {
        assert!(
            self.has_sequence(from) && self.has_sequence(to) && from != to,
            "copy of sequence {from} to {to}"
        );
        // SAFETY: both are the context's; the target is emptied first, and the copy is whole.
        unsafe {
            sys::llama_memory_seq_rm(self.memory(), to, -1, -1);
            sys::llama_memory_seq_cp(self.memory(), from, to, -1, -1);
        }
    }

    /// Tokens that a sequence holds.
    pub fn length(&self, sequence: SequenceId) -> u32 {
        if !self.has_sequence(sequence) {
            return 0;
        }
        // SAFETY: the sequence is one of the context's.
        let last = unsafe { sys::llama_memory_seq_pos_max(self.memory(), sequence) };
        (last + 1).max(0) as u32
    }
}

/// Threads that rest and look out.
impl Context {
    /// Nothing will be decoded soon: the threads sleep.
    pub fn rest(&mut self) {
        if let [single, _] = self.threadpools[..] {
            // SAFETY: the pool lives as long as the context, and no graph is computed during `&mut self`.
            unsafe { sys::ggml_threadpool_pause(single.as_ptr()) };
        }
    }

    /// A decode will come soon: the threads of a single sequence look for it, for some milliseconds. A thread
    /// that is woken by the decode itself often has to share that one's CPU for a while, which costs a good
    /// part of a short step.
    pub fn look_out(&mut self) {
        if let [single, _] = self.threadpools[..] {
            // SAFETY: as above.
            unsafe { sys::ggml_threadpool_resume(single.as_ptr()) };
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: all were made by `new`; the context goes first, since it uses the pools.
        unsafe {
            sys::llama_free(self.raw.as_ptr());
            for pool in &self.threadpools {
                sys::ggml_threadpool_free(pool.as_ptr());
            }
        }
    }
}

fn max_sequences() -> usize {
    // SAFETY: returns a constant.
    unsafe { sys::llama_max_parallel_sequences() }
}

/// Gives the context threads that stay; without them ggml makes new ones for each graph.
///
/// While one sequence decodes alone there is little to do between its steps, so its threads keep looking
/// for the next one for a while, as ggml's do by default: waking them costs a good part of a short step.
/// Between the steps of several, guests need the cores, so those threads sleep at once.
fn attach_threadpools(
    context: NonNull<sys::llama_context>,
    threads: u32,
) -> Vec<NonNull<sys::ggml_threadpool>> {
    if threads < 2 {
        return Vec::new();
    }
    // SAFETY: parameters are a plain value; a null pool means that ggml could not make one.
    let pool = |poll| unsafe {
        let mut params = sys::ggml_threadpool_params_default(threads as i32);
        params.poll = poll;
        NonNull::new(sys::ggml_threadpool_new(&mut params))
    };
    let pools: Vec<_> = [pool(WATCHFUL), pool(0)].into_iter().flatten().collect();
    if let [single, batch] = pools[..] {
        // SAFETY: the context outlives neither (see `Drop`). Without pools it goes on, too.
        unsafe { sys::llama_attach_threadpool(context.as_ptr(), single.as_ptr(), batch.as_ptr()) };
    }
    pools
}

/// How long idle threads look for the next step: 131,072 pauses of the CPU's, some milliseconds, which is
/// longer than a guest needs between two tokens. ggml's own default, 50, takes a core from others for
/// long after the last step.
const WATCHFUL: u32 = 1;
