//! A compiled model, and the memory of one execution context in it.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use openvino::{
    CompiledModel, Core, DeviceType, ElementType, InferRequest, InferenceError, Model,
    RwPropertyKey, Shape, Tensor,
};
use spinfer_protocol::columns::{Columns, Pass, RowTokens};
use spinfer_protocol::tensor as names;

use super::{Device, LoadError, Settings};
use crate::nn::NnError;
use crate::nn::convention::{RowStep, Step, Wanted};
use crate::nn::outputs::{Outputs, Scratch};

/// The inputs that a stateful causal language model has, as optimum-intel exports it.
const INPUTS: [(&str, ElementType, i64); 4] = [
    (names::INPUT_IDS, ElementType::I64, 2),
    (names::ATTENTION_MASK, ElementType::I64, 2),
    (names::POSITION_IDS, ElementType::I64, 2),
    (names::BEAM_IDX, ElementType::I32, 1),
];

/// A model that the library has compiled for a device.
pub struct Compiled {
    /// With what has compiled it, which is dropped after it.
    model: Mutex<(CompiledModel, Core)>,
    vocab_size: u32,
}

/// The memory of an execution context: a request of the library that is used for all of its steps. Empty
/// until the first.
#[derive(Default)]
pub struct Memory(Option<InferRequest>);

impl Compiled {
    /// Reads and compiles the model in the files `xml` and `bin`. The library must be loaded.
    pub fn load(xml: &Path, bin: &Path, settings: &Settings) -> Result<Self, LoadError> {
        let mut core = Core::new().map_err(|error| LoadError::Library(error.to_string()))?;
        let device = match settings.device {
            Device::Cpu => DeviceType::CPU,
            Device::Gpu => DeviceType::GPU,
        };
        let refused = |what: &str| {
            let what = what.to_owned();
            move |error: InferenceError| LoadError::Refused(format!("{what}: {}", words(&error)))
        };
        for (key, value) in properties(settings) {
            core.set_property(&device, &key, &value)
                .map_err(refused(&format!("can't set {} to {value}", key.as_ref())))?;
        }
        let utf8 = |path: &Path| path.to_str().map(str::to_owned).ok_or(LoadError::Path);
        check_length(xml, bin)?;
        let model = core
            .read_model_from_file(&utf8(xml)?, &utf8(bin)?)
            .map_err(refused("OpenVINO can't read it"))?;
        let vocab_size = check(&model)?;
        let compiled = core
            .compile_model(&model, device)
            .map_err(refused(&format!("OpenVINO can't compile it for the {}", settings.device)))?;
        let compiled = Self { model: Mutex::new((compiled, core)), vocab_size };
        compiled.try_token()?;
        Ok(compiled)
    }

    /// Computes one token, which shows whether the weights are any.
    fn try_token(&self) -> Result<(), LoadError> {
        let row = RowStep { parent: None, start: 0, tokens: vec![0] };
        let step = Step { rows: vec![row], keep: 1, wanted: Wanted::Logits, columns: 1 };
        let mut outputs = Outputs::new(&step, self.vocab_size, None);
        let tokens = RowTokens { parent: None, start: 0, tokens: &[0_i32] };
        for pass in Columns::default().passes(&[tokens], 1, 1) {
            self.run(&mut Memory::default(), &pass, &mut outputs, &mut Scratch::default())
                .map_err(|error| LoadError::Refused(error.message))?;
        }
        let is_finite = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes).is_finite();
        let (_, logits) = &outputs.into_tensors()[0];
        match logits.data.as_chunks::<4>().0.iter().any(is_finite) {
            true => Ok(()),
            false => Err(LoadError::Refused(
                "its weights are damaged: all logits are NaN or infinite".into(),
            )),
        }
    }

    /// Tokens in the vocabulary.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Runs a pass over a context's memory, and puts the logits that are wanted into `outputs`.
    pub fn run(
        &self,
        memory: &mut Memory,
        pass: &Pass,
        outputs: &mut Outputs,
        scratch: &mut Scratch,
    ) -> Result<(), NnError> {
        self.try_run(memory, pass, outputs, scratch)
            .map_err(|error| NnError::runtime(format!("OpenVINO failed: {}", words(&error))))?
    }

    fn try_run(
        &self,
        memory: &mut Memory,
        pass: &Pass,
        outputs: &mut Outputs,
        scratch: &mut Scratch,
    ) -> Result<Result<(), NnError>, InferenceError> {
        let request = match &mut memory.0 {
            Some(request) if !pass.anew => request,
            // Nothing else empties the memory.
            empty => empty.insert(self.request()?),
        };
        let (rows, columns) = (pass.rows, pass.columns);
        let whole = pass.attention_mask.len() / rows.max(1);
        request.set_tensor(names::INPUT_IDS, &tensor(&[rows, columns], &pass.input_ids)?)?;
        request
            .set_tensor(names::ATTENTION_MASK, &tensor(&[rows, whole], &pass.attention_mask)?)?;
        request.set_tensor(names::POSITION_IDS, &tensor(&[rows, columns], &pass.position_ids)?)?;
        request.set_tensor(names::BEAM_IDX, &tensor(&[rows], &pass.beam_idx)?)?;
        request.infer()?;
        if pass.kept.is_empty() {
            return Ok(Ok(()));
        }
        let logits = request.get_tensor(names::LOGITS)?;
        let shape = logits.get_shape()?;
        let vocab_size = self.vocab_size as usize;
        let expected = [rows, columns, vocab_size].map(|size| size as i64);
        if shape.get_dimensions() != expected {
            return Ok(Err(NnError::runtime(format!(
                "the model's logits are of shape {:?}, but must be {expected:?}",
                shape.get_dimensions()
            ))));
        }
        let logits = logits.get_data::<f32>()?;
        for kept in &pass.kept {
            let row = &logits[kept.position * vocab_size..][..vocab_size];
            outputs.put(kept.cell, row, scratch);
        }
        Ok(Ok(()))
    }

    fn request(&self) -> Result<InferRequest, InferenceError> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner).0.create_infer_request()
    }
}

/// What the library is told before it compiles.
fn properties(settings: &Settings) -> Vec<(RwPropertyKey, String)> {
    let mut properties = vec![
        (RwPropertyKey::NumStreams, settings.streams.to_string()),
        (
            RwPropertyKey::Other("KV_CACHE_PRECISION".into()),
            settings.kv_precision.name().to_owned(),
        ),
    ];
    if settings.device == Device::Cpu {
        properties.push((RwPropertyKey::InferenceNumThreads, settings.threads.to_string()));
        // By default it computes in bf16 where the CPU can, and rounds activations to 8 bits beside
        // compressed weights.
        properties.push((RwPropertyKey::HintInferencePrecision, "f32".to_owned()));
        properties
            .push((RwPropertyKey::Other("DYNAMIC_QUANTIZATION_GROUP_SIZE".into()), "0".to_owned()));
        // Guests and connections run on the same cores.
        properties.push((RwPropertyKey::HintEnableCpuPinning, "NO".to_owned()));
    }
    properties
}

/// Refuses what is no stateful causal language model. Gives the size of its vocabulary.
fn check(model: &Model) -> Result<u32, LoadError> {
    let refused = |error: InferenceError| LoadError::Refused(words(&error));
    let mut missing: Vec<_> = INPUTS.to_vec();
    for index in 0..model.get_inputs_len().map_err(refused)? {
        let node = model.get_input_by_index(index).map_err(refused)?;
        let name = node.get_name().map_err(refused)?;
        let Some(at) = missing.iter().position(|(wanted, ..)| *wanted == name) else {
            return Err(LoadError::Refused(format!("it has an input {name:?} that nobody knows")));
        };
        let (_, element, rank) = missing.swap_remove(at);
        let (found, shape) =
            (node.get_element_type().map_err(refused)?, node.get_partial_shape().map_err(refused)?);
        if found != element || shape.get_rank().get_max() != rank {
            return Err(LoadError::Refused(format!(
                "its input {name:?} must be {element:?} with {rank} dimensions, and is {found:?} with {}",
                shape.get_rank().get_max()
            )));
        }
    }
    if let Some((name, ..)) = missing.first() {
        return Err(LoadError::Refused(format!(
            "it has no input {name:?}: it must be a stateful model for text generation, as optimum-intel \
             exports it"
        )));
    }
    for index in 0..model.get_outputs_len().map_err(refused)? {
        let node = model.get_output_by_index(index).map_err(refused)?;
        if node.get_name().map_err(refused)? != names::LOGITS {
            continue;
        }
        let shape = node.get_partial_shape().map_err(refused)?;
        let vocab_size = match shape.get_dimensions() {
            [_, _, vocab_size] if !vocab_size.is_dynamic() => {
                u32::try_from(vocab_size.get_max()).ok()
            }
            _ => None,
        };
        return vocab_size.filter(|&size| size > 0).ok_or_else(|| {
            LoadError::Refused(
                "its output \"logits\" must have the shape [?, ?, vocabulary]".into(),
            )
        });
    }
    Err(LoadError::Refused("it has no output \"logits\"".into()))
}

/// Refuses weights that end too early: the library maps the file and would read behind its end.
fn check_length(xml: &Path, bin: &Path) -> Result<(), LoadError> {
    let unreadable = |path: &Path, error: std::io::Error| {
        LoadError::Refused(format!("can't read {}: {error}", path.display()))
    };
    let text = std::fs::read_to_string(xml).map_err(|error| unreadable(xml, error))?;
    let length = bin.metadata().map_err(|error| unreadable(bin, error))?.len();
    let needed = weights_length(&text);
    if needed <= length {
        return Ok(());
    }
    Err(LoadError::Refused(format!(
        "{} has {length} bytes, but {needed} are needed: it has not come whole, or is of another model",
        bin.display()
    )))
}

/// How many bytes of weights a model's description refers to: constants have their `offset` and `size`.
fn weights_length(xml: &str) -> u64 {
    let number = |tag: &str, name: &str| {
        let (_, value) = tag.split_once(&format!(" {name}=\""))?;
        value.split_once('"')?.0.parse::<u64>().ok()
    };
    let ends = xml.split("<data").skip(1).filter_map(|rest| {
        let tag = rest.split('>').next()?;
        number(tag, "offset")?.checked_add(number(tag, "size")?)
    });
    ends.max().unwrap_or(0)
}

/// A tensor of that shape.
fn tensor<T: Copy + Element>(shape: &[usize], data: &[T]) -> Result<Tensor, InferenceError> {
    let shape: Vec<_> = shape.iter().map(|&size| size as i64).collect();
    let mut tensor = Tensor::new(T::TYPE, &Shape::new(&shape)?)?;
    if !data.is_empty() {
        tensor.get_data_mut::<T>()?.copy_from_slice(data);
    }
    Ok(tensor)
}

trait Element {
    const TYPE: ElementType;
}

impl Element for i64 {
    const TYPE: ElementType = ElementType::I64;
}

impl Element for i32 {
    const TYPE: ElementType = ElementType::I32;
}

/// The library's own words, in one line.
fn words(error: &InferenceError) -> String {
    let words = error.message.clone().unwrap_or_else(|| error.to_string());
    let lines: Vec<_> = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // The last lines say what, the first where in its sources.
    match lines.as_slice() {
        [] => "it gives no reason".to_owned(),
        lines => lines[lines.len().saturating_sub(2)..].join(": "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_weights_is_that_of_the_last_constant() {
        let xml = r#"<net><layer type="Const"><data element_type="u4" shape="2, 4" offset="100" size="4" />
            </layer><layer type="Const"><data offset="40" size="60"/></layer>
            <layer type="Concat"><data axis="1" /></layer></net>"#;
        assert_eq!(weights_length(xml), 104);
        assert_eq!(weights_length("<net/>"), 0);
    }
}
