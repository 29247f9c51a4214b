//! The backend with the real default model, through the convention.

use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use spinfer_llama::{Batch, KvType};
use spinfer_tests::models::weights;

use super::*;
use crate::nn::metrics::NnMetrics;
use crate::nn::outputs::Outputs;
use crate::nn::{Element, NnErrorCode};

const PROMPT: &str =
    "The history of the railway begins with wagonways in the mines of Europe, where";

/// A loaded model. Only one at a time: llama.cpp's threads spin at barriers, so two models on the same
/// cores are slower than one after the other by an order of magnitude.
struct Rig {
    graph: Arc<GgmlGraph>,
    metrics: ModelMetrics,
    _alone: Alone,
}

/// Whoever has this has the machine.
struct Alone {
    _guard: MutexGuard<'static, ()>,
}

impl Alone {
    fn wait() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        Self { _guard: ALONE.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

fn settings() -> Settings {
    Settings {
        row_length: 512,
        context: ContextParams {
            cells: 512 * 5,
            sequences: 5,
            batch: 64,
            micro_batch: 64,
            outputs: 64,
            unified: false,
            threads: 2,
            kv_type: KvType::F16,
        },
        max_rows: 4,
        chunk: 64,
        prefix_cache: true,
        longest_wait: Duration::from_secs(60),
        gather: Duration::from_millis(5),
    }
}

fn rig(settings: Settings) -> Rig {
    let alone = Alone::wait();
    let metrics = NnMetrics::register(&prometheus::Registry::new()).unwrap().of("test");
    let path = weights("smollm2-135m-instruct");
    let load = ModelParams::default();
    let graph =
        GgmlGraph::load(&path, &load, settings, metrics.clone(), Arrivals::default()).unwrap();
    Rig { graph: Arc::new(graph), metrics, _alone: alone }
}

/// A scheduler without a thread of its own.
struct HandDriven {
    scheduler: Scheduler,
    sender: mpsc::Sender<Message>,
    arrivals: Arrivals,
    metrics: ModelMetrics,
    _alone: Alone,
}

impl HandDriven {
    fn new(settings: Settings) -> Self {
        let alone = Alone::wait();
        let metrics = NnMetrics::register(&prometheus::Registry::new()).unwrap().of("test");
        let path = weights("smollm2-135m-instruct");
        let model = Arc::new(Model::load(&path, &ModelParams::default()).unwrap());
        let context = Context::new(model, &settings.context).unwrap();
        let (sender, inbox) = mpsc::channel();
        let arrivals = Arrivals::default();
        let scheduler = Scheduler::new(context, settings, inbox, metrics.clone(), arrivals.clone());
        Self { scheduler, sender, arrivals, metrics, _alone: alone }
    }

    fn send(&self, message: Message) {
        self.sender.send(message).unwrap();
    }

    async fn reserve(&mut self, context: ContextId, sequences: u32) {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Reserve { context, sequences, arrival: None, reply });
        self.scheduler.turn().unwrap();
        assert_eq!(answer.await.unwrap(), Ok(()));
    }

    /// Asks for the logits after the tokens of a context's first call, which has one row.
    fn compute(&self, context: ContextId, tokens: Vec<i32>) -> oneshot::Receiver<Answer> {
        let (message, answer) = first_call(context, tokens);
        self.send(message);
        answer
    }
}

fn first_call(context: ContextId, tokens: Vec<i32>) -> (Message, oneshot::Receiver<Answer>) {
    let (reply, answer) = oneshot::channel();
    let columns = tokens.len() as u32;
    let rows = vec![convention::RowStep { parent: None, start: 0, tokens }];
    let wanted = convention::Wanted::Logits;
    let step = convention::Step { rows, keep: 1, wanted, columns };
    (Message::Compute { context, step, scope: None, reply }, answer)
}

type Answer = Result<Outputs, NnError>;

fn tokenize(text: &str) -> Vec<i64> {
    let params = ModelParams { vocab_only: true, ..ModelParams::default() };
    let model = Model::load(&weights("smollm2-135m-instruct"), &params).unwrap();
    model.tokenize(text, false, true).unwrap().into_iter().map(i64::from).collect()
}

fn i64s(dimensions: &[usize], values: &[i64]) -> Tensor {
    let dimensions = dimensions.iter().map(|&size| size as u32).collect();
    Tensor::new(dimensions, Element::I64, bytemuck::cast_slice(values).to_vec())
}

fn i32s(values: &[i32]) -> Tensor {
    let data = bytemuck::cast_slice(values).to_vec();
    Tensor::new(vec![values.len() as u32], Element::I32, data)
}

/// One call; the logits of the last position of each row.
async fn compute(
    context: &mut GgmlContext,
    inputs: &[(&str, Tensor)],
) -> Result<Vec<Vec<f32>>, NnError> {
    let keep = i64s(&[1], &[1]);
    let mut named: Vec<_> = inputs.iter().map(|(name, t)| (name.to_string(), t)).collect();
    if inputs.iter().any(|(name, _)| *name == "input_ids") {
        named.push(("logits_to_keep".to_owned(), &keep));
    }
    let outputs = context.compute(&named).await?;
    let Some((name, logits)) = outputs.into_iter().next() else { return Ok(Vec::new()) };
    assert_eq!(name, "logits");
    assert_eq!(logits.dimensions[1], 1);
    let (floats, _) = logits.data.as_chunks::<4>();
    let values: Vec<f32> = floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Ok(values.chunks(logits.dimensions[2] as usize).map(<[f32]>::to_vec).collect())
}

async fn row(context: &mut GgmlContext, ids: &[i64]) -> Vec<f32> {
    compute(context, &[("input_ids", i64s(&[1, ids.len()], ids))]).await.unwrap().remove(0)
}

fn argmax(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

/// Equal as far as another shape of the batch lets them be.
fn assert_near(a: &[f32], b: &[f32]) {
    let difference = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference < 0.5, "logits differ by {difference}");
    assert_eq!(argmax(a), argmax(b));
}

#[tokio::test]
async fn logits_are_llama_cpp_s_own_to_the_last_bit() {
    let rig = rig(settings());
    let ids = tokenize(&PROMPT.repeat(8));
    assert!(ids.len() > 64, "more than one chunk");
    let served = row(&mut rig.graph.init_context("c".into(), None), &ids).await;

    let model = Model::load(&weights("smollm2-135m-instruct"), &ModelParams::default()).unwrap();
    let mut context = Context::new(Arc::new(model), &settings().context).unwrap();
    let mut position = 0;
    let mut own = Vec::new();
    for chunk in ids.chunks(64) {
        let mut batch = Batch::new();
        for &id in chunk {
            batch.push(id as i32, position, 0, position as usize == ids.len() - 1);
            position += 1;
        }
        context.decode(&batch).unwrap();
        own = context.logits(chunk.len() - 1).map(<[f32]>::to_vec).unwrap_or_default();
    }
    assert_eq!(served, own);
}

#[tokio::test]
async fn ragged_rows_are_what_each_is_alone() {
    let rig = rig(settings());
    let (long, short) = (tokenize(PROMPT), tokenize("2 + 2 ="));
    let padding = long.len() - short.len();
    let ids = [long.clone(), vec![0; padding], short.clone()].concat();
    let mask = [vec![1; long.len()], vec![0; padding], vec![1; short.len()]].concat();
    let shape = [2, long.len()];
    let mut both = rig.graph.init_context("c".into(), None);
    let inputs = [("input_ids", i64s(&shape, &ids)), ("attention_mask", i64s(&shape, &mask))];
    let together = compute(&mut both, &inputs).await.unwrap();
    assert_near(&together[0], &row(&mut rig.graph.init_context("c".into(), None), &long).await);
    assert_near(&together[1], &row(&mut rig.graph.init_context("c".into(), None), &short).await);
}

#[tokio::test]
async fn forks_go_on_as_separate_sequences_do() {
    let rig = rig(settings());
    let prompt = tokenize(PROMPT);
    let mut forked = rig.graph.init_context("c".into(), None);
    let reserve = i64s(&[3], &[100; 3]);
    compute(&mut forked, &[("reserve", reserve)]).await.unwrap();
    row(&mut forked, &prompt).await;
    let next = [340, 260, 511];
    let inputs = [("input_ids", i64s(&[3, 1], &next)), ("beam_idx", i32s(&[0, 0, 0]))];
    let forks = compute(&mut forked, &inputs).await.unwrap();
    // Dropping the first and going on with the others in another order.
    let inputs = [("input_ids", i64s(&[2, 1], &[28, 30])), ("beam_idx", i32s(&[2, 1]))];
    let later = compute(&mut forked, &inputs).await.unwrap();
    drop(forked);
    for (index, &id) in next.iter().enumerate() {
        let mut alone = rig.graph.init_context("c".into(), None);
        row(&mut alone, &prompt).await;
        assert_near(&forks[index], &row(&mut alone, &[id]).await);
        if index > 0 {
            let (then, at) = [(0, 0), (30, 1), (28, 0)][index];
            assert_near(&later[at], &row(&mut alone, &[then]).await);
        }
    }
}

#[tokio::test]
async fn a_rewound_row_is_as_if_it_had_never_gone_on() {
    let rig = rig(settings());
    let prompt = tokenize(PROMPT);
    let at = prompt.len() as i64 - 3;
    let mut rewound = rig.graph.init_context("c".into(), None);
    row(&mut rewound, &prompt).await;
    let inputs =
        [("input_ids", i64s(&[1, 2], &[28, 30])), ("position_ids", i64s(&[1, 2], &[at, at + 1]))];
    let after = compute(&mut rewound, &inputs).await.unwrap().remove(0);
    let mut fresh = rig.graph.init_context("c".into(), None);
    row(&mut fresh, &prompt[..at as usize]).await;
    assert_near(&after, &row(&mut fresh, &[28, 30]).await);
}

#[tokio::test]
async fn many_contexts_at_once_are_what_each_is_alone() {
    let rig = rig(settings());
    let prompts =
        ["The capital of France is", "def main():", "Once upon a time", "1, 2, 3,", "A", "B C"];
    let mut tasks = Vec::new();
    for prompt in prompts {
        let graph = rig.graph.clone();
        tasks.push(tokio::spawn(async move {
            let mut context = graph.init_context("c".into(), None);
            let mut logits = row(&mut context, &tokenize(prompt)).await;
            for _ in 0..8 {
                logits = row(&mut context, &[argmax(&logits) as i64]).await;
            }
            logits
        }));
    }
    for (task, prompt) in tasks.into_iter().zip(prompts) {
        let together = task.await.unwrap();
        let mut context = rig.graph.init_context("c".into(), None);
        let mut logits = row(&mut context, &tokenize(prompt)).await;
        for _ in 0..8 {
            logits = row(&mut context, &[argmax(&logits) as i64]).await;
        }
        assert_near(&together, &logits);
    }
}

#[tokio::test]
async fn a_reservation_waits_for_room_and_no_longer_than_it_may() {
    let rig = rig(Settings { longest_wait: Duration::from_millis(20), ..settings() });
    let reserve = |rows: usize| [("reserve", i64s(&[rows], &vec![10; rows]))];
    let mut first = rig.graph.init_context("c".into(), None);
    compute(&mut first, &reserve(3)).await.unwrap();
    let mut second = rig.graph.init_context("c".into(), None);
    let error = compute(&mut second, &reserve(2)).await.unwrap_err();
    assert_eq!(error.code, NnErrorCode::Timeout);
    drop(first);
    let mut third = rig.graph.init_context("c".into(), None);
    compute(&mut third, &reserve(4)).await.unwrap();
    assert_eq!(rig.metrics.sequences_held.get(), 4);
    let error =
        compute(&mut rig.graph.init_context("c".into(), None), &reserve(5)).await.unwrap_err();
    assert_eq!(error.code, NnErrorCode::TooLarge);
}

#[tokio::test]
async fn messages_that_came_before_the_scheduler_looked_are_answered_at_once() {
    // Nobody may have to wait this long with all sequences free.
    let settings = Settings { longest_wait: Duration::from_secs(3600), ..settings() };
    let HandDriven { scheduler, sender, metrics: _, arrivals: _, _alone } =
        HandDriven::new(settings);
    let (reply, answer) = oneshot::channel();
    sender.send(Message::Reserve { context: 0, sequences: 1, arrival: None, reply }).unwrap();
    let thread = std::thread::spawn(move || scheduler.run());
    let answer = tokio::time::timeout(Duration::from_secs(60), answer).await;
    assert_eq!(answer.unwrap().unwrap(), Ok(()));
    sender.send(Message::Stop).unwrap();
    thread.join().unwrap();
}

/// A request that has come, but whose instance has not asked yet, is computed in the same step.
#[tokio::test]
async fn a_step_waits_for_requests_that_have_just_come() {
    // Nobody waits that long: the wait ends when the request is there.
    let mut hand = HandDriven::new(Settings { gather: Duration::from_secs(60), ..settings() });
    hand.reserve(0, 1).await;
    let arrival = Some(hand.arrivals.enter(Instant::now()));
    let first = hand.compute(0, vec![28; 9]);
    let sender = hand.sender.clone();
    let instance = std::thread::spawn(move || {
        let (reply, admitted) = oneshot::channel();
        sender.send(Message::Reserve { context: 1, sequences: 1, arrival, reply }).unwrap();
        assert_eq!(admitted.blocking_recv().unwrap(), Ok(()));
        let (message, answer) = first_call(1, vec![28; 7]);
        sender.send(message).unwrap();
        answer
    });
    hand.scheduler.turn().unwrap();
    assert_eq!(hand.metrics.step_tokens.get_sample_count(), 1);
    assert_eq!(hand.metrics.step_tokens.get_sample_sum(), 16.0);
    assert!(first.await.unwrap().is_ok());
    assert!(instance.join().unwrap().await.unwrap().is_ok());
}

/// Whoever does not come in time isn't waited for again, or one could hold up every step.
#[tokio::test]
async fn a_request_that_takes_its_time_is_waited_for_once() {
    let mut hand = HandDriven::new(settings());
    hand.reserve(0, 1).await;
    let _stuck = hand.arrivals.enter(Instant::now());
    let _prompt = hand.compute(0, vec![28; 300]);
    hand.scheduler.turn().unwrap();
    assert_eq!(hand.metrics.step_tokens.get_sample_count(), 1, "more of the prompt is left");
    assert_eq!(hand.scheduler.wait_until(false), None);
}

/// A request has arrived when its instance has asked for sequences.
#[tokio::test]
async fn requests_arrive_with_their_first_reservation() {
    let rig = rig(settings());
    let (arrivals, start) = (Arrivals::default(), Instant::now());
    let on_their_way = || arrivals.any_since(start);
    let arrival = arrivals.enter(start + Duration::from_nanos(1));
    let mut context = rig.graph.init_context("c".into(), Some(arrival));
    assert!(on_their_way());
    compute(&mut context, &[("reserve", i64s(&[1], &[10]))]).await.unwrap();
    assert!(!on_their_way());
}

/// The scheduler is driven turn by turn here, so what happens at which border is decided.
#[tokio::test]
async fn what_is_given_up_in_prefill_leaves_at_the_next_border() {
    const BATCH: u64 = 32;
    let mut hand = HandDriven::new(Settings {
        context: ContextParams { batch: BATCH as u32, ..settings().context },
        ..settings()
    });
    hand.reserve(0, 1).await;
    let tokens: Vec<i32> = (0..500).map(|index| 1000 + index % 100).collect();
    let given_up = hand.compute(0, tokens);
    hand.scheduler.turn().unwrap();
    hand.scheduler.turn().unwrap();
    assert_eq!(hand.metrics.prefill_tokens.get(), 2 * BATCH);
    assert_eq!(hand.metrics.sequences_held.get(), 1);

    drop(given_up);
    hand.scheduler.turn().unwrap();
    assert_eq!(hand.metrics.cancelled.get(), 1);
    assert_eq!(hand.metrics.prefill_tokens.get(), 2 * BATCH, "computed for nobody");
    hand.send(Message::Close { context: 0 });
    hand.scheduler.turn().unwrap();
    assert_eq!(hand.metrics.sequences_held.get(), 0);

    hand.reserve(1, 4).await;
    let mut other = hand.compute(1, vec![28]);
    hand.scheduler.turn().unwrap();
    assert!(other.try_recv().unwrap().is_ok());
    assert_eq!(hand.metrics.generation_tokens.get(), 0, "a prompt of one token is a prompt");
    assert_eq!(hand.metrics.prefill_tokens.get(), 2 * BATCH + 1);
}

/// A context that is closed in the middle of its prefill costs no further step either.
#[tokio::test]
async fn what_is_closed_in_prefill_leaves_at_the_next_border() {
    let mut hand = HandDriven::new(settings());
    hand.reserve(0, 1).await;
    let mut closed = hand.compute(0, vec![28; 200]);
    hand.scheduler.turn().unwrap();
    hand.send(Message::Close { context: 0 });
    hand.scheduler.turn().unwrap();
    assert_eq!(hand.metrics.step_tokens.get_sample_count(), 1);
    assert_eq!(hand.metrics.cancelled.get(), 1);
    assert_eq!(hand.metrics.sequences_held.get(), 0);
    assert_eq!(closed.try_recv(), Err(oneshot::error::TryRecvError::Closed));
}

#[tokio::test]
async fn a_context_that_failed_says_so() {
    let rig = rig(settings());
    let mut context = rig.graph.init_context("c".into(), None);
    let too_long = vec![28; 513];
    let inputs = [("input_ids", i64s(&[1, 513], &too_long))];
    let error = compute(&mut context, &inputs).await.unwrap_err();
    assert_eq!(error.code, NnErrorCode::TooLarge);
    row(&mut context, &[28]).await;
    drop(rig);
}

/// A prompt's last logits, and how many of its tokens were there already.
async fn salted(
    graph: &Arc<GgmlGraph>,
    component: &str,
    salt: &[u8],
    ids: &[i64],
) -> (Vec<f32>, i64) {
    let mut context = graph.init_context(component.into(), None);
    let (row, cached) = salted_in(&mut context, salt, ids).await;
    (row, cached)
}

async fn salted_in(context: &mut GgmlContext, salt: &[u8], ids: &[i64]) -> (Vec<f32>, i64) {
    let inputs = [
        ("input_ids".to_owned(), i64s(&[1, ids.len()], ids)),
        ("logits_to_keep".to_owned(), i64s(&[1], &[1])),
        ("cache_salt".to_owned(), Tensor::new(vec![salt.len() as u32], Element::U8, salt.to_vec())),
    ];
    let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (name.clone(), tensor)).collect();
    let outputs = context.compute(&inputs).await.unwrap();
    let get = |name: &str| outputs.iter().find(|(found, _)| found == name).unwrap().1.clone();
    let logits = get("logits");
    let (floats, _) = logits.data.as_chunks::<4>();
    let logits = floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    (logits, get("cached_tokens").to_i64("cached_tokens").unwrap()[0])
}

/// Requests in flight have sequences that follow each other; what is remembered moves out of their way.
#[tokio::test]
async fn what_is_remembered_makes_way_and_is_still_known() {
    let rig = rig(settings());
    let prompts: Vec<Vec<i64>> =
        (0..5).map(|n| tokenize(&format!("{n}: {}", PROMPT.repeat(2)))).collect();
    for ids in &prompts {
        assert_eq!(salted(&rig.graph, "c", b"a", ids).await.1, 0);
    }
    // Sequence 1 was used last, so that nobody else is given it; the next are given 0, and then 2.
    let remembered = &prompts[1];
    let (expected, cached) = salted(&rig.graph, "c", b"a", remembered).await;
    assert_eq!(cached, remembered.len() as i64 - 1);
    let mut both = [(); 2].map(|()| rig.graph.init_context("c".into(), None));
    for (context, salt) in both.iter_mut().zip([b"b", b"c"]) {
        assert_eq!(salted_in(context, salt, &prompts[4]).await.1, 0);
    }
    let (found, cached) = salted(&rig.graph, "c", b"a", remembered).await;
    assert_eq!(cached, remembered.len() as i64 - 1, "moved, and not lost");
    assert_near(&found, &expected);
    assert_eq!(salted(&rig.graph, "c", b"a", &prompts[2]).await.1, 0, "given away instead");
}

#[tokio::test]
async fn a_prompt_begins_with_what_was_computed_before() {
    let rig = rig(settings());
    let ids = tokenize(&PROMPT.repeat(8));
    let length = ids.len() as i64;
    let (first, cached) = salted(&rig.graph, "c", b"a", &ids).await;
    assert_eq!(cached, 0);
    let computed = rig.metrics.prefill_tokens.get() + rig.metrics.generation_tokens.get();
    assert_eq!(computed, ids.len() as u64);

    // All but the token whose logits are wanted.
    let (again, cached) = salted(&rig.graph, "c", b"a", &ids).await;
    assert_eq!(cached, length - 1);
    assert_eq!(argmax(&first), argmax(&again));
    let computed = rig.metrics.prefill_tokens.get() + rig.metrics.generation_tokens.get();
    assert_eq!(computed, ids.len() as u64 + 1);
    assert_eq!(rig.metrics.prefix_hits.get(), length as u64 - 1);

    // A longer prompt, and one that parts half-way.
    let longer = [ids.clone(), vec![28, 30, 31]].concat();
    let (_, cached) = salted(&rig.graph, "c", b"a", &longer).await;
    assert_eq!(cached, length);
    let mut parted = ids.clone();
    parted[ids.len() / 2] += 1;
    let (other, cached) = salted(&rig.graph, "c", b"a", &parted).await;
    assert_eq!(cached, length / 2);
    let half = ids.len() / 2;
    assert_eq!(other, rewound(&rig, &ids, half, &parted[half..]).await);
    let last = ids.len() - 1;
    assert_eq!(again, rewound(&rig, &ids, last, &ids[last..]).await);
}

/// What comes of going on with `rest` after the first `cut` of tokens that were computed in one call:
/// what the cache does, without it. Chunks of other shapes would move logits more than anything else.
async fn rewound(rig: &Rig, computed: &[i64], cut: usize, rest: &[i64]) -> Vec<f32> {
    let mut context = rig.graph.init_context("alone".into(), None);
    row(&mut context, computed).await;
    let positions: Vec<i64> = (cut as i64..).take(rest.len()).collect();
    let shape = [1, rest.len()];
    let inputs = [("input_ids", i64s(&shape, rest)), ("position_ids", i64s(&shape, &positions))];
    compute(&mut context, &inputs).await.unwrap().remove(0)
}

#[tokio::test]
async fn nothing_is_shared_across_salts_components_or_without_a_salt() {
    let rig = rig(settings());
    let ids = tokenize(&PROMPT.repeat(4));
    for (component, salt) in [("c", &b"a"[..]), ("c", b"b"), ("d", b"a"), ("c", b"")] {
        assert_eq!(salted(&rig.graph, component, salt, &ids).await.1, 0, "{component} {salt:?}");
    }
    row(&mut rig.graph.init_context("e".into(), None), &ids).await;
    assert_eq!(salted(&rig.graph, "e", b"", &ids).await.1, 0, "what had no salt is nobody's");
}

#[tokio::test]
async fn what_is_in_use_is_copied() {
    let rig = rig(settings());
    let ids = tokenize(&PROMPT.repeat(4));
    let mut held = rig.graph.init_context("c".into(), None);
    let (first, _) = salted_in(&mut held, b"a", &ids).await;
    let next = row(&mut held, &[28]).await;
    let (again, cached) = salted(&rig.graph, "c", b"a", &ids).await;
    assert_eq!(cached, ids.len() as i64 - 1);
    assert_eq!(argmax(&first), argmax(&again));
    let last = ids.len() - 1;
    assert_eq!(again, rewound(&rig, &ids, last, &ids[last..]).await);
    // The one in use goes on undisturbed.
    let after = row(&mut held, &[30]).await;
    let mut plain = rig.graph.init_context("c".into(), None);
    row(&mut plain, &ids).await;
    assert_near(&next, &row(&mut plain, &[28]).await);
    assert_near(&after, &row(&mut plain, &[30]).await);
}

#[tokio::test]
async fn the_cache_gives_way_to_those_who_need_sequences() {
    let rig = rig(settings());
    let prompts: Vec<_> =
        (0..7).map(|at| tokenize(&format!("{at}. {}", PROMPT.repeat(2)))).collect();
    for ids in &prompts {
        salted(&rig.graph, "c", b"a", ids).await;
    }
    // Five sequences hold the last five; the oldest two are gone.
    assert!(salted(&rig.graph, "c", b"a", &prompts[6]).await.1 > 16);
    assert!(salted(&rig.graph, "c", b"a", &prompts[2]).await.1 > 16);
    assert_eq!(salted(&rig.graph, "c", b"a", &prompts[0]).await.1, 0);
    // A request for as many as one can have takes them.
    let mut all = rig.graph.init_context("c".into(), None);
    compute(&mut all, &[("reserve", i64s(&[4], &[10; 4]))]).await.unwrap();
    let ids = i64s(&[4, 1], &[28; 4]);
    assert_eq!(compute(&mut all, &[("input_ids", ids)]).await.unwrap().len(), 4);
}

#[tokio::test]
async fn the_cache_can_be_off() {
    let rig = rig(Settings { prefix_cache: false, ..settings() });
    let ids = tokenize(&PROMPT.repeat(4));
    // A call with a salt is told so all the same.
    let (first, cached) = salted(&rig.graph, "c", b"a", &ids).await;
    assert_eq!(cached, 0);
    let (again, cached) = salted(&rig.graph, "c", b"a", &ids).await;
    assert_eq!((cached, again), (0, first));
    assert_eq!(rig.metrics.prefill_tokens.get(), 2 * ids.len() as u64);
}
