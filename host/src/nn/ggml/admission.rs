//! Who may hold sequences: a pool, and a queue in front of it.
//!
//! A context is admitted with all the sequences it will ever need, so running requests never wait
//! for each other. Waiting ones are served in their order: whoever is first waits until the pool has
//! enough for it, and nobody overtakes, so a large request is not starved by small ones. Nor are small
//! ones by large: contexts of several sequences together hold at most three quarters of the pool, and
//! while one of them waits for that share, those of a single sequence go past it. Of the free sequences,
//! empty ones are taken first, and then those that were released the longest ago; among these, neighbours of
//! held ones, since llama.cpp computes those together that follow each other (`batching`). Pure.

use std::collections::VecDeque;
use std::time::Instant;

use spinfer_llama::SequenceId;

/// A request that waits for sequences.
#[derive(Debug)]
pub struct Waiting<T> {
    /// How many sequences it needs, at most as many as the pool has.
    pub sequences: usize,
    /// When it gives up.
    pub deadline: Instant,
    /// Whose it is.
    pub who: T,
}

/// The free sequences and the queue for them.
#[derive(Debug)]
pub struct Admission<T> {
    count: SequenceId,
    /// The least recently used first.
    free: VecDeque<SequenceId>,
    queue: VecDeque<Waiting<T>>,
    /// Sequences that contexts of several hold, and the most that they may.
    wide: usize,
    most_wide: usize,
}

impl<T> Admission<T> {
    /// A pool of the sequences `0..count`, all free.
    pub fn new(count: u32) -> Self {
        Self {
            count: count as SequenceId,
            free: (0..count as SequenceId).collect(),
            queue: VecDeque::new(),
            wide: 0,
            most_wide: most_wide(count) as usize,
        }
    }

    /// Lines up. [`Self::admit`] says when it is let in.
    pub fn enqueue(&mut self, waiting: Waiting<T>) {
        self.queue.push_back(waiting);
    }

    /// Lets in whoever is next if the pool has enough for it, and gives it its sequences. `is_empty` says
    /// whether a free sequence holds nothing that somebody may come back for.
    pub fn admit(&mut self, is_empty: impl Fn(SequenceId) -> bool) -> Option<(T, Vec<SequenceId>)> {
        // The first in line or, while that waits for others of several sequences, the first of one.
        let first = self.queue.front()?;
        let waits = first.sequences > 1 && self.wide + first.sequences > self.most_wide;
        let next = match waits {
            true => self.queue.iter().position(|waiting| waiting.sequences == 1)?,
            false => 0,
        };
        let sequences = self.queue[next].sequences;
        if self.free.len() < sequences {
            return None;
        }
        if sequences > 1 {
            self.wide += sequences;
        }
        let waiting = self.queue.remove(next)?;
        let taken = (0..sequences).filter_map(|_| self.take(&is_empty)).collect();
        Some((waiting.who, taken))
    }

    /// Takes a free sequence: of the empty ones or, where there is none, of the half that was released the
    /// longest ago, that with the most neighbours that are held; of those with as many, the oldest.
    fn take(&mut self, is_empty: impl Fn(SequenceId) -> bool) -> Option<SequenceId> {
        let neighbours =
            |id: SequenceId| u8::from(self.is_held(id - 1)) + u8::from(self.is_held(id + 1));
        let places = || 0..self.free.len();
        let empty = |place: &usize| is_empty(self.free[*place]);
        let any_empty = places().any(|place| empty(&place));
        let old = self.free.len().div_ceil(2);
        let best = places()
            .filter(|place| if any_empty { empty(place) } else { *place < old })
            .rev()
            .max_by_key(|place| neighbours(self.free[*place]))?;
        self.free.remove(best)
    }

    /// Whether a sequence is free.
    pub fn is_free(&self, sequence: SequenceId) -> bool {
        self.free.contains(&sequence)
    }

    fn is_held(&self, sequence: SequenceId) -> bool {
        (0..self.count).contains(&sequence) && !self.is_free(sequence)
    }

    /// Moves a sequence that is held without a neighbour beside another that is held: to the free one
    /// there that was released the longest ago, whose place among the free ones it takes. Where it is
    /// now; none: where it was.
    pub fn bring_together(&mut self, lonely: SequenceId) -> Option<SequenceId> {
        let beside_others = |id: &SequenceId| {
            [id - 1, id + 1].into_iter().any(|beside| beside != lonely && self.is_held(beside))
        };
        if beside_others(&lonely) {
            return None;
        }
        let place = self.free.iter().position(beside_others)?;
        Some(std::mem::replace(&mut self.free[place], lonely))
    }

    /// Takes a free sequence out, and `instead` back, which will be the next to be given away. False
    /// when the sequence isn't free; nothing has changed then.
    pub fn exchange(&mut self, sequence: SequenceId, instead: SequenceId) -> bool {
        let Some(place) = self.free.iter().position(|free| *free == sequence) else {
            return false;
        };
        self.free.remove(place);
        self.free.push_front(instead);
        true
    }

    /// Takes all sequences of a context back, the least useful first.
    pub fn release(&mut self, sequences: impl IntoIterator<Item = SequenceId>) {
        let before = self.free.len();
        self.free.extend(sequences);
        let released = self.free.len() - before;
        if released > 1 {
            self.wide -= released;
        }
    }

    /// Takes out those whose deadline has passed.
    pub fn expire(&mut self, now: Instant) -> Vec<T> {
        self.remove_if(|waiting| waiting.deadline <= now)
    }

    /// Takes out those that `gone` picks.
    pub fn remove_if(&mut self, gone: impl Fn(&Waiting<T>) -> bool) -> Vec<T> {
        let (out, stay): (Vec<_>, Vec<_>) = self.queue.drain(..).partition(gone);
        self.queue.extend(stay);
        out.into_iter().map(|waiting| waiting.who).collect()
    }

    /// The next deadline, if anybody waits.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.queue.iter().map(|waiting| waiting.deadline).min()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// How many sequences are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

/// The most sequences of a pool that contexts of several may hold, and so the most that one can have.
pub fn most_wide(count: u32) -> u32 {
    count - count / 4
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn waiting(who: &'static str, sequences: usize, deadline: Instant) -> Waiting<&'static str> {
        Waiting { sequences, deadline, who }
    }

    #[test]
    fn nobody_overtakes_the_first_in_line() {
        let later = Instant::now() + Duration::from_secs(10);
        let mut admission = Admission::new(4);
        for who in ["a", "b", "c"] {
            admission.enqueue(waiting(who, 1, later));
        }
        let singles: Vec<_> = (0..3).map(|_| admission.admit(|_| true).unwrap().1).collect();
        admission.enqueue(waiting("two", 2, later));
        admission.enqueue(waiting("one", 1, later));
        assert!(admission.admit(|_| true).is_none(), "two must wait for room, and one behind it");
        singles.into_iter().take(2).for_each(|held| admission.release(held));
        assert_eq!(admission.admit(|_| true).unwrap().0, "two");
        assert_eq!(admission.admit(|_| true).unwrap().0, "one");
        assert_eq!((admission.waiting(), admission.free()), (0, 0));
    }

    #[test]
    fn large_requests_leave_room_for_single_ones() {
        let later = Instant::now() + Duration::from_secs(10);
        let mut admission = Admission::new(16);
        admission.enqueue(waiting("eight", 8, later));
        admission.enqueue(waiting("six", 6, later));
        admission.enqueue(waiting("one", 1, later));
        admission.enqueue(waiting("four", 4, later));
        let (who, eight) = admission.admit(|_| true).unwrap();
        assert_eq!((who, eight.len()), ("eight", 8));
        // 8 + 6 are over three quarters of 16: a single one goes first, but no other large one.
        assert_eq!(admission.admit(|_| true).unwrap().0, "one");
        assert!(admission.admit(|_| true).is_none());
        admission.release(eight);
        assert_eq!(admission.admit(|_| true).unwrap().0, "six");
        assert_eq!(admission.admit(|_| true).unwrap().0, "four");
        // Several that are large may not take what is left for single ones.
        for _ in 0..2 {
            admission.enqueue(waiting("two", 2, later));
        }
        assert_eq!(admission.admit(|_| true).unwrap().0, "two");
        assert!(admission.admit(|_| true).is_none());
        for _ in 0..3 {
            admission.enqueue(waiting("single", 1, later));
            assert_eq!(admission.admit(|_| true).unwrap().0, "single");
        }
        assert_eq!(admission.free(), 0);
    }

    #[test]
    fn a_small_pool_can_be_had_whole() {
        assert_eq!([1, 2, 3, 4, 16].map(most_wide), [1, 2, 3, 3, 12]);
    }

    #[test]
    fn a_sequence_is_never_given_twice() {
        let later = Instant::now() + Duration::from_secs(10);
        let mut admission = Admission::new(8);
        admission.enqueue(waiting("a", 2, later));
        admission.enqueue(waiting("b", 3, later));
        let mut all: Vec<_> = admission.admit(|_| true).unwrap().1;
        all.extend(admission.admit(|_| true).unwrap().1);
        all.sort();
        assert_eq!(all, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn the_longest_unused_goes_first_and_a_wanted_one_can_be_had() {
        let later = Instant::now() + Duration::from_secs(10);
        let mut admission = Admission::new(6);
        let admit = |admission: &mut Admission<_>, count| {
            admission.enqueue(waiting("any", count, later));
            admission.admit(|_| true).unwrap().1
        };
        let held = admit(&mut admission, 2);
        assert_eq!(held, [0, 1]);
        admission.release(held);
        // 2, 3, 4, 5, 0, 1: the one that was used last goes last.
        assert!(admission.exchange(1, 9) && !admission.is_free(1));
        assert!(!admission.exchange(1, 8));
        admission.exchange(9, 1);
        assert_eq!(admit(&mut admission, 1), [1], "given back, and the next to be given away");
    }

    #[test]
    fn neighbours_of_held_sequences_go_first() {
        let later = Instant::now() + Duration::from_secs(10);
        let mut admission = Admission::new(8);
        let admit = |admission: &mut Admission<_>| {
            admission.enqueue(waiting("any", 1, later));
            admission.admit(|_| true).unwrap().1[0]
        };
        let held: Vec<_> = (0..5).map(|_| admit(&mut admission)).collect();
        assert_eq!(held, [0, 1, 2, 3, 4]);
        admission.release([3]);
        admission.release([1]);
        // Both holes have two neighbours, and 5 has one.
        assert_eq!([(); 3].map(|()| admit(&mut admission)), [3, 1, 5]);
        (0..6).for_each(|id| admission.release([id]));
        assert_eq!(admit(&mut admission), 6, "nobody has neighbours");
        assert_eq!(admit(&mut admission), 7);
        assert_eq!(admit(&mut admission), 5, "used last, but the only neighbour");
    }

    #[test]
    fn whoever_is_alone_moves_beside_others() {
        let later = Instant::now() + Duration::from_secs(10);
        let mut admission = Admission::new(8);
        for _ in 0..8 {
            admission.enqueue(waiting("any", 1, later));
            assert!(admission.admit(|_| true).is_some());
        }
        // Held: 2 and 6. Free, the oldest first: 4, 1, 3, 7, 0, 5.
        [4, 1, 3, 7, 0, 5].into_iter().for_each(|id| admission.release([id]));
        assert_eq!(admission.bring_together(6), Some(1));
        assert!(admission.is_free(6) && !admission.is_free(1));
        assert_eq!(admission.bring_together(1), None, "2 is beside it");
        // 6 is where 1 was: after 4, before 3.
        let order: Vec<_> = (0..6)
            .map(|_| {
                admission.enqueue(waiting("any", 1, later));
                admission.admit(|id| id == 4 || id == 6).unwrap().1[0]
            })
            .collect();
        assert_eq!(order[..2], [4, 6]);
    }

    #[test]
    fn what_somebody_may_come_back_for_is_kept_the_longest() {
        let later = Instant::now() + Duration::from_secs(10);
        let mut admission = Admission::new(8);
        let admit = |admission: &mut Admission<_>, kept: &[SequenceId]| {
            admission.enqueue(waiting("any", 1, later));
            admission.admit(|id| !kept.contains(&id)).unwrap().1[0]
        };
        assert_eq!([admit(&mut admission, &[]), admit(&mut admission, &[])], [0, 1]);
        admission.release([1]);
        assert_eq!(admit(&mut admission, &[1]), 2, "1 is a neighbour, but no empty one");
        // All hold something: 3, 4, 5 and 6 are free for longer than 7 and 1.
        let all = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(admit(&mut admission, &all), 3, "the neighbour of 2 among the older half");
        [0, 2, 3].into_iter().for_each(|id| admission.release([id]));
        assert_eq!(admit(&mut admission, &all), 4, "the oldest where nobody has neighbours");
    }

    #[test]
    fn those_whose_time_is_up_leave_the_line() {
        let now = Instant::now();
        let mut admission = Admission::new(1);
        admission.enqueue(waiting("late", 1, now));
        admission.enqueue(waiting("early", 1, now + Duration::from_secs(1)));
        assert_eq!(admission.next_deadline(), Some(now));
        assert_eq!(admission.expire(now), ["late"]);
        assert_eq!(admission.admit(|_| true).unwrap().0, "early");
    }
}
