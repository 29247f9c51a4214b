//! Where a model computes: on the CPU, or how much of it on GPUs.

use anyhow::bail;
use spinfer_llama::{GPU_BACKENDS, Gpu};

use super::catalogue::ModelSettings;
use crate::config::{ExecutionTarget, NnConfig};

/// More layers than any model has.
pub const ALL_LAYERS: u32 = 1 << 20;

/// How many layers of a model are kept on these GPUs; with 0 the CPU computes alone. What the model's own
/// settings say stands above the configuration.
///
/// # Errors
///
/// When a GPU is asked for and there is none, or the settings contradict each other.
pub fn gpu_layers(model: &ModelSettings, config: &NnConfig, gpus: &[Gpu]) -> anyhow::Result<u32> {
    let target = model.execution_target.or(config.execution_target);
    // A model that is to stay on the CPU isn't meant by what is configured for others.
    let layers = match model.execution_target {
        Some(ExecutionTarget::Cpu) => model.gpu_layers,
        _ => model.gpu_layers.or(config.gpu_layers),
    };
    match (target, layers) {
        (Some(ExecutionTarget::Cpu), Some(layers @ 1..)) => {
            bail!("execution_target is \"cpu\", but gpu_layers is {layers}")
        }
        (Some(ExecutionTarget::Gpu), Some(0)) => {
            bail!("execution_target is \"gpu\", but gpu_layers is 0")
        }
        (Some(ExecutionTarget::Cpu), _) | (None, Some(0)) => Ok(0),
        (None, None) if gpus.is_empty() => Ok(0),
        _ if gpus.is_empty() => bail!("a GPU is asked for, but {}", missing(GPU_BACKENDS)),
        (_, layers) => Ok(layers.unwrap_or(ALL_LAYERS)),
    }
}

/// Why there is no GPU.
pub fn missing(backends: &[&str]) -> String {
    if backends.is_empty() {
        return "this program was built without a backend for one (cargo features cuda, vulkan, metal)"
            .to_owned();
    }
    format!(
        "the backends of this program ({}) find none: is its driver there?",
        backends.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(
        model: (Option<ExecutionTarget>, Option<u32>),
        config: (Option<ExecutionTarget>, Option<u32>),
        gpus: usize,
    ) -> Result<u32, String> {
        let gpu = Gpu { name: "G0".into(), description: "a GPU".into(), memory: 2, free: 1 };
        let model = ModelSettings {
            execution_target: model.0,
            gpu_layers: model.1,
            ..ModelSettings::default()
        };
        let config =
            NnConfig { execution_target: config.0, gpu_layers: config.1, ..NnConfig::default() };
        gpu_layers(&model, &config, &vec![gpu; gpus]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_gpu_is_used_where_there_is_one_unless_the_settings_say_otherwise() {
        const CPU: Option<ExecutionTarget> = Some(ExecutionTarget::Cpu);
        const GPU: Option<ExecutionTarget> = Some(ExecutionTarget::Gpu);
        for (model, config, without, with) in [
            ((None, None), (None, None), Ok(0), Ok(ALL_LAYERS)),
            ((None, None), (None, Some(0)), Ok(0), Ok(0)),
            ((None, None), (None, Some(7)), Err("gpu is asked"), Ok(7)),
            ((None, None), (CPU, None), Ok(0), Ok(0)),
            ((None, None), (CPU, Some(7)), Err("gpu_layers is 7"), Err("gpu_layers is 7")),
            ((None, None), (GPU, None), Err("gpu is asked"), Ok(ALL_LAYERS)),
            ((None, None), (GPU, Some(0)), Err("gpu_layers is 0"), Err("gpu_layers is 0")),
            ((CPU, None), (GPU, Some(7)), Ok(0), Ok(0)),
            ((CPU, Some(3)), (None, None), Err("gpu_layers is 3"), Err("gpu_layers is 3")),
            ((GPU, None), (CPU, None), Err("gpu is asked"), Ok(ALL_LAYERS)),
            ((None, Some(3)), (GPU, Some(7)), Err("gpu is asked"), Ok(3)),
        ] {
            for (gpus, expected) in [(0, &without), (2, &with)] {
                let found = choose(model, config, gpus);
                match (&found, expected) {
                    (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                    (Err(found), Err(words)) => {
                        assert!(found.to_lowercase().contains(words), "{found}");
                    }
                    _ => panic!("{found:?} {expected:?} {model:?} {config:?} {gpus}"),
                }
            }
        }
    }

    #[test]
    fn why_there_is_no_gpu_is_said() {
        assert!(missing(&[]).contains("built without"));
        assert!(missing(&["vulkan"]).contains("(vulkan)"));
    }
}
