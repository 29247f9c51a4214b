use super::*;
use crate::request::Choices;
use crate::sampling::{SamplingParams, Temperature};
use crate::testing::{self, FakeContext, block_on, byte, certain, letters};

/// Keeps all deltas.
#[derive(Default)]
struct Deltas(Vec<Delta>);

impl Sink for Deltas {
    async fn send(&mut self, delta: Delta) -> Result<(), ClientGone> {
        self.0.push(delta);
        Ok(())
    }
}

impl Deltas {
    fn text(&self, index: usize) -> String {
        self.0
            .iter()
            .filter(|delta| delta.index == index)
            .map(|delta| delta.text.as_str())
            .collect()
    }
}

fn plan(prompts: &[(&str, usize)], choices: usize, temperature: f64) -> Plan {
    let prompts = prompts
        .iter()
        .map(|(text, max_tokens)| PlannedPrompt {
            tokens: text.bytes().map(byte).collect(),
            added: 0,
            text: text.as_bytes().to_vec(),
            characters: text.chars().count(),
            max_tokens: *max_tokens,
        })
        .collect::<Vec<_>>();
    let sampling = SamplingParams {
        temperature: Temperature::new(temperature).unwrap(),
        ..Default::default()
    };
    Plan {
        waves: Wave::all(prompts.len(), choices, 16),
        prompts,
        choices: Choices { n: choices, candidates: choices },
        read: sampling.decisive().map_or(Read::Whole, Read::Top),
        sampling,
        seed: 5,
        is_seeded: true,
        stops: Stops { tokens: vec![0, 2], ..Stops::default() },
        shown: Shown::default(),
        cache_salt: vec![],
    }
}

fn generate(plan: &Plan, rule: testing::Rule) -> (Deltas, Usage, usize) {
    let model = testing::model();
    let mut context = FakeContext::new(rule);
    context.reserve(&plan.lengths()).unwrap();
    let mut deltas = Deltas::default();
    let usage = block_on(run(plan, &model, &mut context, &mut deltas)).unwrap();
    (deltas, usage, context.steps())
}

#[test]
fn no_step_is_computed_for_nothing() {
    for (max_tokens, expected) in [(0, 0), (1, 1), (2, 2), (5, 5)] {
        let (_, usage, steps) = generate(&plan(&[("ab", max_tokens)], 1, 0.0), letters);
        assert_eq!((usage.completion_tokens, steps), (max_tokens, expected));
    }
    let (_, usage, steps) = generate(&plan(&[("ab", 9)], 1, 0.0), |_| certain(2));
    assert_eq!((usage.completion_tokens, steps), (1, 1));
}

/// Each row is what it would be alone, while others end before it.
#[test]
fn rows_do_not_disturb_each_other() {
    let prompts = [("a", 9), ("bcd", 2), ("ef", 5)];
    for temperature in [0.0, 1.0] {
        let (together, usage, steps) = generate(&plan(&prompts, 2, temperature), letters);
        assert_eq!(usage, Usage { prompt_tokens: 6, completion_tokens: 32, cached_tokens: None });
        assert_eq!(steps, 9);
        for (i, prompt) in prompts.iter().enumerate() {
            let (alone, ..) = generate(&plan(&[*prompt], 2, temperature), letters);
            for j in 0..2 {
                assert_eq!(together.text(i * 2 + j), alone.text(j), "{prompt:?} {j}");
                assert_eq!(together.text(i * 2 + j).len(), prompt.1);
            }
        }
    }
}

#[test]
fn choices_of_one_prompt_differ_unless_greedy() {
    let (sampled, ..) = generate(&plan(&[("a", 9)], 3, 1.0), letters);
    assert_ne!(sampled.text(0), sampled.text(1));
    assert_ne!(sampled.text(1), sampled.text(2));
    let (greedy, ..) = generate(&plan(&[("a", 9)], 3, 0.0), letters);
    assert_eq!(greedy.text(0), greedy.text(2));
}

#[test]
fn a_choice_ends_once() {
    let (deltas, ..) = generate(&plan(&[("a", 3), ("b", 6)], 1, 1.0), letters);
    for index in 0..2 {
        let reasons = deltas
            .0
            .iter()
            .filter(|delta| delta.index == index)
            .map(|delta| delta.finish)
            .collect::<Vec<_>>();
        let (last, before) = reasons.split_last().unwrap();
        assert_eq!(*last, Some(FinishReason::Length));
        assert!(before.iter().all(Option::is_none));
    }
}

/// What a backend computes for so many candidates of one prompt.
fn computed(
    prompt: &str,
    candidates: usize,
    max_rows: usize,
    rewinds: bool,
) -> (usize, Vec<String>) {
    let mut plan = plan(&[(prompt, 3)], candidates, 1.0);
    plan.waves = Wave::all(1, candidates, max_rows);
    let mut model = testing::model();
    model.card.rewinds = rewinds;
    let mut context = FakeContext::new(letters);
    context.rewinds = rewinds;
    context.reserve(&plan.lengths()).unwrap();
    let mut deltas = Deltas::default();
    block_on(run(&plan, &model, &mut context, &mut deltas)).unwrap();
    let texts = (0..candidates).map(|index| deltas.text(index)).collect();
    (context.computed(), texts)
}

#[test]
fn a_prompt_is_computed_once_for_all_its_candidates() {
    let prompt = "x".repeat(100);
    // The last token of a candidate is never put in.
    let (tokens, together) = computed(&prompt, 8, 8, true);
    assert_eq!(tokens, 100 + 8 * 2);
    let (tokens, in_waves) = computed(&prompt, 8, 3, true);
    assert_eq!(tokens, 100 + 8 * 2);
    assert_eq!(together, in_waves);
    // Where memory can't be cut back, each wave begins anew.
    let (tokens, anew) = computed(&prompt, 8, 3, false);
    assert_eq!(tokens, 3 * 100 + 8 * 2);
    assert_eq!(together, anew);
}
