//! For other hosts: what `wasmtime serve` needs to serve the component with a model for OpenVINO.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use spinfer_protocol::{Backend, ModelCard, tensor};

use crate::app::dependency::{Dependency, DependencyName};
use crate::app::source::Source;
use crate::component::compose;
use crate::models::catalogue::{self, ModelFolder};
use crate::models::exported;

/// Gives the component its variables, which such a host doesn't.
const VARIABLES: &str = include_str!("variables.wat");

/// What such a model takes by itself, and no host adds to.
const INPUTS: [&str; 3] = [tensor::ATTENTION_MASK, tensor::POSITION_IDS, tensor::BEAM_IDX];

/// The most rows of a request at a time; others wait for them.
const MAX_ROWS: u32 = 8;

/// Where the graph is, below the folder: by the model's id, since that is the graph's name.
const GRAPHS: &str = "graphs";

/// Where what the component sees as `/models` is.
const MODELS: &str = "models";

/// Puts into the folder `to` what another host needs to serve the component in that file with the model `id`
/// below `models`. Gives the command.
///
/// # Errors
///
/// When there is no such model for OpenVINO, or what is there can't be read or written.
pub fn export(component: &Path, models: &Path, id: &str, to: &Path) -> anyhow::Result<String> {
    let found = catalogue::find(&[models.to_owned()])?;
    let model = found.get(id).filter(|model| model.backends.contains(&Backend::Openvino));
    let model = model.with_context(|| {
        format!("there is no model {id:?} for OpenVINO in {}", models.display())
    })?;
    ensure!(
        !id.contains('/'),
        "{id:?}: other hosts name a model by its folder, so its id can have no /"
    );
    let (graph, visible) = (to.join(GRAPHS).join(id), to.join(MODELS).join(id));
    for folder in [&graph, &visible] {
        fs::create_dir_all(folder)
            .with_context(|| format!("can't make the folder {}", folder.display()))?;
    }
    put(&model.graph(), &graph.join("model.xml"))?;
    put(&model.graph().with_extension("bin"), &graph.join("model.bin"))?;
    let tokenizer = model.path.join("tokenizer.json");
    put(&tokenizer, &visible.join("tokenizer.json"))?;
    let card = serde_json::to_string_pretty(&card(model)?)?;
    let path = visible.join("model.json");
    fs::write(&path, card).with_context(|| format!("can't write {}", path.display()))?;
    let serves = to.join("spinfer.wasm");
    fs::write(&serves, with_variables(component)?)
        .with_context(|| format!("can't write {}", serves.display()))?;
    Ok(format!(
        "wasmtime serve -S cli -S p3 -S nn -S nn-graph=openvino::{} -W component-model-async --dir {}::/models {}",
        graph.display(),
        to.join(MODELS).display(),
        serves.display()
    ))
}

/// The component, composed with another that gives it its variables: all of them undefined.
fn with_variables(component: &Path) -> anyhow::Result<Vec<u8>> {
    let wasm = fs::read(component)
        .with_context(|| format!("can't read the component {}", component.display()))?;
    let variables = Dependency {
        name: DependencyName::parse("spin:variables")?,
        source: Source::of_file("variables.wat".into()),
        export: None,
        inherits: Default::default(),
    };
    let provider = wat::parse_str(VARIABLES)?;
    compose::compose(wasm, &[(&variables, provider)])
        .with_context(|| format!("in {}", component.display()))
}

/// A file in another place; linked where that can be, since weights are large.
fn put(from: &Path, to: &Path) -> anyhow::Result<()> {
    let _ = fs::remove_file(to);
    fs::hard_link(from, to)
        .or_else(|_| fs::copy(from, to).map(drop))
        .with_context(|| format!("can't put {} at {}", from.display(), to.display()))
}

fn card(model: &ModelFolder) -> anyhow::Result<ModelCard> {
    let in_folder = || model.path.display().to_string();
    let exported = exported::read(&model.path)?;
    let trained = exported.context().with_context(in_folder)?;
    let vocab_size = exported
        .vocab_size()
        .context("config.json: there is no vocab_size")
        .with_context(in_folder)?;
    let facts = exported.facts(vocab_size).with_context(in_folder)?;
    let context = model.settings.context.map_or(trained, |context| context.min(trained));
    let fim = model.settings.fim.clone().or_else(|| facts.fim());
    Ok(ModelCard {
        id: model.id.clone(),
        aliases: model.settings.aliases.clone(),
        created: 0,
        backend: Backend::Openvino,
        inputs: INPUTS.map(str::to_owned).to_vec(),
        rewinds: false,
        context,
        max_rows: MAX_ROWS,
        vocab_size,
        bos: facts.bos,
        eos: facts.eos,
        pad: facts.pad,
        end_of_generation: facts.end_of_generation,
        add_bos: facts.add_bos,
        add_eos: facts.add_eos,
        fim,
        chat_template: facts.chat_template,
    })
}

#[cfg(test)]
mod tests {
    use wasmparser::Payload;

    use super::*;

    #[test]
    fn another_host_gets_files_by_its_own_names() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("all/m");
        fs::create_dir_all(&model).unwrap();
        let config = r#"{"max_position_embeddings": 64, "vocab_size": 10, "eos_token_id": 2}"#;
        for (name, content) in [
            ("openvino_model.xml", "<net/>"),
            ("openvino_model.bin", "weights"),
            ("config.json", config),
            ("tokenizer.json", "{}"),
            ("model.toml", "context = 32"),
        ] {
            fs::write(model.join(name), content).unwrap();
        }
        let to = folder.path().join("stock");
        let component = folder.path().join("app.wasm");
        let app = r#"(component (import "spin:variables/variables@3.0.0" (instance
            (type $cases (variant (case "invalid-name" string) (case "undefined" string)
                (case "provider" string) (case "other" string)))
            (export "error" (type $error (eq $cases)))
            (export "get" (func async (param "name" string)
                (result (result string (error $error))))))))"#;
        fs::write(&component, wat::parse_str(app).unwrap()).unwrap();
        let options = export(&component, &folder.path().join("all"), "m", &to).unwrap();
        assert!(options.contains(&format!("nn-graph=openvino::{}", to.join("graphs/m").display())));
        let read = |name: &str| fs::read_to_string(to.join(name)).unwrap();
        assert_eq!(read("graphs/m/model.bin"), "weights");
        let mut graph: Vec<_> = fs::read_dir(to.join("graphs/m"))
            .unwrap()
            .map(|file| file.unwrap().file_name())
            .collect();
        graph.sort();
        assert_eq!(graph, ["model.bin", "model.xml"], "and nothing else");
        let card: ModelCard = serde_json::from_str(&read("models/m/model.json")).unwrap();
        assert_eq!((card.context, card.vocab_size, card.eos), (32, 10, Some(2)));
        assert!(!card.takes(tensor::LOGITS_TO_KEEP) && card.takes(tensor::BEAM_IDX));

        let whole = fs::read(to.join("spinfer.wasm")).unwrap();
        let sections = wasmparser::Parser::new(0).parse_all(&whole).map(Result::unwrap);
        // Its own come before the components in it.
        let own = sections.take_while(|part| !matches!(part, Payload::ComponentSection { .. }));
        let imports = own.filter(|part| matches!(part, Payload::ComponentImportSection(_)));
        assert_eq!(imports.count(), 0, "all that it imports is given");

        let all = folder.path().join("all");
        let error = export(&component, &all, "n", &to).unwrap_err().to_string();
        assert!(error.contains("no model \"n\""), "{error}");
    }
}
