//! Requests whose instances have not asked for a model yet: they start, read, or tokenize. A step that is
//! about to begin waits a little for them, since it costs little more with them than without.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The requests on their way, over all models.
#[derive(Clone, Debug, Default)]
pub struct Arrivals(Arc<Mutex<Underway>>);

#[derive(Debug, Default)]
struct Underway {
    /// When each came; the number tells apart those of the same instant.
    requests: BTreeSet<(Instant, u64)>,
    next: u64,
}

/// A request on its way; it has arrived, or has gone, when this is dropped.
#[derive(Debug)]
pub struct Arrival {
    of: Arrivals,
    key: (Instant, u64),
}

impl Arrivals {
    /// A request has come, at that time.
    pub fn enter(&self, came: Instant) -> Arrival {
        let key = self.with(|underway| {
            underway.next += 1;
            underway.requests.insert((came, underway.next));
            (came, underway.next)
        });
        Arrival { of: self.clone(), key }
    }

    /// Whether a request is on its way that came after `since`.
    pub fn any_since(&self, since: Instant) -> bool {
        self.with(|underway| underway.requests.last().is_some_and(|(came, _)| *came > since))
    }

    fn with<T>(&self, access: impl FnOnce(&mut Underway) -> T) -> T {
        // Nothing that is done with it stops half-way.
        access(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.of.with(|underway| underway.requests.remove(&self.key));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_are_on_their_way_until_they_are_dropped() {
        let arrivals = Arrivals::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let any_since = |millis| arrivals.any_since(at(millis));
        assert!(!any_since(0));
        let first = arrivals.enter(at(1));
        let second = arrivals.enter(at(1));
        let third = arrivals.enter(at(3));
        assert!(any_since(2) && !any_since(3));
        drop(third);
        assert!(any_since(0) && !any_since(1));
        drop(first);
        assert!(any_since(0));
        drop(second);
        assert!(!any_since(0));
    }
}
