//! The thread that owns a model's llama context.
//!
//! It merges the rows of all requests in flight into each decode: first every row that wants one
//! token, then prompts up to the batch size, oldest first ([`batching`]). Between two steps it takes
//! messages; that border is where rows come, fork and go, and where a request that was given up
//! leaves without costing the others anything.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use spinfer_llama::{Batch, Context, DecodeError, LoadError, SequenceId, Token};
use tokio::sync::oneshot;

use super::Settings;
use super::admission::{Admission, Waiting};
use super::batching::{self, Part, Wish};
use super::memory::{Match, Memory, Scope};
use super::message::{ContextId, Message};
use super::sequences::{Operation, Row, plan};
use crate::nn::convention::Step;
use crate::nn::metrics::{Held as Holdings, ModelMetrics, Share, observe};
use crate::nn::outputs::{Outputs, Scratch};
use crate::nn::{Arrivals, NnError};

/// An admitted execution context.
struct Held {
    rows: Vec<Row>,
    /// Its sequences that hold no row.
    spare: Vec<SequenceId>,
    /// Whether llama.cpp's context failed, so that the rows' tokens are gone.
    lost: bool,
}

impl Held {
    /// Whether nothing was computed yet.
    fn begins(&self) -> bool {
        self.rows.is_empty()
    }
}

/// A reservation in the queue.
struct Reservation {
    context: ContextId,
    reply: oneshot::Sender<Result<(), NnError>>,
    since: Instant,
}

/// A call that is being computed.
struct Running {
    context: ContextId,
    /// The new tokens of each row, and how many of them are done.
    rows: Vec<(Vec<Token>, usize)>,
    /// Whether the rows go on, and don't begin.
    goes_on: bool,
    outputs: Outputs,
    reply: oneshot::Sender<Result<Outputs, NnError>>,
}

impl Running {
    fn is_done(&self) -> bool {
        self.rows.iter().all(|(tokens, done)| *done == tokens.len())
    }
}

/// Where the logits of a batch entry belong.
struct Output {
    entry: usize,
    running: usize,
    /// The place in `[B, K]`.
    cell: usize,
}

/// The scheduler of one model.
pub struct Scheduler {
    memory: Memory,
    settings: Settings,
    inbox: Receiver<Message>,
    metrics: ModelMetrics,
    share: Share,
    admission: Admission<Reservation>,
    contexts: HashMap<ContextId, Held>,
    /// In the order of arrival.
    running: Vec<Running>,
    /// When the last step ended, while a row of it may go on.
    last_ended: Option<Instant>,
    /// Contexts that were just admitted, or whose last step has just ended, so that their next is likely
    /// to come soon.
    expected: HashSet<ContextId>,
    /// Requests that have not come to any scheduler yet; those since the last time that a wait was in
    /// vain are likely to come soon, too.
    arrivals: Arrivals,
    waited_in_vain: Instant,
    /// For how long a step waits for those.
    expected_until: Instant,
    batch: Batch,
    outputs: Vec<Output>,
    /// Sequences that have a token in the batch for the sake of its order, and what they hold besides.
    fillers: Vec<(SequenceId, usize)>,
    scratch: Scratch,
    stopping: bool,
}

/// How soon to look again whether requests are still on their way.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// What idle sequences compute for the sake of the batch's order: any token.
const FILLER: Token = 0;

impl Scheduler {
    /// A scheduler over a fresh llama context.
    pub fn new(
        llama: Context,
        settings: Settings,
        inbox: Receiver<Message>,
        metrics: ModelMetrics,
        arrivals: Arrivals,
    ) -> Self {
        Self {
            admission: Admission::new(llama.sequences()),
            memory: Memory::new(llama),
            settings,
            inbox,
            share: Share::new(metrics.clone()),
            metrics,
            contexts: HashMap::new(),
            running: Vec::new(),
            last_ended: None,
            expected: HashSet::new(),
            arrivals,
            waited_in_vain: Instant::now(),
            expected_until: Instant::now(),
            batch: Batch::new(),
            outputs: Vec::new(),
            fillers: Vec::new(),
            scratch: Scratch::default(),
            stopping: false,
        }
    }

    /// Serves until told to stop, or until nobody can send any more.
    pub fn run(mut self) {
        while !self.stopping {
            if let Err(error) = self.turn() {
                self.fail(&error);
                if let DecodeError::Fatal(_) = error {
                    match self.recreate() {
                        Ok(scheduler) => self = scheduler,
                        Err(error) => {
                            tracing::error!(%error, "no new context can be made; the model stops");
                            return;
                        }
                    }
                }
            }
        }
    }

    /// The border between two steps, and the next step if anything is to be computed.
    pub fn turn(&mut self) -> Result<(), DecodeError> {
        self.receive();
        if self.running.is_empty() { Ok(()) } else { self.step() }
    }

    /// The scheduler with a fresh llama context. What the contexts held is lost; their sequences come
    /// back when they are closed.
    fn recreate(self) -> Result<Self, LoadError> {
        let llama = self.memory.into_llama().recreate(&self.settings.context)?;
        let mut scheduler = Self { memory: Memory::new(llama), ..self };
        scheduler.contexts.values_mut().for_each(|held| held.lost = true);
        Ok(scheduler)
    }

    /// Takes all messages that are there, and admits whom there is room for. Waits when there is nothing
    /// to compute; and shortly when more is likely to come, since a step costs little more with it: rows
    /// of the last step, and requests that have just come.
    fn receive(&mut self) {
        let mut news = false;
        while !self.stopping {
            while let Ok(message) = self.inbox.try_recv() {
                self.take(message);
                news = true;
            }
            news |= self.drop_given_up();
            self.admit();
            let Some(until) = self.wait_until(news) else { return };
            let received = match until {
                Some(until) => {
                    self.inbox.recv_timeout(until.saturating_duration_since(Instant::now()))
                }
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match received {
                Ok(message) => {
                    self.take(message);
                    news = true;
                }
                Err(RecvTimeoutError::Timeout) if self.running.is_empty() => return,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.stopping = true,
            }
        }
    }

    /// Until when to wait for a message, if at all; `Some(None)` is without an end. `news` is whether
    /// there was one.
    pub(super) fn wait_until(&mut self, news: bool) -> Option<Option<Instant>> {
        if self.running.is_empty() {
            if self.expected.is_empty() {
                self.last_ended = None;
            }
            return (!news).then(|| self.admission.next_deadline());
        }
        let now = Instant::now();
        let arriving = self.arrivals.any_since(self.waited_in_vain);
        if self.expected.is_empty() && !arriving {
            return None;
        }
        if now >= self.expected_until {
            // Whoever did not come in time is not waited for again.
            self.expected.clear();
            self.waited_in_vain = now;
            return None;
        }
        // Of a request that turns out to need no model there is no message.
        let look_again = self.expected.is_empty().then(|| now + LOOK_AGAIN);
        Some(Some(look_again.map_or(self.expected_until, |then| then.min(self.expected_until))))
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Reserve { context, sequences, arrival, reply } => {
                drop(arrival);
                self.admission.enqueue(Waiting {
                    sequences: sequences as usize,
                    deadline: Instant::now() + self.settings.longest_wait,
                    who: Reservation { context, reply, since: Instant::now() },
                });
            }
            Message::Compute { context, step, scope, reply } => {
                self.expected.remove(&context);
                let now = Instant::now();
                if self.running.is_empty() && now > self.expected_until {
                    // The model has rested. Whoever was answered before is not expected any more.
                    self.last_ended = None;
                    let contexts = &self.contexts;
                    self.expected.retain(|id| contexts.get(id).is_some_and(Held::begins));
                    self.expected_until = now + self.settings.gather;
                }
                let held = self.contexts.get(&context);
                let goes_on = held.is_some_and(|held| !held.begins());
                match self.begin(context, &step, scope.as_ref()) {
                    Ok(reused) => {
                        let running = self.running_of(context, step, goes_on, reused, reply);
                        self.running.push(running);
                    }
                    // The caller is gone if the reply can't be sent.
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Message::Close { context } => self.close(context),
            Message::Stop => self.stopping = true,
        }
    }

    /// `reused` are the first tokens of each row that are there already, where anybody looked.
    fn running_of(
        &self,
        context: ContextId,
        step: Step,
        goes_on: bool,
        reused: Option<Vec<usize>>,
        reply: oneshot::Sender<Result<Outputs, NnError>>,
    ) -> Running {
        let vocab_size = self.memory.llama().model().vocab_size();
        let outputs = Outputs::new(&step, vocab_size, reused.as_deref());
        let done = reused.unwrap_or_else(|| vec![0; step.rows.len()]);
        let rows = step.rows.into_iter().zip(done).map(|(row, done)| (row.tokens, done)).collect();
        Running { context, rows, goes_on, outputs, reply }
    }

    /// Forks, drops and cuts the rows of a context as a call wants them. Its first call's rows begin
    /// with what others of the scope have computed, if there is a scope. How many tokens of each row
    /// these are, for a call that has a scope.
    fn begin(
        &mut self,
        context: ContextId,
        step: &Step,
        scope: Option<&Scope>,
    ) -> Result<Option<Vec<usize>>, NnError> {
        let held = self
            .contexts
            .get(&context)
            .ok_or_else(|| NnError::runtime("the execution context was not admitted"))?;
        if held.lost {
            return Err(NnError::runtime("the model failed and has forgotten this context"));
        }
        let shares = self.settings.prefix_cache && held.begins();
        match scope.filter(|_| shares) {
            Some(scope) => self.begin_shared(context, step, scope).map(Some),
            None => {
                self.begin_alone(context, step)?;
                Ok(scope.map(|_| vec![0; step.rows.len()]))
            }
        }
    }

    fn begin_alone(&mut self, context: ContextId, step: &Step) -> Result<(), NnError> {
        let Some(held) = self.contexts.get_mut(&context) else { return Ok(()) };
        let plan = plan(&held.rows, &held.spare, &step.rows)
            .ok_or_else(|| NnError::runtime("more rows than were reserved"))?;
        held.rows = plan.rows;
        held.spare = plan.spare;
        for operation in plan.operations {
            match operation {
                Operation::Remove(sequence) => self.memory.remove(sequence),
                Operation::Copy { from, to } => self.memory.copy(from, to),
                Operation::Truncate { sequence, from } => {
                    if !self.memory.truncate(sequence, from as usize) {
                        return Err(NnError::unsupported("this model's memory can't be cut there"));
                    }
                }
            }
        }
        for row in held.rows.iter().filter(|row| row.length == 0) {
            // What an earlier request has left there.
            self.memory.remove(row.sequence);
        }
        Ok(())
    }

    /// Gives each row of a context's first call a sequence that holds as much of its beginning as there
    /// is in the scope: a finished one is taken over, unless more would be lost by that than is won;
    /// that one, or one in use, is copied whole and cut.
    fn begin_shared(
        &mut self,
        context: ContextId,
        step: &Step,
        scope: &Scope,
    ) -> Result<Vec<usize>, NnError> {
        let Some(held) = self.contexts.get_mut(&context) else { return Ok(Vec::new()) };
        if step.rows.len() > held.spare.len() {
            return Err(NnError::runtime("more rows than were reserved"));
        }
        let can_cut = self.memory.llama().model().can_rewind();
        let mut taken: Vec<Option<Match>> = Vec::new();
        let mut copied: Vec<Option<Match>> = Vec::new();
        for row in &step.rows {
            // What is asked for after a token is computed, never remembered.
            let most = row.tokens.len() - step.kept(row) as usize;
            self.metrics.prefix_queries.inc_by(row.tokens.len() as u64);
            let claimed = |sequence| taken.iter().flatten().any(|m: &Match| m.sequence == sequence);
            let found = self
                .memory
                .longest_match(scope, &row.tokens, most, |sequence| !claimed(sequence))
                .filter(|found| can_cut || found.length == found.held);
            let (take, copy) = match found {
                Some(found) if held.spare.contains(&found.sequence) => (Some(found), None),
                Some(found) if !self.admission.is_free(found.sequence) => (None, Some(found)),
                Some(found) if found.held - found.length <= found.length => (Some(found), None),
                found => (None, found),
            };
            taken.push(take);
            copied.push(copy);
        }
        for found in taken.iter().flatten() {
            match held.spare.iter().position(|spare| *spare == found.sequence) {
                Some(place) => drop(held.spare.swap_remove(place)),
                None => {
                    if let Some(instead) = held.spare.pop() {
                        self.admission.exchange(found.sequence, instead);
                    }
                }
            }
        }
        let mut reused = Vec::new();
        for (take, copy) in taken.into_iter().zip(copied) {
            let sequence = match take {
                Some(found) => found.sequence,
                None => held
                    .spare
                    .pop()
                    .ok_or_else(|| NnError::runtime("more rows than were reserved"))?,
            };
            if let Some(found) = copy {
                self.memory.copy(found.sequence, sequence);
            }
            let mut length = take.or(copy).map_or(0, |found| found.length);
            if length == 0 || !self.memory.truncate(sequence, length) {
                self.memory.remove(sequence);
                length = 0;
            }
            self.memory.share(sequence, scope);
            self.metrics.prefix_hits.inc_by(length as u64);
            self.metrics.prompt_tokens.inc_by(length as u64);
            held.rows.push(Row { sequence, length: length as u32 });
            reused.push(length);
        }
        Ok(reused)
    }

    /// Lets go of all that a context waits for, computes or holds.
    fn close(&mut self, context: ContextId) {
        self.expected.remove(&context);
        self.admission.remove_if(|waiting| waiting.who.context == context);
        let before = self.running.len();
        self.running.retain(|running| running.context != context);
        self.metrics.cancelled.inc_by((before - self.running.len()) as u64);
        if let Some(held) = self.contexts.remove(&context) {
            let rows = held.rows.iter().map(|row| row.sequence);
            if !self.settings.prefix_cache {
                rows.clone().for_each(|sequence| self.memory.remove(sequence));
            }
            self.admission.release(held.spare.iter().copied().chain(rows));
        }
        if self.contexts.is_empty() {
            self.memory.llama_mut().rest();
        }
    }

    /// Stops computing for callers that no longer listen; what they hold goes when they are closed. Whether
    /// there were any.
    fn drop_given_up(&mut self) -> bool {
        let before = self.running.len();
        self.running.retain(|running| !running.reply.is_closed());
        let given_up = before - self.running.len();
        self.metrics.cancelled.inc_by(given_up as u64);
        self.admission.remove_if(|waiting| waiting.who.reply.is_closed());
        given_up > 0
    }

    /// Lets in whom there is room for, and sends away whose time is up. Answers are the last, so that
    /// whoever has one finds the gauges right.
    fn admit(&mut self) {
        let mut admitted = Vec::new();
        while let Some((reservation, mut sequences)) = {
            let memory = &self.memory;
            self.admission.admit(|sequence| memory.length(sequence) == 0)
        } {
            self.bring_together(&mut sequences);
            let Reservation { context, reply, since } = reservation;
            observe(&self.metrics.queue_time, since.elapsed());
            if self.contexts.is_empty() {
                self.memory.llama_mut().look_out();
            }
            self.contexts.insert(context, Held { rows: Vec::new(), spare: sequences, lost: false });
            self.expected.insert(context);
            admitted.push((context, reply));
        }
        let expired = self.admission.expire(Instant::now());
        self.show_admission();
        for (context, reply) in admitted {
            if reply.send(Ok(())).is_err() {
                self.close(context);
            }
        }
        for reservation in expired {
            observe(&self.metrics.queue_time, reservation.since.elapsed());
            let error = NnError::timeout(format!(
                "no room for the request within {} s: others hold all sequences",
                self.settings.longest_wait.as_secs_f32()
            ));
            // The caller is gone if the reply can't be sent.
            let _ = reservation.reply.send(Err(error));
        }
    }

    /// Moves what has just been given away beside others that are held: llama.cpp computes together what
    /// follows each other, and a step in several goes takes nearly as many times as long. A finished
    /// sequence that was there moves away, once.
    fn bring_together(&mut self, sequences: &mut [SequenceId]) {
        for sequence in sequences {
            if let Some(better) = self.admission.bring_together(*sequence) {
                self.memory.relocate(better, *sequence);
                *sequence = better;
            }
        }
    }

    fn show_admission(&mut self) {
        let sequences = self.memory.llama().sequences() as usize;
        let held = sequences - self.admission.free();
        self.share.show(Holdings {
            running: self.contexts.len() as i64,
            waiting: self.admission.waiting() as i64,
            sequences: held as i64,
            usage: held as f64 / sequences as f64,
            cells: self.memory.cells_used() as i64,
        });
    }

    /// One decode over all that is running.
    fn step(&mut self) -> Result<(), DecodeError> {
        self.fill_batch();
        let began = Instant::now();
        if !self.batch.is_empty() {
            if let Some(ended) = self.last_ended.take() {
                observe(&self.metrics.step_gap, began - ended);
            }
            let decoded = self.memory.llama_mut().decode(&self.batch);
            for (sequence, length) in self.fillers.drain(..) {
                if !self.memory.truncate(sequence, length) {
                    self.memory.remove(sequence);
                    let holds = |held: &&mut Held| held.rows.iter().any(|r| r.sequence == sequence);
                    self.contexts.values_mut().filter(holds).for_each(|held| held.lost = true);
                }
            }
            decoded?;
            observe(&self.metrics.step_time, began.elapsed());
            self.metrics.step_tokens.observe(self.batch.len() as f64);
            self.last_ended = Some(Instant::now());
            self.take_logits()?;
        }
        self.finish();
        self.expected_until = Instant::now() + self.settings.gather.min(began.elapsed());
        Ok(())
    }

    /// Puts tokens into the batch and counts them as done.
    fn fill_batch(&mut self) {
        self.batch.clear();
        self.outputs.clear();
        self.fillers.clear();
        let wanting = self.wanting();
        let wishes = wanting.iter().map(|(_, _, wish)| *wish).collect::<Vec<_>>();
        let (llama, context) = (self.memory.llama(), self.settings.row_length as usize);
        // Others wait for a step also while their guests choose tokens.
        let prefills = |id: &ContextId| {
            let mut prompts = wanting.iter().filter(|(_, _, wish)| !wish.decodes);
            prompts.any(|(running, _, _)| self.running[*running].context == *id)
        };
        let others = self.contexts.iter().any(|(id, held)| !held.begins() && !prefills(id));
        let batch = llama.batch() as usize;
        let limits = batching::Limits {
            batch,
            chunk: if others { self.settings.chunk as usize } else { batch },
            outputs: llama.most_outputs() as usize,
        };
        let can_cut = llama.model().can_rewind();
        // All that are computed together look at as many cells as the longest of them has, in blocks of
        // 256: one that is longer would cost the others.
        let decoding = wishes.iter().filter(|wish| wish.decodes);
        let longest = decoding.map(|wish| self.memory.length(wish.sequence)).max().unwrap_or(0);
        let longest = longest.next_multiple_of(256).min(context);
        let parts = batching::compose(&wishes, &limits, |sequence| {
            can_cut && self.memory.length(sequence) < longest
        });
        let mut decodes = 0;
        for part in parts {
            match part {
                Part::Row { wish, tokens } => {
                    let (running, row, wish) = wanting[wish];
                    decodes += u64::from(wish.decodes);
                    self.fill_row(running, row, tokens);
                }
                Part::Filler(sequence) => {
                    let length = self.memory.length(sequence);
                    self.batch.push(FILLER, length as u32, sequence, false);
                    self.memory.append(sequence, FILLER);
                    self.fillers.push((sequence, length));
                }
            }
        }
        let prefill = (self.batch.len() - self.fillers.len()) as u64 - decodes;
        self.metrics.generation_tokens.inc_by(decodes);
        self.metrics.prefill_tokens.inc_by(prefill);
        self.metrics.prompt_tokens.inc_by(prefill);
    }

    /// The rows that have tokens to compute, in the order of arrival: of which call, and which of its
    /// rows.
    fn wanting(&self) -> Vec<(usize, usize, Wish)> {
        let mut wanting = Vec::new();
        for (index, running) in self.running.iter().enumerate() {
            let Some(held) = self.contexts.get(&running.context) else { continue };
            for (row, (tokens, done)) in running.rows.iter().enumerate() {
                if *done < tokens.len() {
                    let wish = Wish {
                        sequence: held.rows[row].sequence,
                        left: tokens.len() - done,
                        keep: running.outputs.keep(),
                        decodes: running.goes_on && tokens.len() == 1,
                    };
                    wanting.push((index, row, wish));
                }
            }
        }
        wanting
    }

    /// Adds the next tokens of a row.
    fn fill_row(&mut self, index: usize, row: usize, count: usize) {
        let running = &mut self.running[index];
        let Some(held) = self.contexts.get_mut(&running.context) else { return };
        let keep = running.outputs.keep();
        let (tokens, done) = &mut running.rows[row];
        let at = &mut held.rows[row];
        for _ in 0..count {
            let left = tokens.len() - *done;
            let wanted = left <= keep;
            if wanted {
                let entry = self.batch.len();
                let cell = (row + 1) * keep - left;
                self.outputs.push(Output { entry, running: index, cell });
            }
            self.batch.push(tokens[*done], at.length, at.sequence, wanted);
            self.memory.append(at.sequence, tokens[*done]);
            at.length += 1;
            *done += 1;
        }
    }

    fn take_logits(&mut self) -> Result<(), DecodeError> {
        for output in &self.outputs {
            let logits = self
                .memory
                .llama()
                .logits(output.entry)
                .ok_or_else(|| DecodeError::Invalid("no logits came of it".into()))?;
            let outputs = &mut self.running[output.running].outputs;
            outputs.put(output.cell, logits, &mut self.scratch);
        }
        Ok(())
    }

    /// Answers the calls that are done.
    fn finish(&mut self) {
        let (done, running) = self.running.drain(..).partition(Running::is_done);
        self.running = running;
        let done: Vec<Running> = done;
        for running in done {
            // The caller is gone if the reply can't be sent; its context will be closed.
            if running.reply.send(Ok(running.outputs)).is_ok() {
                self.expected.insert(running.context);
            }
        }
    }

    /// Ends all calls of a failed step.
    fn fail(&mut self, error: &DecodeError) {
        tracing::error!(%error, tokens = self.batch.len(), "a step failed");
        for running in self.running.drain(..) {
            // Nobody knows what of the step is in their sequences.
            if let Some(held) = self.contexts.get_mut(&running.context) {
                held.lost = true;
                held.rows.iter().for_each(|row| self.memory.remove(row.sequence));
            }
            // The caller is gone if the reply can't be sent.
            let _ = running.reply.send(Err(NnError::runtime(format!("the step failed: {error}"))));
        }
        self.expected.clear();
    }
}
